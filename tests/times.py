"""What each test file costs, as a table: ``python -m tests.times BEFORE.xml AFTER.xml``.

The files are what ``pytest --junitxml=FILE`` writes. A number is the sum of the seconds of a file's
tests, with what their fixtures take, and how many tests ran.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as Element
from collections import defaultdict

# Files that cost less before and after stand in one row.
LEAST_S = 20


def seconds(report: str) -> dict[str, list[float]]:
    """By file, the seconds of each test."""
    found = defaultdict(list)
    for case in Element.parse(report).iter("testcase"):
        module = [part for part in case.get("classname", "").split(".") if part[:1].islower()]
        found["/".join(module[1:])].append(float(case.get("time", 0)))
    return found


def table(before: dict[str, list[float]], after: dict[str, list[float]]) -> list[str]:
    def row(name: str, *files: str) -> str:
        cells = []
        for one in (before, after):
            took = [number for file in files for number in one.get(file, [])]
            cells.append(f"{sum(took):.0f} s, {len(took)} tests")
        return f"| {name} | {cells[0]} | {cells[1]} |"

    costs = {
        file: max(sum(before.get(file, [])), sum(after.get(file, []))) for file in {*before, *after}
    }
    large = sorted(
        (file for file in costs if costs[file] >= LEAST_S), key=lambda file: -costs[file]
    )
    others = [file for file in costs if file not in large]
    return [
        "| file | before | now |",
        "|---|---:|---:|",
        *(row(f"`{file}.py`", file) for file in large),
        row(f"{len(others)} others", *others),
        row("all, on two processes", *costs),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What each test file costs.")
    parser.add_argument("before", help="a file that pytest --junitxml has written")
    parser.add_argument("after", help="the same of another run")
    asked = parser.parse_args()
    try:
        rows = table(seconds(asked.before), seconds(asked.after))
    except (OSError, Element.ParseError) as error:
        parser.error(str(error))
    print("\n".join(rows))
