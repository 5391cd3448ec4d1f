"""A variable names a policy or a directory that is not there: what applies without it applies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.policy import plan_file
from tests.conftest import MAX, REPORT, Interpreter, run_with_site
from tests.messages import Golden
from tests.names import SITE

NAMED = "ROCM_AUTOPATCH_POLICY"
SEEN = f"import os; print(os.environ.get({MAX!r}), os.environ.get('TEAM'))"
TEAM = "version: 1\nname: team\nenv: {TEAM: {set: 'ours', why: ours}}\n"


def report(python: Interpreter, *flags: str, **env: str) -> dict[str, Any]:
    env = {"ROCM_AUTOPATCH_LOG": "quiet", **env}
    found: dict[str, Any] = json.loads(python.value(REPORT, *flags, env=env))
    return found


@pytest.fixture
def team(tmp_path: Path) -> Path:
    """A directory with a policy that sets TEAM."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "team.yaml").write_text(TEAM)
    return tmp_path / "site"


@pytest.mark.parametrize("name", ["saf", "SAFE", "performnace", "xyzzy", "off", "None", "é\t"])
def test_a_policy(python311: Interpreter, name: str, golden: Golden) -> None:
    done = python311.run("-c", SEEN, env={MAX: "1", NAMED: name})
    assert done.stdout == "None None\n"
    error, applies = done.stderr.splitlines()
    assert "policy safe applies" in applies
    golden(error)


@pytest.mark.parametrize(
    "name",
    ["site/taem.yaml", "site/nofile.yaml", "site/safe.yml", "nowhere/a.yaml", "site/x", "site"],
)
def test_a_file(python311: Interpreter, team: Path, name: str, golden: Golden) -> None:
    done = python311.run("-c", SEEN, env={MAX: "1", NAMED: f"{team.parent}/{name}"})
    assert done.stdout == "None None\n"
    error, applies = done.stderr.splitlines()
    assert "policy safe applies" in applies
    golden(error, DIRECTORY=team.parent)


@pytest.mark.parametrize("name", ["policies", "{}/siet", "{}/site/team.yaml", "{}/none/none"])
def test_a_directory(python311: Interpreter, team: Path, name: str, golden: Golden) -> None:
    """The others that the variable names are read."""
    env = {MAX: "1", SITE: f"{name.format(team.parent)}:{team}"}
    done = python311.run("-c", SEEN, env=env)
    assert done.stdout == "None ours\n"
    error, _ = done.stderr.splitlines()
    golden(error, DIRECTORY=team.parent)
    found = report(python311, **env)
    assert (found["sites"][0], found["policies"]) == (str(team), ["safe", "team"])
    assert found["errors"] == [error.removeprefix("rocm_autopatch: ")]


def test_a_name_too_long_to_be_there(python311: Interpreter) -> None:
    for name in ("x" * 5_000, "/" + "x" * 5_000, "x/" * 3_000):
        done = python311.run("-c", SEEN, env={MAX: "1", NAMED: name, SITE: f"/{name}"})
        assert done.stdout == "None None\n"
        assert len(done.stderr.splitlines()) == 3


def test_every_python(python: Interpreter) -> None:
    assert python.value(SEEN, env={MAX: "1", NAMED: "saf"}) == "None None"


def test_it_is_said_once(python311: Interpreter) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])"
    done = python311.run("-c", code, env={NAMED: "saf", SITE: "/none"})
    policy, site = sorted(done.stderr.splitlines())
    assert (NAMED in policy, SITE in site) == (True, True)


def test_a_site_still_applies(python311: Interpreter, team: Path) -> None:
    done = run_with_site(team, python311.path, "-c", SEEN, **{MAX: "1", NAMED: "saf"})
    assert done.stdout == "None ours\n"


