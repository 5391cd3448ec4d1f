"""Policies of a fleet or a namespace: in directories that ROCM_AUTOPATCH_SITE names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPORT, Interpreter, label_torch, make_hooked, run_with_site
from tests.messages import Golden
from tests.names import MI30X_IMAGE, SITE

SEEN = "import os; print(*[os.environ.get(n, '-') for n in ('A', 'B', 'C')])"


def policy(directory: Path, name: str, **env: str) -> Path:
    """A policy file that sets variables."""
    directory.mkdir(exist_ok=True)
    rows = "".join(f"  {key}: {{set: {value!r}}}\n" for key, value in env.items())
    file = directory / f"{name}.yaml"
    file.write_text(f"version: 1\nname: {name}\nenv:\n{rows}")
    return file


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A fleet's directory: it sets A, B and C."""
    policy(tmp_path / "fleet", "fleet", A="fleet", B="fleet", C="fleet")
    return tmp_path / "fleet"


@pytest.fixture
def bare(wheel: Path, tmp_path: Path) -> Interpreter:
    """The wheel beside a torch for the CPU."""
    made = make_hooked(tmp_path / "bare", wheel)
    label_torch(made.site_packages, "2.13.0+cpu", None)
    return made


@pytest.fixture
def namespace(tmp_path: Path) -> Path:
    """A namespace's, as a ConfigMap is mounted: it sets B and C."""
    directory = tmp_path / "namespace"
    policy(directory, "namespace", B="namespace", C="namespace")
    (directory / "..2026").mkdir()
    (directory / "namespace.yaml").rename(directory / "..2026" / "namespace.yaml")
    (directory / "..data").symlink_to("..2026")
    (directory / "namespace.yaml").symlink_to("..data/namespace.yaml")
    return directory


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """/etc/rocm-autopatch of an image or a Pod: it sets C."""
    policy(tmp_path / "own", "own", C="own")
    return tmp_path / "own"


def report(python: Interpreter, **env: str) -> dict[str, Any]:
    env = {"ROCM_AUTOPATCH_LOG": "quiet", **env}
    found: dict[str, Any] = json.loads(python.value(REPORT, env=env))
    return found


def test_layers(python: Interpreter, fleet: Path, namespace: Path, own: Path) -> None:
    env = {SITE: f"{fleet}:{namespace}"}
    code = f"{SEEN}; {REPORT}"
    done = run_with_site(own, python.path, "-c", code, **env)
    seen, text = done.stdout.splitlines()
    assert seen == "fleet namespace own"
    said = json.loads(text)
    assert said["policies"] == ["safe", "fleet", "namespace", "own"]
    assert said["sites"] == [str(fleet), str(namespace), "/etc/rocm-autopatch"]
    assert said["errors"] == []
    assert done.stderr == ""
    # In the other order, the other one decides. Empty parts are none.
    env = {SITE: f":{namespace}::{fleet}:"}
    assert run_with_site(own, python.path, "-c", SEEN, **env).stdout == "fleet fleet own\n"
    # A policy that a user names is above all of them.
    top = policy(fleet.parent / "top", "top", C="top")
    env["ROCM_AUTOPATCH_POLICY"] = str(top)
    assert run_with_site(own, python.path, "-c", SEEN, **env).stdout == "fleet fleet top\n"


def test_a_named_image_and_a_directory(python311: Interpreter, fleet: Path) -> None:
    env = {SITE: str(fleet), "ROCM_AUTOPATCH_IMAGE": MI30X_IMAGE}
    assert python311.value(SEEN, env=env) == "fleet fleet fleet"


def test_without_a_rocm_build_no_directory_is_looked_at(bare: Interpreter, fleet: Path) -> None:
    (fleet / "fleet.yaml").write_text("- wrong")
    done = bare.run("-c", SEEN, env={SITE: f"{fleet}:/missing"})
    assert (done.stdout, done.stderr) == ("- - -\n", "")


