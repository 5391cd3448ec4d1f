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


def ids(expression: str) -> set[str]:
    """The ids of the tests with these marks, in all files that the list names."""
    files = {name.partition("::")[0] for row in ROWS for name in (*row["tests"], *row["sooner"])}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"),
            *("-m", expression),
            *(f"tests/{file}" for file in sorted(files)),
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {line for line in done.stdout.splitlines() if line.startswith("tests/")}


@pytest.fixture(scope="module")
def tested() -> set[str]:
    """The ids of what "make test" runs."""
    return ids("not later and not nightly")


def test_each_is_there() -> None:
    found = {mark: ids(mark) for mark in ("later", "nightly")}
    for name, mark in LEFT_OUT.items():
        assert any(test.startswith(name) for test in found[mark]), (
            f"tests/left_out.yaml: no test begins with {name}"
        )


def test_what_finds_it_sooner_runs(tested: set[str]) -> None:
    for row in ROWS:
        assert row["runs"] in ("later", "nightly")
        assert row["alone"]
        for name in row["sooner"]:
            assert any(test.startswith(f"tests/{name}") for test in tested), (
                f"tests/left_out.yaml: {name} is no test of make test"
            )
