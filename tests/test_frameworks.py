"""What tests.frameworks compares. The programs themselves run in make live."""

from __future__ import annotations

from typing import Any

import pytest

from tests.frameworks import __main__ as frameworks

PINS = {"torch._inductor.config.triton.cudagraphs": "False"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("loss 4.8374", "loss 4.8375"),
        ("{'train_runtime': '111.2', 'loss': '4.8'}", "{'train_runtime': '12.02', 'loss': '4.8'}"),
    ],
)
def test_output_that_is_the_same(one: str, other: str) -> None:
    assert frameworks.output(one, other) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [("loss 4.8374", "loss 4.8474"), ("tokens [1, 2]", "tokens [1, 3]"), ("a", "a\nb")],
)
def test_output_that_differs(one: str, other: str) -> None:
    assert len(frameworks.output(one, other)) == 1


def test_lines_of_stderr() -> None:
    ours = "rocm_autopatch: policy safe applies\n"
    tables = "AUTOTUNE addmm(2x64, 64x64)\nstrides: [0, 1]\n  addmm 0.0162 ms 100.0% \n"
    assert frameworks.lines(ours + tables + "W1122 a.py:29] no triton\n") == {
        "WN a.py:N] no triton"
    }


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, 0),
        ({"elsewhere": {"torch._inductor.config.triton.cudagraphs": "True"}}, 1),
        ({"policy": ""}, 1),
        ({"errors": ["a patch failed"]}, 1),
    ],
)
def test_what_is_wrong_inside(changes: dict[str, Any], found: int) -> None:
    row: dict[str, Any] = {"event": "exit", "command": ["python", "a.py"], "errors": []}
    row |= {"here": PINS, "elsewhere": PINS, "policy": "safe", **changes}
    run = frameworks.Run(0, "", "", [row], 1.0)
    assert len(frameworks.inside(run, PINS)) == found


def test_the_policy_pins_something() -> None:
    assert frameworks.pinned()["torch._inductor.config.triton.cudagraphs"] == "False"