def test_a_directory_without_policies_costs_no_yaml(python: Interpreter, tmp_path: Path) -> None:
    """As where a namespace has no ConfigMap."""
    (tmp_path / "..data").mkdir()
    code = "import sys; print('yaml' in sys.modules, 'rocm_autopatch.policy' in sys.modules)"
    for env in ({}, {"ROCM_AUTOPATCH_IMAGE": MI30X_IMAGE}):
        done = python.run("-c", code, env={SITE: str(tmp_path), **env})
        assert (done.stdout, done.stderr) == ("False False\n", "")
        said = report(python, **{SITE: str(tmp_path), **env})
        assert (said["policies"], said["active"]) == (["safe"], True)
    without = report(python)
    assert without["sites"] == ["/etc/rocm-autopatch"]


def test_the_name_of_the_image(python311: Interpreter, fleet: Path, namespace: Path) -> None:
    (fleet / "image").write_text("rocm/pytorch:latest\n")
    (namespace / "image").write_text(f"{MI30X_IMAGE}\n")
    env = {SITE: f"{fleet}:{namespace}"}
    fact = report(python311, **env)["facts"]["image"]
    assert (fact["value"], fact["source"]) == (MI30X_IMAGE, str(namespace / "image"))
    fact = report(python311, ROCM_AUTOPATCH_IMAGE="a/b:c", **env)["facts"]["image"]
    assert fact["source"] == "ROCM_AUTOPATCH_IMAGE"
    # That of the image itself is more specific.
    (fleet.parent / "own").mkdir()
    (fleet.parent / "own" / "image").write_text("a/b:c\n")
    done = run_with_site(
        fleet.parent / "own", python311.path, "-c", REPORT, ROCM_AUTOPATCH_LOG="quiet", **env
    )
    assert json.loads(done.stdout)["facts"]["image"]["value"] == "a/b:c"


def test_image_records(python311: Interpreter, fleet: Path) -> None:
    (fleet / "images.yaml").write_text(
        "version: 1\nimages:\n  - image: a/b:c\n    policy: debug\n"
        "    known_issues: [{issue: it is slow, source: ours}]\n"
    )
    said = report(python311, ROCM_AUTOPATCH_IMAGE="a/b:c", **{SITE: str(fleet)})
    assert said["policies"] == ["safe", "debug", "fleet"]
    assert said["known_issues"][-1]["text"] == "it is slow"


