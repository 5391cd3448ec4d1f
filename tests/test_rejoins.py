"""What experiments/live/rejoins.py says of its counts, and that it loses no result."""

from __future__ import annotations

import importlib.util
import json
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

_FILE = ROOT / "experiments" / "live" / "rejoins.py"
_SPEC = importlib.util.spec_from_file_location("rejoins", _FILE)
assert _SPEC is not None
assert _SPEC.loader is not None
rejoins: Any = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rejoins)


def rows(kind: str, bad: int, bad_with: int, of: int = 50) -> list[dict[str, Any]]:
    made = []
    for side, count in (("without", bad), ("with", bad_with)):
        for run in range(of):
            ended = "hung" if run < count else "well"
            made.append({"kind": kind, "side": side, "ended": ended, "seconds": 9.0})
            made[-1].update(run=run, busy=0.02, error="RuntimeError: N" if run < count else "")
    return made


def test_chance_is_fisher_s() -> None:
    # All bad ones on one side: as many ways as there are to choose them there.
    assert rejoins.chance(0, 50, 8, 50) == pytest.approx(comb(50, 8) / comb(100, 8))
    assert rejoins.chance(8, 50, 0, 50) == 1
    # By hand: of all ways to have 3 bad ones among 6 jobs, those with 2 or more on the second side.
    ways = [sum(place > 2 for place in bad) >= 2 for bad in combinations(range(6), 3)]
    assert rejoins.chance(1, 3, 2, 3) == pytest.approx(sum(ways) / len(ways))


def test_interval() -> None:
    low, high = rejoins.interval(0, 50)
    assert (low, round(high, 3)) == (0, 0.071)
    low, high = rejoins.interval(25, 50)
    assert low == pytest.approx(1 - high)


@pytest.mark.parametrize(("bad_with", "worse"), [(5, False), (12, False), (25, True)])
def test_both_sides_are_told_apart(bad_with: int, worse: bool) -> None:
    lines = list(rejoins.summary(rows("env", 5, bad_with), ["env", "tcp"]))
    assert any(found for _, found in lines) is worse
    text = "\n".join(line for line, _ in lines)
    assert f"| env | with | {50 - bad_with} | 0 | {bad_with} |" in text
    assert f"- 5 without, {bad_with} with: RuntimeError: N" in text
    assert "Others used 2% of the cores before a job" in text
    # None of it was run.
    assert "tcp" not in text


def test_jobs_beside_others_do_not_count() -> None:
    """However they ended. A second call runs them again."""
    found = [{**row, "of": "torch"} for row in rows("env", 0, 3, of=5)]
    busy = [{**row, "busy": 0.5} for row in found[:7]]
    assert rejoins.counted(busy + found[7:], "torch") == found[7:]
    assert rejoins.counted(busy + found, "torch") == found
    assert rejoins.counted(found, "another torch") == []


def test_a_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    assert rejoins.read(file) == []
    row = {"of": "torch", "run": 0}
    file.write_text(json.dumps(row) + '\n{"of": "tor')
    assert rejoins.read(file) == [row]
    # The next result is a line of its own.
    assert file.read_text() == json.dumps(row) + "\n"
