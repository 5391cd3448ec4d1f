"""The image's own variables, and a user's: told apart by the baseline that an overlay records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Interpreter, run_with_site
from tests.messages import Golden

MAX = "TORCHINDUCTOR_MAX_AUTOTUNE"
POINTWISE = "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE"
SEEN = f"import os; print(os.environ.get({MAX!r}), os.environ.get({POINTWISE!r}))"
REPORT = "import json, rocm_autopatch; print(json.dumps(rocm_autopatch.status()))"


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


def run(python: Interpreter, site: Path, code: str, **env: str) -> tuple[str, list[str]]:
    done = run_with_site(site, python.path, "-c", code, **env)
    return done.stdout, done.stderr.splitlines()


def rows(python: Interpreter, site: Path, **env: str) -> dict[str, dict[str, Any]]:
    out, _ = run(python, site, REPORT, ROCM_AUTOPATCH_LOG="quiet", **env)
    report = json.loads(out)
    assert report["baseline"] == "/etc/rocm-autopatch/baseline"
    return {row["name"]: row for row in report["env"]}


def test_the_image_s_own_is_removed(python: Interpreter, site: Path) -> None:
    out, said = run(python, site, SEEN, **{MAX: "1"})
    assert out == "None None\n"
    assert len(said) == 1
    row = rows(python, site, **{MAX: "1"})[MAX]
    assert (row["origin"], row["status"], row["after"]) == ("image", "applied", None)


def test_a_user_s_is_kept_and_said_once(python: Interpreter, site: Path, golden: Golden) -> None:
    env = {MAX: "1", POINTWISE: "1"}
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SEEN!r}])"
    out, said = run(python, site, child, **env)
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
    out, _ = run(python311, site, SEEN + "; print(os.environ['OURS'])", **env)
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


def test_status_and_explain_tell_which(python311: Interpreter, site: Path) -> None:
    env = {MAX: "1", POINTWISE: "1"}
    command = (python311.path, "-m", "rocm_autopatch")
    text = run_with_site(site, *command, "status", "--no-torch", **env).stdout
    assert f"  {MAX}: '1' (set by the image) -> unset  [delete applied, safe]\n" in text
    assert f"  {POINTWISE}: '1' (set by a user)  [delete given, safe] (a user set " in text
    assert "  baseline: /etc/rocm-autopatch/baseline\n" in text
    text = run_with_site(site, *command, "explain", POINTWISE, "--no-torch", **env).stdout
    assert text.startswith(f"{POINTWISE}: '1' (set by a user)  [delete given, safe]")


def test_without_a_baseline_nobody_knows(python311: Interpreter) -> None:
    done = python311.run("-m", "rocm_autopatch", "status", "--no-torch", env={MAX: "1"})
    assert f"  {MAX}: '1' -> unset  [delete applied, safe]\n" in done.stdout
    assert "baseline: none, so every value counts as the image's own" in done.stdout
    # Nothing is asked of it where nothing is set.
    done = python311.run("-m", "rocm_autopatch", "status", "--no-torch")
    assert "baseline" not in done.stdout


@pytest.mark.parametrize("data", [b"", b"\0\0", b"no equals sign\0", b"\xff" * 100])
def test_a_baseline_that_says_nothing(python311: Interpreter, site: Path, data: bytes) -> None:
    (site / "baseline").write_bytes(data)
    out, said = run(python311, site, "print(1)", **{MAX: "1"})
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
