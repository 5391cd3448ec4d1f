"""What a user has for a program that hangs right now: ROCM_AUTOPATCH_WATCHDOG, and the stacks of a
process that runs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rocm_autopatch.cli import main
from rocm_autopatch.cli import stacks as command
from rocm_autopatch.patches.watchdog import on_demand
from rocm_autopatch.startup import watchdog_variable
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.programs import line_of, program_file
from tests.running import run_command

VARIABLE = watchdog_variable.VARIABLE
HANGS = program_file("stacks/hangs.py")


def watchdog(python: Interpreter, *options: str, **env: str) -> dict[str, Any]:
    done = run_command(python, "status", "--json", "--no-torch", *options, env=env)
    report: dict[str, Any] = json.loads(done.stdout)
    rows = {row["name"].partition(".")[2]: row for row in report["watchdog"]}
    return {**report, "watchdog": rows}


class TestVariable:
    @pytest.mark.parametrize(
        ("value", "seconds"), [("10", 10), ("0.5", 0.5), (" 10 ", 10), ("off", False), ("0", False)]
    )
    def test_without_yaml(self, python311: Interpreter, value: str, seconds: Any) -> None:
        report = watchdog(python311, **{VARIABLE: value})
        assert report["errors"] == []
        row = report["watchdog"]["warn_after"]
        assert (row["wanted"], row["layer"], row["status"]) == (seconds, VARIABLE, "waiting")
        assert ("abort_after" in report["watchdog"]) == (seconds is False)
        # It changes nothing that is compiled.
        assert report["digest"] == watchdog(python311)["digest"]

    def test_beside_a_policy(self, python311: Interpreter, tmp_path: Path) -> None:
        """It takes the place of one field, and off of the whole watchdog."""
        policy = tmp_path / "team.yaml"
        policy.write_text(
            "version: 1\nextends: safe\n"
            "patches: {watchdog: {warn_after: 600, dump_stacks: true, abort_after: 900}}\n"
        )
        env = {"ROCM_AUTOPATCH_POLICY": str(policy)}
        rows = watchdog(python311, **env, **{VARIABLE: "10"})["watchdog"]
        wanted = {name: row["wanted"] for name, row in rows.items()}
        assert wanted == {"warn_after": 10, "dump_stacks": True, "abort_after": 900}
        rows = watchdog(python311, **env, **{VARIABLE: "off"})["watchdog"]
        wanted = {name: row["wanted"] for name, row in rows.items()}
        assert wanted == {"warn_after": False, "dump_stacks": True, "abort_after": None}
        # What keeps the policy's field out keeps the variable out.
        kept = {"ROCM_AUTOPATCH_KEEP": "warn_after", VARIABLE: "10"}
        row = watchdog(python311, **env, **kept)["watchdog"]["warn_after"]
        assert row["reason"] == "ROCM_AUTOPATCH_KEEP"

    @pytest.mark.parametrize("value", ["soon", "-1", "nan", "inf", "1e99", "10s", "120,off"])
    def test_wrong(self, python311: Interpreter, value: str, golden: Golden) -> None:
        report = watchdog(python311, **{VARIABLE: value})
        assert report["watchdog"]["warn_after"]["wanted"] == 120
        (error,) = report["errors"]
        assert error.startswith(
            f"{VARIABLE}={value} is neither a number of seconds above 0 nor off"
        )
        # The start goes on, with one line, in the process that imports torch.
        code = "import torch, torch.version; print('on')"
        done = python311.run("-c", code, env={VARIABLE: value})
        assert done.stdout == "on\n"
        lines = [line for line in done.stderr.splitlines() if VARIABLE in line]
        assert len(lines) == 1
        if value == "soon":
            golden(lines[0])

    def test_a_process_without_torch_reads_nothing(self, python311: Interpreter) -> None:
        code = "import sys; print([n for n in sys.modules if 'watchdog' in n])"
        done = python311.run("-c", code, env={VARIABLE: "soon"})
        assert (done.stdout, done.stderr) == ("[]\n", "")

    def test_baked(self, fresh: Interpreter) -> None:
        baked = run_command(fresh, "bake")
        assert baked.returncode == 0, baked.stderr
        report = watchdog(fresh, **{VARIABLE: "10"})
        assert report["baked"]
        assert report["watchdog"]["warn_after"]["wanted"] == 10

    def test_a_policy_without_a_watchdog(self, python311: Interpreter, tmp_path: Path) -> None:
        policy = tmp_path / "team.yaml"
        policy.write_text("version: 1\nname: team\nextends: []\n")
        env = {"ROCM_AUTOPATCH_POLICY": str(policy), VARIABLE: "10"}
        note = (
            f"{VARIABLE} has no effect: no policy here has a watchdog "
            "(rocm-autopatch help watchdog)"
        )
        assert note in watchdog(python311, **env)["notes"]
        assert note not in watchdog(python311, **{VARIABLE: "10"})["notes"]


@contextlib.contextmanager
def hanging(
    python: Interpreter, place: Path, how: str, **env: str
) -> Iterator[subprocess.Popen[str]]:
    """A program that hangs. It ends well when the block ends."""
    busy = place / "busy"
    busy.touch()
    with open(place / "stderr", "w") as stderr:
        process = subprocess.Popen(
            [python.path, HANGS, how, busy],
            env=python.environment({"TORCHINDUCTOR_CACHE_DIR": str(place / "cache"), **env}),
            cwd=place,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        end = time.monotonic() + 200
        while not (place / "busy.reached").exists():
            assert process.poll() is None, (place / "stderr").read_text()
            assert time.monotonic() < end
            time.sleep(0.05)
        yield process
        busy.unlink()
        assert process.communicate(timeout=100)[0].endswith("[2.0, 2.0, 2.0]\n")
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def stacks(python: Interpreter, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(python, "stacks", *words)


class TestStacks:
    def test_in_a_compile(self, torch_python: Interpreter, tmp_path: Path) -> None:
        with hanging(torch_python, tmp_path, "in Python", API_KEY="sesame-street") as process:
            listed = stacks(torch_python)
            assert f"{process.pid}  {torch_python.path} {HANGS} in Python" in listed.stdout
            done = stacks(torch_python, str(process.pid))
            again = stacks(torch_python, str(process.pid), "--json")
        assert (done.returncode, done.stderr) == (0, "")
        assert f'  File "{HANGS}", line ' in done.stdout
        assert " in wait\n" in done.stdout
        assert "sesame" not in listed.stdout + done.stdout
        *_, line, hint = done.stdout.splitlines()
        assert hint.startswith("next time: ")
        number = line_of(HANGS, "def model(")
        assert re.match(
            rf"rocm_autopatch: a compile has lasted .* s: model \({HANGS}:{number}\), compile 0/0; "
            r"in the backend, stuck; at .*hangs\.py:\d+ in wait; to stop it: ",
            line,
        )
        assert f"{VARIABLE}=10" in hint
        # The second answer has not the first one's.
        found = json.loads(again.stdout)
        assert found["pid"] == process.pid
        assert len(found["compiles"]) == 1
        assert sum("(most recent call first)" in one for one in found["stacks"]) == 2
        # All of it went to the program's own stderr, too.
        said = (tmp_path / "stderr").read_text()
        assert said.count("rocm_autopatch: a compile has lasted") == 2
        assert said.count(" in wait\n") == 2

    def test_where_no_python_can_answer(self, torch_python: Interpreter, tmp_path: Path) -> None:
        """C code holds the interpreter's lock."""
        with hanging(torch_python, tmp_path, "in C") as process:
            done = stacks(torch_python, str(process.pid))
        assert done.returncode == 0
        assert " in wait\n" in done.stdout

    def test_after_a_compile(self, torch_python: Interpreter, tmp_path: Path) -> None:
        with hanging(torch_python, tmp_path, "afterwards") as process:
            # The watchdog's thread ends.
            time.sleep(2.5)
            done = stacks(torch_python, str(process.pid))
        assert done.returncode == 0
        assert " in wait\n" in done.stdout
        assert f"no compile is under way in process {process.pid}, or " in done.stdout
        assert "(most recent call first)" not in (tmp_path / "stderr").read_text()

    @pytest.mark.parametrize(
        "env", [{"ROCM_AUTOPATCH": "off"}, {"ROCM_AUTOPATCH": "observe"}, {VARIABLE: "off"}]
    )
    def test_nobody_is_harmed(
        self, torch_python: Interpreter, tmp_path: Path, env: dict[str, str]
    ) -> None:
        """A process without the handler would end by the signal."""
        with hanging(torch_python, tmp_path, "in Python", **env) as process:
            done = stacks(torch_python, str(process.pid))
            assert (done.returncode, done.stdout) == (1, "")
            assert str(process.pid) not in stacks(torch_python).stdout
        assert f"process {process.pid} can't be asked: " in done.stderr

    def test_forks_and_programs_that_took_the_signal(self, torch_python: Interpreter) -> None:
        done = torch_python.run(program_file("stacks/taken.py"))
        assert "seen\n" in done.stdout
        child, parent, closed, offered, told = json.loads(done.stdout.splitlines()[-1])
        # The child has a file of its own, and its stacks are not in its parent's.
        assert child == [True, True, 0]
        assert parent == 0
        # Where the program has closed the descriptor, and another file has its number.
        assert closed == ["mine", 1]
        # Where the program has a handler for the signal.
        assert (offered, told) == (False, 1)
        assert "Traceback" not in done.stderr


def test_who_can_not_be_asked(python311: Interpreter, golden: Golden) -> None:
    done = stacks(python311, str(os.getpid()))
    assert (done.returncode, done.stdout) == (1, "")
    golden(done.stderr)
    done = stacks(python311, str((1 << 31) - 1))
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no process" in done.stderr
    for wrong in ("x", "-1", "0", "1.5"):
        assert stacks(python311, wrong).returncode == 2


def test_who_may_not_be_looked_into(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root, too, may not look into each process: from a container without the capability for it."""

    def refuse(pid: int) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(command, "_find_memories", refuse)
    assert main(["stacks", "1"]) == 1
    said = capsys.readouterr().err
    assert "process 1 may not be looked into from here" in said
    assert "another user" not in said


def test_the_signal_is_the_same_in_each_libc() -> None:
    assert on_demand.SIGNAL == 53
    assert signal.SIGRTMIN + 8 < on_demand.SIGNAL < signal.SIGRTMAX - 8
