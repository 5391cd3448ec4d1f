"""What is in .github: the workflows call our make targets, on the Pythons that we name.

``make lint`` checks the files by GitHub's own schemas, and the workflows by zizmor.
"""

from __future__ import annotations

import re
from configparser import ConfigParser
from typing import Any

import pytest
import yaml

from experiments.__main__ import read_manifest
from tests.conftest import ROOT, VERSIONS

WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in ROOT.glob(".github/workflows/*.yml")
}
TEST = WORKFLOWS["test"]["jobs"]
NIGHTLY = WORKFLOWS["nightly"]["jobs"]


def matrix(job: str) -> list[str]:
    found: list[str] = TEST[job]["strategy"]["matrix"]["python"]
    return found


def runs(workflow: dict[str, Any]) -> list[str]:
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    return [step["run"] for step in steps if "run" in step]


def test_they_call_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = [
        re.findall(r"\bmake ([a-z-]+)", line)
        for workflow in WORKFLOWS.values()
        for line in runs(workflow)
    ]
    used = {name for names in called for name in names}
    tests = {"test", "test-later", "test-all"}
    assert used == {"lint", "quick", "starts", "oldest", "dist", "experiment", "fresh"} | tests
    assert used <= targets


def test_the_night_runs_all_that_the_manifest_says() -> None:
    # YAML 1.1 reads the key "on" as true.
    assert {"schedule", "workflow_dispatch"} <= WORKFLOWS["nightly"][True].keys()
    assert any(line.endswith(" make test-all") for line in runs(WORKFLOWS["nightly"]))
    named = set()
    for job in NIGHTLY.values():
        for line in (step["run"] for step in job["steps"] if "run" in step):
            for name in re.findall(r"\bmake experiment NAME=(\S+|\$\{\{.*\}\})$", line):
                of_matrix = re.fullmatch(r"\$\{\{ matrix\.(\w+) \}\}", name)
                named |= set(job["strategy"]["matrix"][of_matrix[1]]) if of_matrix else {name}
    assert named == {name for name, one in read_manifest().items() if one.nightly}
    assert {"matrix", "torture"} <= named


def test_the_pythons_are_those_of_the_tests() -> None:
    assert matrix("starts") == list(VERSIONS)
    for job in (TEST["all"], NIGHTLY["all"], NIGHTLY["experiments"]):
        (setup,) = [step for step in job["steps"] if "python-version" in step.get("with", {})]
        # The one that runs the tests is the last one.
        assert set(setup["with"]["python-version"].split()) == set(VERSIONS)
        assert setup["with"]["python-version"].split()[-1] == "3.11"
    setup_cfg = ConfigParser()
    setup_cfg.read(ROOT / "setup.cfg")
    named = re.findall(r":: (3\.\d+)$", setup_cfg["metadata"]["classifiers"], re.MULTILINE)
    assert {*VERSIONS, *matrix("quick")} <= set(named)


def test_no_job_may_write_but_the_one_that_releases() -> None:
    for name, jobs in (("test", TEST), ("nightly", NIGHTLY)):
        assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
        assert not any("permissions" in job for job in jobs.values())
    assert WORKFLOWS["release"]["permissions"] == {}


@pytest.mark.parametrize("name", ["wrong", "image"])
def test_reports_are_asked_for_the_status(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    (field,) = [field for field in form["body"] if field.get("id") == "status"]
    assert field["attributes"]["label"] == "rocm-autopatch status --json"
    assert field["validations"]["required"] is True
