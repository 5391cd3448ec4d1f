"""The image's own variables, and a user's: told apart by the baseline that an overlay records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.policy import load
from tests.conftest import MAX, REPORT, Interpreter, run_with_site
from tests.messages import Golden
from tests.names import GIVEN, POINTWISE
from tests.programs import program_file
from tests.running import run_at_site

SEEN = f"import os; print(os.environ.get({MAX!r}), os.environ.get({POINTWISE!r}))"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """/etc/rocm-autopatch of an overlay on an image that sets two variables."""
    directory = tmp_path / "site"
    directory.mkdir()
    (directory / "image").write_text("rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129\n")
    variables = {MAX: "1", "LINES": "a\nb=c", POINTWISE: "0", "PATH": "/bin"}
    text = "".join(f"{name}={value}\0" for name, value in variables.items())
    (directory / "baseline").write_bytes(text.encode() + b"ODD=\xff\xfe\0")
    return directory


def rows(python: Interpreter, site: Path, **env: str) -> dict[str, dict[str, Any]]:
    out, _ = run_at_site(python, site, REPORT, ROCM_AUTOPATCH_LOG="quiet", **env)
    report = json.loads(out)
    assert report["baseline"] == "/etc/rocm-autopatch/baseline"
    return {row["name"]: row for row in report["env"]}


def test_the_image_s_own_is_removed(python: Interpreter, site: Path) -> None:
    out, said = run_at_site(python, site, SEEN, **{MAX: "1"})
    assert out == "None None\n"
    assert len(said) == 1
    row = rows(python, site, **{MAX: "1"})[MAX]
    assert (row["origin"], row["status"], row["after"]) == ("image", "applied", None)


def test_a_user_s_is_kept_and_said_once(python: Interpreter, site: Path, golden: Golden) -> None:
    env = {MAX: "1", POINTWISE: "1"}
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SEEN!r}])"
    out, said = run_at_site(python, site, child, **env)
    assert out == "None 1\n"
    assert POINTWISE in said[0]
    golden("\n".join(said), "stderr")
    row = rows(python, site, **env)[POINTWISE]
    assert (row["origin"], row["status"], row["before"], row["after"]) == (
        "user",
        "given",
        "1",
        "1",
    )
    golden(row["reason"], "reason")


def test_what_the_image_does_not_set_is_a_user_s(python311: Interpreter, site: Path) -> None:
    name = "TORCH_COMPILE_DEBUG"
    assert rows(python311, site, **{name: "1"})[name]["status"] == "given"


def test_a_policy_may_insist(python311: Interpreter, site: Path) -> None:
    (site / "team.yaml").write_text(
        f"version: 1\nenv: {{{POINTWISE}: {{delete: true, insist: true}}, OURS: {{set: b}}}}\n"
    )
    env = {POINTWISE: "1", "OURS": "a"}
    out, _ = run_at_site(python311, site, SEEN + "; print(os.environ['OURS'])", **env)
    assert out == "None None\na\n"
    row = rows(python311, site, **env)[POINTWISE]
    assert (row["origin"], row["status"]) == ("user", "applied")
    # A later layer that says otherwise takes the insisting back.
    (site / "users.yaml").write_text(f"version: 1\nenv: {{{POINTWISE}: {{delete: true}}}}\n")
    assert rows(python311, site, **env)[POINTWISE]["status"] == "given"


def test_observe_tells_it_too(python311: Interpreter, site: Path) -> None:
    env = {MAX: "1", POINTWISE: "1", "ROCM_AUTOPATCH": "observe"}
    found = rows(python311, site, **env)
    assert [found[name]["status"] for name in (MAX, POINTWISE)] == ["observed", "given"]


def test_status_and_explain_tell_which(python311: Interpreter, site: Path, golden: Golden) -> None:
    env = {MAX: "1", POINTWISE: "1"}
    command = (python311.path, "-m", "rocm_autopatch")
    text = run_with_site(site, *command, "status", "--all", "--no-torch", **env).stdout
    words = (f"{MAX}:", f"{POINTWISE}:", "baseline:")
    golden(
        "\n".join(line for line in text.splitlines() if line.strip().startswith(words)), "status"
    )
    text = run_with_site(site, *command, "explain", POINTWISE, "--no-torch", **env).stdout
    golden(text.splitlines()[0], "explain")


def test_without_a_baseline_nobody_knows(python311: Interpreter, golden: Golden) -> None:
    done = python311.run("-m", "rocm_autopatch", "status", "--all", "--no-torch", env={MAX: "1"})
    words = (f"{MAX}:", "baseline:")
    lines = done.stdout.splitlines()
    golden("\n".join(line for line in lines if line.strip().startswith(words)))
    # Nothing is asked of it where nothing is set.
    done = python311.run("-m", "rocm_autopatch", "status", "--all", "--no-torch")
    assert "baseline" not in done.stdout


@pytest.mark.parametrize("data", [b"", b"\0\0", b"no equals sign\0", b"\xff" * 100])
def test_a_baseline_that_says_nothing(python311: Interpreter, site: Path, data: bytes) -> None:
    (site / "baseline").write_bytes(data)
    out, said = run_at_site(python311, site, "print(1)", **{MAX: "1"})
    assert out == "1\n"
    assert len(said) in (1, 2)


def test_baked(python311: Interpreter, site: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    steps = (
        f'"{python311.path}" -m rocm_autopatch bake --out "{plan}" >&2 && '
        f'cp "{plan}" "{python311.site_packages}/rocm_autopatch/baked.plan" && '
        f'"{python311.path}" -c "$0"; rm "{python311.site_packages}/rocm_autopatch/baked.plan"'
    )
    code = SEEN + "; import rocm_autopatch as r; print(bool(r._RECORD['baked']))"
    done = run_with_site(site, "sh", "-c", steps, code, **{MAX: "1", POINTWISE: "1"})
    assert done.stdout == "None 1\nTrue\n", done.stderr


def named(python: Interpreter, names: str, **env: str) -> dict[str, dict[str, Any]]:
    """The rows of a start without a baseline, where *names* are in ROCM_AUTOPATCH_GIVEN."""
    env = {GIVEN: names, "ROCM_AUTOPATCH_LOG": "quiet", **env}
    report = json.loads(python.value(REPORT, env=env))
    assert (report["baseline"], report["errors"]) == ("", [])
    return {row["name"]: row for row in report["env"]}


def test_what_is_named_is_a_user_s(python: Interpreter, golden: Golden) -> None:
    env = {MAX: "1", POINTWISE: "1", GIVEN: f"HF_TOKEN,{POINTWISE},PORT"}
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SEEN!r}])"
    done = python.run("-c", child, env=env)
    assert done.stdout == "None 1\n"
    golden(done.stderr, "stderr")
    found = named(python, **{"names": POINTWISE, MAX: "1", POINTWISE: "1"})
    told = [(found[n]["origin"], found[n]["status"], found[n]["after"]) for n in (MAX, POINTWISE)]
    assert told == [("unknown", "applied", None), ("user", "given", "1")]
    done = python.run("-m", "rocm_autopatch", "status", "--all", "--no-torch", env=env)
    words = (f"{MAX}:", f"{POINTWISE}:", "baseline:")
    lines = done.stdout.splitlines()
    golden("\n".join(line for line in lines if line.strip().startswith(words)), "status")


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        ("", False),
        (",, ,", False),
        (MAX, True),
        (f" {MAX} ,A", True),
        (f"{MAX}_POINTWISE", False),
        (f"X{MAX}", False),
        (f"{MAX}=1", False),
        (MAX.lower(), False),
        (f"a b,\udcff\u00e9,$(X),{MAX}", True),
        (",".join([*(f"NAME_{number}" for number in range(5000)), MAX]), True),
    ],
)
def test_names(python311: Interpreter, names: str, kept: bool) -> None:
    row = named(python311, names, **{MAX: "1"})[MAX]
    assert (row["status"], row["after"]) == (("given", "1") if kept else ("applied", None))


def test_what_is_not_named_is_not_known(python311: Interpreter) -> None:
    """An entrypoint or a shell may have set it: so "image_only" holds it back, as before."""
    name = "TORCH_COMPILE_DEBUG"
    row = named(python311, "OTHER", **{name: "1"})[name]
    assert (row["origin"], row["reason"]) == ("unknown", "no image is known to set it")
    row = named(python311, name, **{name: "1"})[name]
    assert (row["origin"], row["reason"]) == ("user", "a user set it, not the image")


def test_what_is_named_and_a_baseline(python311: Interpreter, site: Path) -> None:
    """The Pod says so, though the image sets the same value."""
    row = rows(python311, site, **{MAX: "1", GIVEN: MAX})[MAX]
    assert (row["origin"], row["status"]) == ("user", "given")
    row = rows(python311, site, **{MAX: "1", GIVEN: "OTHER"})[MAX]
    assert (row["origin"], row["status"]) == ("image", "applied")


def test_a_policy_may_insist_on_what_is_named(python311: Interpreter, tmp_path: Path) -> None:
    policy = tmp_path / "team.yaml"
    policy.write_text(f"version: 1\nenv: {{{MAX}: {{delete: true, insist: true}}}}\n")
    row = named(python311, MAX, **{MAX: "1", "ROCM_AUTOPATCH_POLICY": str(policy)})[MAX]
    assert (row["origin"], row["status"]) == ("user", "applied")


def test_names_cost_nothing_where_nothing_is_to_be_changed(python311: Interpreter) -> None:
    code = "import sys; print('rocm_autopatch.startup.baseline' in sys.modules)"
    for value, needed in (("1", "True"), ("0", "True"), (None, "False")):
        env = {GIVEN: MAX, **({MAX: value} if value else {})}
        assert python311.value(code, env=env) == needed


@pytest.mark.parametrize("how", ["", "spawn", "forkserver"])
def test_what_a_program_sets_for_its_children_is_kept(
    python: Interpreter, tmp_path: Path, golden: Golden, how: str
) -> None:
    program = program_file("baseline/parent.py")
    done = python.run(program, *filter(None, [how]), env={MAX: "1", POINTWISE: "1"})
    first, *others = done.stdout.splitlines()
    assert others == ([first] if how else [])
    assert first.startswith("1 given ")
    golden(first, "children")
    # Each worker would say the same.
    said = [line for line in done.stderr.splitlines() if "policy safe" not in line]
    assert len(said) == (0 if how else 1)
    golden("\n".join(said), "stderr")


def test_what_no_start_has_changed_is_the_image_s_in_a_child(
    python311: Interpreter, tmp_path: Path
) -> None:
    """The child's policy has a rule that the parent's does not have."""
    (tmp_path / "empty.yaml").write_text("version: 1\nextends: []\nenv: {OURS: {set: b}}\n")
    child = (
        "import os, subprocess, sys; del os.environ['ROCM_AUTOPATCH_POLICY']; "
        f"subprocess.run([sys.executable, '-c', {SEEN!r}])"
    )
    env = {MAX: "1", "ROCM_AUTOPATCH_POLICY": str(tmp_path / "empty.yaml")}
    assert python311.run("-c", child, env=env).stdout == "None None\n"


def test_without_a_baseline_what_no_known_image_sets_is_a_user_s(
    python: Interpreter, golden: Golden
) -> None:
    code = "import os; print(os.environ.get('TORCH_COMPILE_DEBUG'))"
    done = python.run("-c", code, env={"TORCH_COMPILE_DEBUG": "1"})
    assert done.stdout == "1\n"
    golden(done.stderr)


def test_safe_s_own_rules_know_what_images_set(python311: Interpreter) -> None:
    known = {setting.name for record in load.images() for setting in record.sets}
    for rule in load.top("safe").env:
        if rule.action not in ("default", "delete_empty"):
            assert rule.image_only == (rule.name not in known), rule.name


def test_a_command_that_is_run_for_a_report_starts_as_without_it(
    python311: Interpreter, tmp_path: Path
) -> None:
    code = "import rocm_autopatch\nfor row in rocm_autopatch.status()['env']: print(row['status'])"
    words = ("-m", "rocm_autopatch", "run", "--report", tmp_path / "report", "--")
    done = python311.run(*words, python311.path, "-c", code, env={MAX: "1"})
    assert "applied" in done.stdout.splitlines()
    assert "given" not in done.stdout.splitlines()