@pytest.mark.parametrize("how", ["wrong", "others"])
def test_a_directory_that_can_t_be_read(
    python311: Interpreter, fleet: Path, how: str, golden: Golden
) -> None:
    """Nothing is applied, as with a policy that can't be read."""
    if how == "wrong":
        (fleet / "fleet.yaml").write_text("version: 1\nenv: []\n")
    else:
        (fleet / "fleet.yaml").chmod(0o666)
    env = {SITE: f"{fleet.parent}/other:{fleet}", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    (fleet.parent / "other").mkdir()
    code = "import os; print(os.environ.get('A'), os.environ['TORCHINDUCTOR_MAX_AUTOTUNE'])"
    done = python311.run("-c", code, env=env)
    assert done.stdout == "None 1\n"
    golden(done.stderr, FLEET=fleet)
    said = report(python311, **env)
    assert (said["active"], len(said["errors"])) == (False, 1)
    # A command says it, too.
    shown = python311.run("-m", "rocm_autopatch", "policies", "show", "safe", env=env, check=False)
    assert shown.returncode == 1
    assert shown.stdout == ""


def test_the_variable_is_not_obeyed_where_it_may_be_another_s(
    python311: Interpreter, fleet: Path
) -> None:
    for flag in ("-E", "-I"):
        done = python311.run(flag, "-c", f"{SEEN}; {REPORT}", env={SITE: str(fleet)})
        seen, text = done.stdout.splitlines()
        said = json.loads(text)
        assert (seen, said["policies"]) == ("- - -", ["safe"])
        assert said["notes"] == [f"{SITE} is ignored under python -E or -I"]


def test_commands_name_them(python311: Interpreter, fleet: Path, golden: Golden) -> None:
    policy(fleet, "wrong")
    (fleet / "wrong.yaml").write_text("version: 1\nenv: {A: {put: 1}}\n")
    env = {SITE: str(fleet)}
    command = ("-m", "rocm_autopatch")
    checked = python311.run(*command, "check", env=env, check=False)
    assert checked.returncode == 1
    golden(checked.stdout, "check", FLEET=fleet)
    (fleet / "wrong.yaml").unlink()
    shown = python311.run(*command, "status", "--no-torch", "--all", env=env)
    assert f"sites: {fleet} < /etc/rocm-autopatch" in " ".join(shown.stdout.split())
    explained = python311.run(*command, "explain", "A", "--no-torch", env=env)
    golden(explained.stdout, "explain", FLEET=fleet)


def test_evidence(python311: Interpreter, tmp_path: Path) -> None:
    """A fleet's evidence is looked at, and a file that is wrong is an error."""
    (tmp_path / "evidence").mkdir()
    (tmp_path / "evidence" / "machine.json").write_text("{}")
    said = report(python311, **{SITE: str(tmp_path)})
    assert said["policies"] == ["safe"]
    (error,) = said["errors"]
    assert error.startswith(f"evidence is not used: {tmp_path}/evidence/machine.json: ")


class TestBaked:
    """A plan that is baked with the variable is for that value of it, and for those files."""

    @pytest.fixture
    def baked(self, python311: Interpreter, fleet: Path) -> Any:
        env = {SITE: str(fleet)}
        python311.run("-m", "rocm_autopatch", "bake", env=env)
        yield env
        (python311.site_packages / "rocm_autopatch" / "baked.plan").unlink()

    def test_used(self, python311: Interpreter, fleet: Path, baked: dict[str, str]) -> None:
        code = f"import sys; {SEEN}; print('yaml' in sys.modules); {REPORT}"
        done = python311.run("-c", code, env={**baked, "ROCM_AUTOPATCH_LOG": "quiet"})
        seen, yaml, text = done.stdout.splitlines()
        assert (seen, yaml) == ("fleet fleet fleet", "False")
        said = json.loads(text)
        assert (bool(said["baked"]), said["sites"][0]) == (True, str(fleet))

    def test_without_the_variable(self, python311: Interpreter, baked: dict[str, str]) -> None:
        said = report(python311)
        assert (said["baked"], said["policies"]) == ("", ["safe"])
        assert said["notes"] == ["the baked plan is not used: it was baked for another " + SITE]
        done = python311.run("-c", SEEN)
        assert (done.stdout, done.stderr) == ("- - -\n", "")

    def test_a_changed_file(
        self, python311: Interpreter, fleet: Path, baked: dict[str, str]
    ) -> None:
        policy(fleet, "fleet", A="later")
        done = python311.run("-c", SEEN, env=baked)
        assert done.stdout == "later - -\n"
        assert f"{fleet}/fleet.yaml has changed" in done.stderr

    def test_a_new_file(self, python311: Interpreter, fleet: Path, baked: dict[str, str]) -> None:
        policy(fleet, "second", C="second")
        done = python311.run("-c", SEEN, env=baked)
        assert done.stdout == "fleet fleet second\n"
        assert f"the files in {fleet} have changed" in done.stderr


def test_a_directory_that_is_not_there_is_not_baked(python311: Interpreter, tmp_path: Path) -> None:
    env = {SITE: f"{tmp_path}/missing"}
    done = python311.run("-m", "rocm_autopatch", "bake", env=env, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{SITE}: {tmp_path}/missing: No such file or directory" in done.stderr
    assert not (python311.site_packages / "rocm_autopatch" / "baked.plan").exists()
