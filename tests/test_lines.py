"""What a start writes to stderr: once in a job, short, harmless, and never waiting."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MAX, Interpreter
from tests.messages import Golden

ONE = {MAX: "1"}


@pytest.mark.parametrize("name", ["RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_one_rank_speaks(python311: Interpreter, name: str) -> None:
    code = f"import os; print(os.environ.get({MAX!r}))"
    for rank, lines in (("0", 1), ("", 1), ("1", 0), ("511", 0)):
        done = python311.run("-c", code, env={**ONE, name: rank})
        assert done.stdout == "None\n"
        assert len(done.stderr.splitlines()) == lines


def test_other_ranks_keep_errors_to_the_record(python311: Interpreter, golden: Golden) -> None:
    code = "import rocm_autopatch as r; print(*r.status()['errors'])"
    done = python311.run("-c", code, env={"ROCM_AUTOPATCH_POLICY": "absent", "RANK": "3"})
    golden(done.stdout)
    assert done.stderr == ""


def test_an_error_is_said_once_under_observe(python311: Interpreter, golden: Golden) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''])"
    env = {"ROCM_AUTOPATCH": "observe", "ROCM_AUTOPATCH_POLICY": "absent"}
    golden(python311.run("-c", code, env=env).stderr)


@pytest.mark.parametrize("way", ["script", "module"])
@pytest.mark.parametrize("policy", ["safe", "absent"])
def test_commands_have_output_of_their_own(python: Interpreter, way: str, policy: str) -> None:
    command: list[str | Path] = [python.path.parent / "rocm-autopatch"]
    if way == "module":
        command = [python.path, "-m", "rocm_autopatch"]
    done = subprocess.run(
        [*command, "policies"],
        env={"PATH": os.environ["PATH"], **ONE, "ROCM_AUTOPATCH_POLICY": policy},
        capture_output=True,
        text=True,
        cwd=python.path.parent,
    )
    assert "safe" in done.stdout
    assert done.stderr == ""


def test_a_program_of_that_name_in_its_arguments_is_none(
    python311: Interpreter, golden: Golden
) -> None:
    golden(python311.run("-c", "", "-m", "rocm_autopatch", env=ONE).stderr)


def test_no_line_is_longer_than_500_characters(python311: Interpreter) -> None:
    for name in ("ROCM_AUTOPATCH_IMAGE", "ROCM_AUTOPATCH_POLICY", "ROCM_AUTOPATCH_ASSUME"):
        (line,) = python311.run("-c", "", env={**ONE, name: "x" * 70_000}).stderr.splitlines()[:1]
        assert line.startswith("rocm_autopatch: ")
        assert len(line) <= 500


def test_a_terminal_is_not_controlled(python311: Interpreter, golden: Golden) -> None:
    odd = "a\x1b]0;x\x07\x9b2J\u202eb\nc\udcff"
    done = subprocess.run(
        [python311.path, "-c", ""],
        env={**ONE, "ROCM_AUTOPATCH_IMAGE": odd, "LC_ALL": "C.UTF-8"},
        capture_output=True,
    )
    (line,) = done.stderr.decode("utf-8").splitlines()
    assert line.isprintable()
    assert "a\\x1b]0;x\\x07\\x9b2J\\u202eb c\\udcff" in line
    golden(line)


def _start_with_stderr(python: Interpreter, stderr: int, code: str = "print(1)") -> str:
    done = subprocess.run(
        [python.path, "-c", code],
        env=ONE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        timeout=30,
        text=True,
    )
    assert done.returncode == 0
    return done.stdout


@pytest.mark.parametrize("full", [65536, 65536 - 10])
def test_a_pipe_that_nobody_reads_holds_nothing_up(python: Interpreter, full: int) -> None:
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ if sys.version_info >= (3, 10) else 1031, 65536)
        os.write(write, b"x" * full)
        assert _start_with_stderr(python, write) == "1\n"
    finally:
        os.close(read)
        os.close(write)


def test_a_socket_gets_the_line(python311: Interpreter) -> None:
    import socket

    ours, its = socket.socketpair()
    with ours, its:
        _start_with_stderr(python311, its.fileno())
        assert ours.recv(1000).startswith(b"rocm_autopatch: ")


def test_a_pipe_that_was_closed_ends_nothing_without_python_s_signals(
    python311: Interpreter,
) -> None:
    # A program that has put SIGPIPE back, as many command-line tools do, and then imports torch.
    code = (
        "import signal; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "import os; os.environ.pop('ROCM_AUTOPATCH_SAID', None)\n"
        "from rocm_autopatch import startup; startup.say('x', 'y'); print(1)"
    )
    read, write = os.pipe()
    os.close(read)
    try:
        assert _start_with_stderr(python311, write, code) == "1\n"
    finally:
        os.close(write)


def test_a_regular_file_keeps_its_place(python311: Interpreter, tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        code = "import sys; sys.stderr.write('program\\n')"
        _start_with_stderr(python311, log.fileno(), code)
    ours, its = (tmp_path / "log").read_text().splitlines()
    assert ours.startswith("rocm_autopatch: ")
    assert its == "program"


@pytest.mark.parametrize("name", ["ROCM_AUTOPATCH_REPORT", "ROCM_AUTOPATCH_PROFILE"])
def test_a_report_that_can_t_be_had_costs_no_policy(
    python311: Interpreter, tmp_path: Path, name: str
) -> None:
    env = {**ONE, "ROCM_AUTOPATCH_REPORT": "", name: "relative", "ROCM_AUTOPATCH_LOG": "quiet"}
    code = f"import os; print(os.environ.get({MAX!r}), os.environ.get('TORCH_TRACE'))"
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [python311.path, "-c", code],
        env=env,
        cwd=tmp_path / "gone",
        preexec_fn=(tmp_path / "gone").rmdir,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.stdout == "None None\n"
