"""What experiments.frameworks compares. The programs themselves run in make live."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from experiments.frameworks import __main__ as frameworks
from experiments.frameworks import commands
from experiments.live import run as live

LINE = (
    "rocm_autopatch: policy safe applies (image: not named): unset TORCHINDUCTOR_MAX_AUTOTUNE, "
    "unset TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE, 3 config values\n"
)
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
    ours = LINE
    tables = "AUTOTUNE addmm(2x64, 64x64)\nstrides: [0, 1]\n  addmm 0.0162 ms 100.0% \n"
    others = "W1122 a.py:29] no triton\nrocm_autopatch: no policy applies\n"
    assert frameworks.lines(ours + tables + others) == {
        "WN a.py:N] no triton",
        "rocm_autopatch: no policy applies",
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
    run = frameworks.Run(0, "", "", [row], 1, 1.0)
    assert len(frameworks.inside(run, PINS)) == found


COMPILED: dict[str, Any] = {"event": "compiled", "command": ["a.py"], "errors": []}
COMPILED |= {"here": PINS, "elsewhere": PINS}


@pytest.mark.parametrize(
    ("compiles", "stderr", "found"),
    [
        (True, LINE, []),
        (False, LINE, ["something was compiled"]),
        (True, "", ["our line 0 times on stderr, in 1 process trees"]),
        (True, LINE + LINE, ["our line 2 times on stderr, in 1 process trees"]),
    ],
)
def test_what_is_wrong_in_a_run(
    compiles: bool, stderr: str, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frameworks, "pinned", lambda: PINS)
    runs = {
        (arm, when): frameworks.Run(0, "", stderr if arm == "safe" else "", [COMPILED], 1, 1.0)
        for arm in frameworks.ARMS
        for when in frameworks.STARTS
    }
    every = frameworks.differences(runs, compiles)
    assert [text.removeprefix("safe, cold: ") for text in every if "safe, cold" in text] == found


def test_programs(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("# requires: one two[all]\n# mypy: ignore-errors\n")
    served = tmp_path / "served"
    served.mkdir()
    (served / "run.sh").write_text(
        "#!/bin/sh\n# requires:\n# compiles: no\nset -eu\n# requires: three\n"
    )
    assert frameworks.programs(tmp_path) == {
        "file": frameworks.Program(tmp_path / "file.py", ["one", "two[all]"], True),
        "served": frameworks.Program(served, [], False),
    }


def test_a_server_that_is_left_behind_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frameworks, "LIMIT_S", 1)
    with pytest.raises(live.LiveError, match="not done"):
        frameworks.start(tmp_path, "off", tmp_path, None, "sh", "-c", "sleep 60 & echo $! >pid")
    pid = int((tmp_path / "cwd" / "pid").read_text())
    end = time.monotonic() + 10
    while not ended(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert ended(pid)


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


def test_the_policy_pins_something() -> None:
    assert frameworks.pinned()["torch._inductor.config.triton.cudagraphs"] == "False"


def counted(**changes: Any) -> dict[str, Any]:
    one = {"id": "0/0", "failed": False, "limit": False, "recompile": False, "hits": 0, "misses": 1}
    return one | changes


ENDS: list[dict[str, Any]] = [
    {
        "event": "exit",
        "pid": 7,
        "counted": {
            "graph_break": 1,
            "unimplemented": 3,
            "compiles": [
                counted(),
                counted(hits=1, misses=0),  # its backward
                counted(id="0/1", recompile=True),
                counted(id="0/2", recompile=True, failed=True, limit=True, misses=0),
                counted(id="1/0", failed=True, misses=0),
            ],
        },
    }
]
TOLD: dict[str, Any] = {
    "processes": [{"number": 0, "pid": 7}, {"number": 1, "pid": 8}],
    "graphs": [
        {"process": 0, "id": "0/0", "cache": "part"},
        {"process": 0, "id": "0/1", "cache": "miss"},
        {"process": 0, "id": "1/0", "cache": ""},
    ],
    "breaks": [{"count": 2}],
    "recompiles": [{"count": 1, "limit": 1}],
    "notes": [],
}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"breaks": []}, ["the report has breaks 0, torch counted 2"]),
        (
            {"recompiles": [{"count": 2, "limit": 1}]},
            ["the report has recompiles 2, torch counted 1"],
        ),
        ({"recompiles": [{"count": 1, "limit": 0}]}, ["the report has limits 0, torch counted 1"]),
        ({"notes": ["a line is damaged"]}, ["the report notes: a line is damaged"]),
        ({"graphs": []}, ["0 graphs in the report, 0 processes without an exit"]),
        (
            {"graphs": [{"process": 1, "id": "0/0", "cache": ""}]},
            ["1 graphs in the report, 1 processes without an exit"],
        ),
    ],
)
def test_a_report_and_what_torch_counted(changes: dict[str, Any], found: list[str]) -> None:
    assert list(commands.report({**TOLD, **changes}, ENDS)) == found


def test_a_report_with_other_graphs() -> None:
    graphs = [*TOLD["graphs"][:2], {"process": 0, "id": "1/0", "cache": "hit"}]
    (found,) = commands.report({**TOLD, "graphs": graphs}, ENDS)
    assert found.startswith("the report has caches ")
    assert len(list(commands.report({**TOLD, "graphs": graphs[:2]}, ENDS))) == 2


def test_probe_and_status_and_what_torch_has() -> None:
    off = {"here": {"a": "True", "b": "8", "same": "1"}}
    safe = {"here": {"a": "False", "b": "128", "same": "1"}, "policy": "safe"}
    rows = [
        {"name": "a", "without": True, "with": False},
        {"name": "b", "without": 8, "with": 128},
        {"name": "of another module", "without": 1, "with": 2},
    ]
    assert list(commands.probe({"config": rows}, off, safe)) == []
    assert len(list(commands.probe({"config": rows[1:]}, off, safe))) == 1
    assert (
        len(list(commands.probe({"config": [*rows, {**rows[0], "name": "same"}]}, off, safe))) == 1
    )
    told = {"policy": "safe", "errors": [], "config": [{"name": "b", "after": 128}]}
    assert list(commands.status(told, safe)) == []
    assert len(list(commands.status({**told, "policy": ""}, safe))) == 1
    assert len(list(commands.status({**told, "config": [{"name": "b", "after": 8}]}, safe))) == 1
