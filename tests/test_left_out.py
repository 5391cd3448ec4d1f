"""What "make test" leaves out: rows are about tests that are there, and name others that run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.conftest import LEFT_OUT, ROOT

pytestmark = pytest.mark.slow

ROWS: list[dict[str, Any]] = yaml.safe_load((ROOT / "tests" / "left_out.yaml").read_text())


@pytest.fixture(scope="module")
def found() -> set[str]:
    """The ids of all tests in the files that the list names. Those in tests/graphs need torch;
    test_graphs.py calls them by these names."""
    files = {name.partition("::")[0] for row in ROWS for name in (*row["tests"], *row["sooner"])}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"),
            "--snapshot-warn-unused",
            *(f"tests/{file}" for file in sorted(files) if not file.startswith("graphs/")),
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if line.startswith("tests/")}


def test_each_is_there(found: set[str]) -> None:
    for name in LEFT_OUT:
        assert name.startswith("tests/graphs/") or any(test.startswith(name) for test in found), (
            f"tests/left_out.yaml: no test begins with {name}"
        )


def test_what_finds_it_sooner_runs(found: set[str]) -> None:
    tested = {test for test in found if not test.startswith(tuple(LEFT_OUT))}
    for row in ROWS:
        assert row["runs"] in ("ci", "later", "nightly")
        assert row["alone"]
        for name in row["sooner"]:
            assert any(test.startswith(f"tests/{name}") for test in tested), (
                f"tests/left_out.yaml: {name} is no test of make test"
            )
