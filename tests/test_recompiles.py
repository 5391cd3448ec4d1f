"""The line where torch would have stopped compiling a function, on the real torch."""

from __future__ import annotations

import json

import pytest

from tests import forked
from tests.conftest import Interpreter
from tests.programs import line_of, program_file

HEAD = "import torch, torch._dynamo\n"
PROGRAM = program_file("recompiles/steps.py")


def row_and_lines(
    python: Interpreter, *arguments: str, **env: str
) -> tuple[list[object], list[str]]:
    """The patch's row, and the lines about limits on stderr."""
    if env:
        done = python.run(PROGRAM, *arguments, env=env)
    else:
        done = forked.run(python, HEAD, PROGRAM, *arguments, env={})
    said = [line for line in done.stderr.splitlines() if "limit" in line and "policy" in line]
    native = "torch._dynamo hit config" in done.stderr
    return json.loads(done.stdout), said + ["torch's own"] * native


def test_a_line_for_each_function(torch_python: Interpreter) -> None:
    row, said = row_and_lines(torch_python, "", "12")
    assert row == ["applied", "", 2]
    first, second = said
    # The guard is torch's text, and longer on some versions.
    step, other = line_of(PROGRAM, "def step("), line_of(PROGRAM, "def other(")
    begin = f"rocm_autopatch: step ({PROGRAM}:{step}) is compiled for the 9th time, as "
    assert first.startswith(f"{begin}policy safe sets recompile_limit to 128; torch itself would ")
    assert "The guard that failed last: " in first
    assert "size mismatch at index 0. expected 9, actual 10" in first
    assert second.startswith(f"rocm_autopatch: other ({PROGRAM}:{other}) ")


def test_with_fullgraph_torch_would_raise(torch_python: Interpreter) -> None:
    _, said = row_and_lines(torch_python, "", "12", "full")
    assert len(said) == 2
    for line in said:
        assert "torch itself would stop at 8 and raise an error, because of fullgraph=True" in line
    _, said = row_and_lines(torch_python, "", "12")
    for line in said:
        assert "torch itself would stop at 8 and run it without a compile" in line


@pytest.mark.parametrize(
    ("arguments", "env", "wanted"),
    [
        # Eight compiles are torch's own limit, and are made without a warning.
        (("", "8"), {}, ["applied", "", 0]),
        (("program", "12"), {}, ["applied", "", 0]),
        (("", "12"), {"RANK": "3"}, ["applied", "", 2]),
        (("", "12"), {"ROCM_AUTOPATCH_LOG": "quiet"}, ["applied", "", 2]),
        (("", "8"), {"ROCM_AUTOPATCH_KEEP": "recompiles"}, ["kept", "ROCM_AUTOPATCH_KEEP", 0]),
        (("", "8"), {"ROCM_AUTOPATCH": "observe"}, ["skipped", "?", 0]),
    ],
    ids=["at the limit", "program's own limit", "rank", "quiet", "kept", "observe"],
)
def test_no_line(
    torch_python: Interpreter,
    arguments: tuple[str, ...],
    env: dict[str, str],
    wanted: list[object],
) -> None:
    row, said = row_and_lines(torch_python, *arguments, **env)
    assert row[0] == wanted[0]
    assert row[2] == wanted[2]
    assert said == []


def test_torch_warns_where_the_limit_is_its_own(torch_python: Interpreter) -> None:
    row, said = row_and_lines(torch_python, "", "12", ROCM_AUTOPATCH_KEEP="recompile_limit")
    assert row == ["skipped", "no policy raised the limit, so torch warns itself", 0]
    assert said == ["torch's own"]