@pytest.mark.parametrize("name", ["saf", "/none/team.yaml"])
def test_what_an_image_s_record_chooses_still_applies(fresh: Interpreter, name: str) -> None:
    """Without PyYAML: the wheel has its plan."""
    index = fresh.site_packages / "rocm_autopatch" / "plans" / "images.index"
    index.write_bytes(plan_file.pack({"a:b": "performance"}))
    (fresh.site_packages / "yaml.py").write_text("1 / 0\n")
    found = report(fresh, ROCM_AUTOPATCH_IMAGE="a:b", **{NAMED: name})
    assert found["policies"] == ["safe", "performance"]
    assert found["reason"] == "images.yaml lists a:b"
    (error,) = found["errors"]
    assert error.startswith(f"{NAMED}={name}: ")


class TestBaked:
    """A baked plan is what applies without the variable."""

    @pytest.fixture
    def baked(self, python311: Interpreter, team: Path) -> Iterator[Interpreter]:
        policy = team / "team.yaml"
        python311.run("-m", "rocm_autopatch", "bake", "--policy", policy, "--image", "a:b")
        yield python311
        (python311.site_packages / "rocm_autopatch" / "baked.plan").unlink()

    @pytest.mark.parametrize("name", ["saf", "/none/team.yaml"])
    def test_a_policy(self, baked: Interpreter, name: str) -> None:
        found = report(baked, **{NAMED: name})
        assert (found["policies"], bool(found["baked"])) == (["safe", "team"], True)
        assert [error.partition(": ")[0] for error in found["errors"]] == [f"{NAMED}={name}"]

    def test_a_directory(self, baked: Interpreter) -> None:
        found = report(baked, **{SITE: "/none"})
        assert (found["policies"], bool(found["baked"])) == (["safe", "team"], True)
        assert [error.partition(": ")[0] for error in found["errors"]] == [SITE]

    def test_what_is_there_is_another_wish(self, baked: Interpreter, team: Path) -> None:
        found = report(baked, **{NAMED: "debug"})
        assert (found["policies"], found["baked"]) == (["safe", "debug"], "")
        (team / "second").mkdir()
        found = report(baked, **{SITE: str(team / "second")})
        assert (found["policies"], found["baked"]) == (["safe"], "")


def test_commands(python311: Interpreter, golden: Golden) -> None:
    env = {NAMED: "saf", MAX: "1"}
    command = ("-m", "rocm_autopatch")
    status = python311.run(*command, "status", "--no-torch", env=env, check=False)
    assert status.returncode == 1
    assert "did you mean safe?" in " ".join(status.stdout.split())
    explained = python311.run(*command, "explain", MAX, "--no-torch", env=env)
    assert f"{MAX}: '1' -> unset" in explained.stdout
    golden(explained.stderr, "explain")
    # What is written for later is not guessed.
    baked = python311.run(*command, "bake", env=env, check=False)
    assert (baked.returncode, baked.stdout) == (1, "")
    golden(baked.stderr, "bake")


def test_a_usual_start_loads_nothing_for_it(python311: Interpreter, team: Path) -> None:
    code = "import sys; print({'difflib', 'rocm_autopatch.startup.misnamed'} & {*sys.modules})"
    (team / "team.yaml").unlink()
    for env in ({}, {NAMED: "performance"}, {SITE: str(team)}):
        assert python311.value(code, env=env) == "set()"


def test_a_difflib_of_the_program_s_own(python311: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "difflib.py").write_text("1 / 0\n")
    done = python311.run("-c", SEEN, env={MAX: "1", NAMED: "saf", "PYTHONPATH": str(tmp_path)})
    assert done.stdout == "None None\n"
    assert "no such policy. Built-in policies: " in done.stderr


def test_passwords_are_not_printed(python311: Interpreter) -> None:
    """Also not where an address is no name of a policy."""
    env = {NAMED: "https://user:secret@host/team.yaml", "ROCM_AUTOPATCH_CACHE": "s3://a:secret@b"}
    said = python311.run("-c", "pass", env=env).stderr
    assert "https://***@host/team.yaml: there is no such file" in said
    assert "secret" not in said
