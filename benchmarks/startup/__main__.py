"""Measure everything in one run, and print it as Markdown."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.startup import environments, finder, measure, plot, report, states, torch_import
from benchmarks.startup.environments import RUNNING, NotMade, Place, Wheel
from benchmarks.startup.measure import Cost
from benchmarks.startup.states import Absent, Row, State


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where venvs are kept")
    parser.add_argument("--rounds", type=int, default=41, help="timed starts of each state")
    parser.add_argument("--seed", type=int, default=0, help="of the order in the rounds")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="where to draw the instructions")
    parser.add_argument(
        "--pythons", nargs="+", default=[], metavar="X.Y", help="our main states on these too"
    )
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        parser.error("valgrind counts the instructions, and is not installed")
    try:
        _run(arguments)
    except NotMade as error:
        print(f"benchmarks.startup: {error}", file=sys.stderr)
        return 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    work: Path = arguments.work.resolve()
    chart: Path | None = arguments.plot and arguments.plot.resolve()
    directory = work / "startup"
    home = directory / "home"
    home.mkdir(parents=True, exist_ok=True)
    # "" is on sys.path in -c: the checkout must not be what a start finds there.
    os.chdir(home)
    base = {"PATH": os.defpath, "HOME": str(home), "PYTHONHASHSEED": "0"}
    wheel = environments.build_wheel(directory)

    costs: dict[State, Cost] = {}
    table = _rows(directory, wheel, base, RUNNING, every=True)
    main_rows = _measured(table, costs)
    by_python: dict[str, list[Row]] = {}
    for version in arguments.pythons:
        if version == RUNNING:
            by_python[version] = main_rows
            continue
        try:
            by_python[version] = _measured(_rows(directory, wheel, base, version, False), costs)
        except NotMade as error:
            by_python[version] = [Absent(version, str(error))]
    _say(f"{arguments.rounds} rounds of {len(costs)} states")
    measure.take_turns(costs, arguments.rounds, arguments.seed)

    print(report.header(arguments.rounds), "", report.states(main_rows, costs), sep="\n")
    if by_python:
        print("", report.pythons(by_python, costs), sep="\n")
    print("", report.agreement(costs), sep="\n")
    if chart:
        chart.write_text(_chart(main_rows, costs), encoding="utf-8")
    active = next(row for row in main_rows if row.name == states.ACTIVE)
    if isinstance(active, State):
        print("", report.imports(_finder(active, directory)), sep="\n", flush=True)
    _say("import torch")
    found = torch_import.measure(work, directory, wheel, base)
    print("", report.torch(found), sep="\n")


def _rows(
    directory: Path, wheel: Wheel, base: Mapping[str, str], version: str, every: bool
) -> list[Row]:
    place = Place(directory, environments.find_python(version), version, wheel)
    rows = states.bare_and_ours(place, base, every)
    if every and isinstance(rows[0], State):
        rows += states.others(place, base, rows[0])
    return rows


def _measured(rows: list[Row], costs: dict[State, Cost]) -> list[Row]:
    """The rows; a state that does not start becomes absent. Adds the costs of the others."""
    done: list[Row] = []
    for row in rows:
        if isinstance(row, State):
            _say(f"{row.python.parent.parent}: {row.name}")
            try:
                costs[row] = measure.cost(row)
            except NotMade as error:
                if row.against is None:
                    raise
                row = Absent(row.name, str(error))
        done.append(row)
    return done


def _finder(state: State, directory: Path) -> list[report.Finding]:
    command = [str(state.python), str(finder.__file__), str(directory / "modules")]
    done = subprocess.run(command, env=dict(state.env), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise NotMade(f"the finder's benchmark ended with status {done.returncode}")
    return [(kind, *values) for kind, *values in json.loads(done.stdout)]


def _chart(rows: list[Row], costs: Mapping[State, Cost]) -> str:
    bars = [
        (
            row.name,
            report.count_of(costs[row]) - report.count_of(costs[row.against]),
            row.ours,
        )
        for row in rows
        if isinstance(row, State) and row.against and row.name not in (states.CONTROL, states.PTH)
    ]
    bare = next(iter(costs.values()))
    return plot.bars(
        bars,
        "Instructions of python -c pass above a bare interpreter's "
        f"{report.count_of(bare) / 1e6:.1f} M, log scale",
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
