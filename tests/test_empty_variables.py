"""Variables that are set to nothing (NAME=): every verdict knows them, and safe deletes what no
user can want."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rocm_autopatch.policy import builtin, lint
from rocm_autopatch.probe import variables
from tests.conftest import Interpreter, run_with_site
from tests.messages import Golden
from tests.test_probe import MEASURE, rows
from tests.test_probe import cli as probe

GFX, JIT, DEBUG = "HSA_OVERRIDE_GFX_VERSION", "AITER_JIT_DIR", "TORCH_COMPILE_DEBUG"
SEEN = "import os; print(*map(os.environ.get, {!r}))"
# No GPU at all: programs that must not have one are started so.
WANTED = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
TORCHES = list(lint.versions("2.4..2.15"))


def deleted() -> set[str]:
    """The variables whose empty text safe deletes."""
    return {row[0] for row in builtin.POLICIES["safe"]["empty"]}


def seen(names: list[str]) -> str:
    return SEEN.format(names)


def test_they_are_deleted_and_named(python: Interpreter, golden: Golden) -> None:
    names = [GFX, JIT, DEBUG, "HIP_VISIBLE_DEVICES"]
    done = python.run("-c", seen(names), env=dict.fromkeys(names, ""))
    assert done.stdout == "None None None \n"
    golden(done.stderr)
    values = {GFX: "11.0.0", JIT: "/jit", DEBUG: "1"}
    done = python.run("-c", seen([*values]), env=values)
    assert done.stdout == "11.0.0 /jit 1\n"


def test_whoever_set_them(python311: Interpreter, tmp_path: Path) -> None:
    """A value that a user gave outranks a deletion, but nobody can want this one."""
    env = {DEBUG: "", GFX: ""}
    given = {**env, "ROCM_AUTOPATCH_GIVEN": f"{DEBUG},{GFX}"}
    assert python311.value(seen([DEBUG, GFX]), env=given) == "None None"
    (tmp_path / "baseline").write_bytes(b"")
    done = run_with_site(tmp_path, python311.path, "-c", seen([DEBUG, GFX]), **env)
    assert done.stdout == "None None\n"
    assert "not changed" not in done.stderr


def test_a_program_that_empties_one_for_its_children(python311: Interpreter) -> None:
    child = f"import os, subprocess, sys; os.environ[{GFX!r}] = ''; "
    child += f"subprocess.run([sys.executable, '-c', {seen([GFX])!r}])"
    done = python311.run("-c", child, env={GFX: ""})
    assert done.stdout == "None\n"
    assert done.stderr.count("rocm_autopatch:") == 1


def test_keep_and_observe(python311: Interpreter) -> None:
    for switch in ({"ROCM_AUTOPATCH_KEEP": GFX}, {"ROCM_AUTOPATCH": "observe"}):
        assert python311.value(seen([GFX]), env={GFX: "", **switch}) == ""


def test_other_rules_see_it_as_unset(python311: Interpreter, tmp_path: Path) -> None:
    policy = tmp_path / "team.yaml"
    policy.write_text(
        "version: 1\nextends: [safe]\nenv:\n"
        "  HSA_OVERRIDE_GFX_VERSION: {default: '11.0.1'}\n"
        "  OURS: [{delete_empty: true, since: '9.0'}, {default: a}]\n"
    )
    env = {GFX: "", "OURS": "", "ROCM_AUTOPATCH_POLICY": str(policy)}
    assert python311.value(seen([GFX, "OURS"]), env=env) == "11.0.1 "


def test_a_start_that_fails_gives_them_back(python311: Interpreter, tmp_path: Path) -> None:
    policy = tmp_path / "team.yaml"
    policy.write_text("version: 1\nextends: [safe]\nenv: {ÜBER: {set: a}}\n")
    env = {GFX: "", "ROCM_AUTOPATCH_POLICY": str(policy)}
    assert python311.value(seen([GFX]), env=env) == ""


def test_baked(python311: Interpreter) -> None:
    plan = python311.site_packages / "rocm_autopatch" / "baked.plan"
    python311.run("-m", "rocm_autopatch", "bake", "--image", "rocm/pytorch:latest")
    try:
        done = python311.run("-c", seen([GFX]), env={GFX: ""})
        assert done.stdout == "None\n", done.stderr
    finally:
        plan.unlink()


def test_explain(python311: Interpreter, golden: Golden) -> None:
    for name, env in (("empty", {GFX: ""}), ("not set", {})):
        done = python311.run("-m", "rocm_autopatch", "explain", GFX, "--no-torch", env=env)
        golden(done.stdout, name)


def test_probe(torch_python: Interpreter) -> None:
    names = [GFX, "TORCH_LOGS", "TORCHINDUCTOR_COMPILE_THREADS", "HIP_VISIBLE_DEVICES"]
    status, found = probe(torch_python, **dict.fromkeys(names, ""))
    assert {rows(found)[name]["verdict"] for name in names} == {"crashes"}
    assert found["left"] == ["HIP_VISIBLE_DEVICES"]
    assert status == 1


def test_every_verdict_knows_the_empty_text() -> None:
    document = variables.verdict_table()
    for name, cases in document["variables"].items():
        for torch in TORCHES:
            verdict = variables.of_variable(name, "", torch)
            said = "Only the value 1 turns it on" in verdict.why or verdict.verdict == "not read"
            told = any("" in case.get("is", ()) for case in cases)
            assert (
                said or told or name in variables.empty_verdicts() or name in document["parsed"]
            ), name


@pytest.mark.parametrize("torch", TORCHES)
def test_safe_deletes_what_nobody_can_want(torch: str) -> None:
    document = variables.verdict_table()
    names = {*document["variables"], *document["parsed"], *variables.empty_verdicts()}
    dangerous = {name for name in names if variables.of_variable(name, "", torch).dangerous}
    assert dangerous - deleted() == WANTED
    assert not deleted() & WANTED


def test_it_deletes_nothing_else() -> None:
    for name in deleted():
        found = [variables.of_variable(name, "", torch) for torch in TORCHES]
        assert any(one.dangerous and one.source for one in found), name


def test_against_the_real_torch(torch_python: Interpreter) -> None:
    """The config of torch 2.13 is the same with the empty text where a verdict says so."""
    feeds = variables.fed_keys("2.13")
    said = {
        name: variables.of_variable(name, "", "2.13.0", environment={})
        for name in feeds
        if name in variables.empty_verdicts()
    }
    same = [name for name, one in said.items() if "same as no value" in one.why]
    off = [name for name, one in said.items() if "turns it off" in one.why]
    assert len(same) > 5
    assert len(off) > 40
    targets = ["torch._inductor.config", "torch._dynamo.config", "torch._functorch.config"]
    asked = [{name: ""} for name in (*same, *off)]
    arguments = (MEASURE, json.dumps(targets), json.dumps(asked))
    answers = json.loads(torch_python.run(*arguments, env={"ROCM_AUTOPATCH": "off"}).stdout)
    changed = {next(iter(env)) for env, answer in zip(asked, answers) if answer}
    # Its value is "", which is as false as None.
    assert changed & {*same} == {"TORCHINDUCTOR_CK_DIR"}
    # Torch 2.13 does not read the first two, and ships the third one off.
    other = {"FAKE_ALLOW_META", "INDUCTOR_CUDA_BACKEND_GENERATE_TEST_RUNNER_CODE"}
    assert {*off} - changed == {*other, "TORCHINDUCTOR_ORIGAMI"}


def test_torch_is_imported(torch_python: Interpreter) -> None:
    """With this one, the import of torch itself fails."""
    env = {"TORCH_LOGS": "", "ROCM_AUTOPATCH_LOG": "quiet"}
    assert torch_python.value("import torch; print(torch.__version__[:4])", env=env) == "2.13"
    done = torch_python.run("-c", "import torch", env={**env, "ROCM_AUTOPATCH": "off"}, check=False)
    assert done.returncode == 1
