"""The last lines of a run in which tests fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.programs import program_file

FAILING = program_file("failures/failing.py").read_text()
EXPECTED = """\
test_it.py::test_statement
  expected: A command says that it is done.
  statement: is_done(
                 "not done",
             )
  in: {file}:16
  found: AssertionError: 0
           1
           2
           3
         ...
"""
EXPECTED_OF_FIXTURE = """\
test_it.py::test_fixture
  statement: raise OSError("no room")
  in: {file}:23
  found: OSError: no room
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_last_lines(tmp_path: Path, workers: str) -> None:
    """They say what was expected of whom, also of a test that ran in another process."""
    file = tmp_path / "test_it.py"
    file.write_text(FAILING)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.failures", "-n", workers),
            *("-c", "/dev/null", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    *_, last = done.stdout.partition("what was expected, and what was found")
    for expected in (EXPECTED, EXPECTED_OF_FIXTURE):
        assert expected.format(file=file) in last
    assert "much" not in last
    assert "test_passes" not in last
