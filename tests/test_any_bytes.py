"""Whatever bytes a policy file holds: check says what is wrong, and interpreters start."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rocm_autopatch.cli import main
from tests.conftest import ROOT, Interpreter

SOURCES = [
    (ROOT / "policies" / name).read_bytes()
    for name in ("safe.yaml", "debug.yaml", "images.yaml", "capture-guard.yaml")
]
WORDS = [
    b"version: 1\n",
    b"extends: ",
    b"env:\n",
    b"  A:\n",
    b"{",
    b"[",
    b"&a",
    b"*a",
    b"!!",
    b"\n",
]
WORDS += [
    b"config:\n",
    b"when: ",
    b"torch: '>=",
    b"\xff",
    b"\0",
    b"patches: ",
    b"capture: ",
    b"1e999",
]
WORDS += [
    *(
        f"!!{tag} ".encode()
        for tag in ("int", "bool", "float", "null", "str", "timestamp", "binary")
    ),
    *(f"!!{tag} ".encode() for tag in ("set", "omap", "pairs", "seq", "map", "merge", "value")),
    b"!!python/object/apply:os.system ",
    b"!<x> ",
    b"! ",
    b"%TAG ! tag:yaml.org,2002:\n--- ",
    b'""',
    b"=",
    b"<<",
    b".inf",
    b"-.INF",
    b".nan",
    b"9" * 5000,
    b"0x",
    b"1:10:10",
    b"1:10.5",
    b"2026-02-30",
    b'"\\0"',
    b'"\\ud800"',
    b'"\\U00110000"',
    b'"\\e[31m"',
    b"? ",
    b": ",
    b"- ",
    b"|\n ",
    b"}",
    b"]",
    b",",
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A real policy with something cut out of it and something put in."""
    source = draw(st.sampled_from(SOURCES))
    start = draw(st.integers(0, len(source)))
    end = draw(st.integers(start, min(len(source), start + 200)))
    return source[:start] + draw(st.binary(max_size=8) | st.sampled_from(WORDS)) + source[end:]


ANY = st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(WORDS)).map(b"".join), damaged())
QUIET = [HealthCheck.function_scoped_fixture]


@settings(max_examples=300, suppress_health_check=QUIET)
@given(data=ANY, name=st.sampled_from(["policy.yaml", "images.yaml"]))
def test_check(data: bytes, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    status = main(["check", "--torch", "2.13", str(file)])
    out, err = capsys.readouterr()
    assert status == (": no errors" not in err)
    assert all(line.startswith(f"{file}:") for line in out.splitlines())


@settings(max_examples=40, suppress_health_check=QUIET)
@given(data=ANY)
def test_start(data: bytes, tmp_path: Path, python311: Interpreter) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_bytes(data)
    done = python311.run("-c", "print('started')", env={"ROCM_AUTOPATCH_POLICY": str(policy)})
    assert done.stdout == "started\n"
    assert len(done.stderr.splitlines()) <= 1
    assert "Traceback" not in done.stderr
