"""rocm-autopatch status on one screen: the verdict, what changes; --check and --policy."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.cli import foretold
from rocm_autopatch.patches import NAMES
from tests.conftest import HIP, MAX, Interpreter, label_torch, make_hooked
from tests.messages import Golden
from tests.running import QUIET, run_command, run_on_terminal, wait_for_text

CODE = """
import os
open(os.environ["MARK"], "w").write(str(os.getpid()))
if os.environ.get("GATE"):
    open(os.environ["GATE"]).read()
"""
SHORT = (("--line",), ("--check",), ("--textfile", "a.prom"))
KEEPS = {"ROCM_AUTOPATCH_KEEP": "recompile_limit"}


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """A torch that leaves a file where it is imported, and then waits at a gate."""
    made = make_hooked(tmp_path_factory.mktemp("marked"), wheel)
    (made.site_packages / "torch" / "__init__.py").write_text(CODE)
    return made


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "imported"


# One screen


def stable(text: str) -> str:
    """Without the name of the place of caches, which changes with the policy."""
    return re.sub(r"'/no/cache/[^']*'", "'/no/cache/PLACE'", text)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("policy", ["safe", "performance"])
def test_the_screen(python311: Interpreter, policy: str, columns: int, golden: Golden) -> None:
    """With and without a terminal, with and without colours, at each width."""
    command = ("-m", "rocm_autopatch", "status", "--no-torch")
    env = {
        **QUIET,
        **KEEPS,
        MAX: "1",
        "TERM": "xterm",
        "XDG_CACHE_HOME": "/no/cache",
        "TORCHINDUCTOR_COMPILE_THREADS": "3",
        "ROCM_AUTOPATCH_POLICY": policy,
        "ROCM_AUTOPATCH_ASSUME": "python=3.11.7",
    }
    on_terminal = run_on_terminal(python311, *command, env=env, columns=columns)
    golden(stable(on_terminal.replace("\x1b", "<ESC>")), "terminal")
    plain = run_on_terminal(python311, *command, env={**env, "NO_COLOR": "1"}, columns=columns)
    golden(stable(plain), "plain")
    piped = run_command(python311, *command[2:], env={**env, "COLUMNS": str(columns)}).stdout
    assert piped == plain
    assert len(plain.splitlines()) <= 24
    assert all(len(line) <= columns or "'/" in line for line in plain.splitlines())
    # What a terminal does not tell is 99 columns.
    assert (
        run_on_terminal(python311, *command, env={**env, "NO_COLOR": "1"})
        == run_command(python311, *command[2:], env=env).stdout
    )


def test_all_and_why(python311: Interpreter) -> None:
    env = {MAX: "1"}
    short, why, whole = (
        run_command(python311, "status", "--no-torch", *flag, env=env).stdout
        for flag in ((), ("--why",), ("--all",))
    )
    assert short.splitlines()[0] == why.splitlines()[0] == whole.splitlines()[0]
    reason = "SGLang's ROCm images set it"
    assert (reason in short, reason in why, reason in whole) == (False, True, True)
    report = json.loads(run_command(python311, "status", "--no-torch", "--json", env=env).stdout)
    entries = [row for part in ("env", "config", "compile_modes") for row in report[part]]
    assert all(row["name"] in whole for row in entries)
    issues = [" ".join(issue["text"].split()) for issue in report["known_issues"]]
    assert issues
    assert all(text.rstrip(".") in " ".join(whole.split()) for text in issues)
    assert f"{len(issues)} known issues: --all" in short
    # Each entry is on the screen, or counted.
    lines = [line for line in short.splitlines() if "  [" in line]
    (counted,) = (line for line in short.splitlines() if "change nothing here" in line)
    rows = sum(len(report[part]) for part in ("env", *NAMES))
    assert len(lines) + int(counted.split()[0]) == rows


def test_with_the_real_torch(torch_python: Interpreter, golden: Golden) -> None:
    """What is told of torch without importing it is what an import finds."""
    env = {MAX: "1", "COLUMNS": "80"}
    # How many compile workers torch starts of itself is the machine's.
    kept = {"ROCM_AUTOPATCH_KEEP": "ranks,compile_threads", "TORCHINDUCTOR_COMPILE_THREADS": "7"}
    shown = run_command(torch_python, "status", env={**env, **kept}).stdout
    assert len(shown.splitlines()) <= 24
    golden(shown)
    for policy in ("performance", "debug"):
        reports = [
            json.loads(
                run_command(
                    torch_python, "status", "--json", flag, "--policy", policy, env=env
                ).stdout
            )
            for flag in ("--torch", "--no-torch")
        ]
        looked, told = (
            {row["name"]: row for row in report["config"]}
            for report in (reports[0], foretold.foretell_values(reports[1], {MAX: "1"}))
        )
        own = {name: row["own"] for name, row in told.items() if "own" in row}
        assert len(own) > 8
        assert own == {name: looked[name]["before"] for name in own}
        skipped = {name for name, row in told.items() if row["status"] == "skipped"}
        assert skipped == {
            name
            for name, row in looked.items()
            if (row["status"], row["reason"]) == ("skipped", "this torch has no such key")
        }


def test_what_is_told_of_another_torch(
    python311: Interpreter, tmp_path: Path, golden: Golden
) -> None:
    """torch 2.4 has other names, and lacks keys. Of a torch nobody knows, nothing is told."""
    policy = tmp_path / "team.yaml"
    policy.write_text(
        "version: 1\nextends: safe\nconfig:\n"
        "  torch._inductor.config: {freezing: {default: true}}\n"
        "  torch._dynamo.config: {recompile_limit: {default: 99}}\n"
        "  torch.compiler.config: {job_id: {default: a}}\n"
    )
    for version, name in (("2.4.1+rocm6.1", "2.4"), ("3.7.0+rocm9.1", "unknown")):
        label_torch(tmp_path, version, HIP)
        env = {"PYTHONPATH": str(tmp_path), "ROCM_AUTOPATCH_POLICY": str(policy)}
        # Who sets a variable decides, and torch reads it.
        env["TORCHINDUCTOR_FREEZING"] = "1"
        shown = run_command(python311, "status", "--no-torch", env=env).stdout
        lines = [line for line in shown.splitlines() if "dynamo" in line or "freezing" in line]
        lines += [line for line in shown.splitlines() if "job_id" in line]
        golden("\n".join(lines), name)


# The verdict comes first


@contextlib.contextmanager
def at_the_gate(
    place: Interpreter, tmp_path: Path, mark: Path, *arguments: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A status whose torch waits at a gate, and the gate."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    env = {"PATH": os.environ["PATH"], **QUIET, "MARK": str(mark), "GATE": str(gate)}
    with subprocess.Popen(
        [place.path, "-m", "rocm_autopatch", "status", *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        # What it does not say in time, it does not say.
        late = threading.Timer(60, process.kill)
        late.start()
        try:
            yield process, gate
        finally:
            late.cancel()
            process.kill()
            # Who still waits at the gate goes through it.
            with contextlib.suppress(OSError):
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("flag", [(), ("--all",), ("--why",)])
def test_the_verdict_is_there_before_torch(
    place: Interpreter, tmp_path: Path, mark: Path, flag: tuple[str, ...]
) -> None:
    with at_the_gate(place, tmp_path, mark, *flag) as (process, gate):
        assert process.stdout is not None
        assert process.stdout.readline() == "safe applies: no image is named\n"
        assert process.poll() is None
        gate.write_text("")
        rest = process.stdout.read()
    # The stand-in has no such module, which is the first thing that is said of the import.
    assert "error: import torch._inductor.config" in rest or "import torch._ind" in rest
    assert "safe applies" not in rest


def test_who_reads_the_verdict_alone_pays_for_nothing_else(
    place: Interpreter, tmp_path: Path, mark: Path
) -> None:
    """``status | head -1``: the import of torch ends when nobody reads any more."""
    with at_the_gate(place, tmp_path, mark) as (process, _):
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("safe applies")
        imports = wait_for_text(mark)
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == ""
    assert not Path("/proc", imports).exists()


# Without torch


@pytest.mark.parametrize(
    "arguments",
    [
        *(("status", *flags) for flags in SHORT),
        ("status", "--no-torch"),
        ("status", "--policy", "perfromance"),
        ("explain", MAX),
        ("explain", "recompile_limit", "--json"),
        ("explain", f"{MAX[:-1]}"),
        ("statu",),
    ],
    ids=" ".join,
)
def test_what_does_not_import_torch(
    place: Interpreter, tmp_path: Path, mark: Path, arguments: tuple[str, ...]
) -> None:
    run_command(place, *arguments, env={"MARK": str(mark)}, cwd=tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("arguments", [*(("status", *flags) for flags in SHORT), ("explain", MAX)])
def test_what_does_if_asked(
    place: Interpreter, tmp_path: Path, mark: Path, arguments: tuple[str, ...]
) -> None:
    done = run_command(place, *arguments, "--torch", env={"MARK": str(mark)}, cwd=tmp_path)
    assert mark.exists()
    if "--line" in arguments:
        found = json.loads(done.stdout)
        assert (found["torch_imported"], found["errors"]) == (True, 1)
    if "--check" in arguments:
        assert (done.returncode, "import torch._inductor.config" in done.stderr) == (1, True)


def test_the_line_says_that_torch_was_not_imported(place: Interpreter) -> None:
    found = json.loads(run_command(place, "status", "--line").stdout)
    assert (found["torch_imported"], found["errors"], found["active"]) == (False, 0, True)


@pytest.mark.parametrize("name", ["recompile_limit", "memory_planning", MAX, "ranks"])
def test_explain_without_torch(python311: Interpreter, name: str, golden: Golden) -> None:
    done = run_command(python311, "explain", name)
    assert done.returncode == 0
    golden("\n".join(s for s in done.stdout.splitlines() if not s.startswith("  ")))


def test_explain_a_secret_of_the_digest(python311: Interpreter) -> None:
    """Of a variable that no policy names, tests/test_diff.py has what is said."""
    shown = run_command(
        python311, "explain", "TRITON_HOME_TOKEN", env={"TRITON_HOME_TOKEN": "hush"}
    )
    assert "hush" not in shown.stdout + shown.stderr
    assert "digest" in shown.stdout


# --check and --policy

WRONG = "version: 1\nenv: {A: 1}\n"


def checked(python: Interpreter, *arguments: str, **env: str) -> tuple[int, str, str]:
    done = run_command(python, "status", "--check", *arguments, env=env)
    return done.returncode, done.stdout, done.stderr


def test_check_in_force(python311: Interpreter, golden: Golden) -> None:
    for name, env in (
        ("safe", {}),
        ("performance", {"ROCM_AUTOPATCH_POLICY": "performance"}),
        ("image", {"ROCM_AUTOPATCH_IMAGE": "team/image:1"}),
    ):
        status, out, err = checked(python311, **env)
        assert (status, err) == (0, "")
        golden(out, name)


def test_check_not_in_force(
    python311: Interpreter, wheel: Path, tmp_path: Path, golden: Golden
) -> None:
    team = tmp_path / "team.yaml"
    team.write_text(WRONG)
    cpu = label_torch(tmp_path / "cpu", "2.13.0+cpu", None)
    old = label_torch(tmp_path / "old", "2.3.1+rocm6.0", HIP)
    none = make_hooked(tmp_path / "none", wheel)
    for file in (none.site_packages / "torch").iterdir():
        if file.is_file():
            file.unlink()
    cases: tuple[tuple[str, Interpreter, dict[str, str]], ...] = (
        ("off", python311, {"ROCM_AUTOPATCH": "off"}),
        ("observe", python311, {"ROCM_AUTOPATCH": "observe"}),
        ("no ROCm build", python311, {"PYTHONPATH": str(cpu)}),
        ("an old torch", python311, {"PYTHONPATH": str(old)}),
        ("no torch", none, {}),
        ("a wrong policy", python311, {"ROCM_AUTOPATCH_POLICY": str(team)}),
        ("no such policy", python311, {"ROCM_AUTOPATCH_POLICY": "saef"}),
        ("a wrong switch", python311, {"ROCM_AUTOPATCH": "perhaps"}),
    )
    for name, python, env in cases:
        status, out, err = checked(python, **env)
        assert (status, out, err.count("\n")) == (1, "", 1), name
        golden(err, name)
        # Without --check, a report is a report.
        # With a path of any length, it stands on one line.
        shown = run_command(python, "status", "--no-torch", env={**env, "COLUMNS": "500"})
        assert shown.returncode == ("policy" in name or "switch" in name or "old" in name)
        first, *others = shown.stdout.splitlines()
        # What stands against the policy is told once.
        assert not [one for one in others if first.partition(": ")[2] in one], name
        assert first.startswith(
            ("no policy applies: ", "safe would apply, but", "safe applies, wi")
        )


def test_as_if_a_policy_applied(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    team = tmp_path / "team.yaml"
    team.write_text("version: 1\nextends: safe\nenv: {A: {set: a}}\n")
    for name in ("performance", "team.yaml"):
        for env in ({}, {"ROCM_AUTOPATCH": "off"}, {"ROCM_AUTOPATCH": "observe"}):
            done = run_command(
                python311, "status", "--check", "--policy", name, env=env, cwd=tmp_path
            )
            assert (done.returncode, done.stderr) == (0, "")
            golden(done.stdout, name)
    found: dict[str, Any] = json.loads(
        run_command(
            *(python311, "status", "--json", "--no-torch", "--policy", "team.yaml"),
            cwd=tmp_path,
        ).stdout
    )
    assert found["policies"] == ["safe", "team"]
    assert found["env"][-1]["after"] == "a"
    # It would not apply where nothing can.
    cpu = label_torch(tmp_path / "cpu", "2.13.0+cpu", None)
    status, _, err = checked(python311, "--policy", "safe", PYTHONPATH=str(cpu))
    assert status == 1
    golden(err, "no ROCm build")


@pytest.mark.parametrize("name", ["perfromance", "teem.yaml", "off", ""])
def test_as_if_a_policy_that_is_not_there(
    python311: Interpreter, tmp_path: Path, name: str, golden: Golden
) -> None:
    (tmp_path / "team.yaml").write_text("version: 1\nextends: safe\n")
    done = run_command(python311, "status", "--policy", name, cwd=tmp_path)
    said, more = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert more.startswith("  more: ")
    golden(said + "\n")
