"""What a command leaves behind is ended, whatever environment, group and session it has."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rocm_autopatch.cli import command_line, main
from rocm_autopatch.support import processes
from tests.conftest import Interpreter
from tests.running import wait_for_text

# How a command starts a child that outlives it: each writes its process id.
SLEEP = "sh -c 'echo $$ > FILE; exec sleep 300'"
LEFT: dict[str, str] = {
    "as it is": f"{SLEEP} &",
    "another environment": f"env -i {SLEEP} &",
    "another environment and group": f"set -m; env -i {SLEEP} &",
    "another session": f"setsid {SLEEP} &",
    "another environment and session": f"setsid env -i {SLEEP} &",
    "a grandchild": f'setsid env -i sh -c "{SLEEP.replace("$", chr(92) + "$")} & sleep 0.2" &',
}
# Overwrites its environment, as setproctitle does.
TITLE = """
import ctypes, os, sys, time
start, end = (int(open("/proc/self/stat").read().rpartition(")")[2].split()[n]) for n in (47, 48))
ctypes.memset(start, 0, end - start)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(300)
"""


def ended(pid: int) -> bool:
    """Whether a process is gone, or a zombie that its parent has to reap."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def start(script: str, mark: str, tmp_path: Path) -> processes.RunningCommand:
    environment = {**os.environ, "MARK": mark}
    with (tmp_path / "output").open("wb") as output:
        return processes.start(["bash", "-c", script], environment, output, output)


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_is_ended(name: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = start(LEFT[name].replace("FILE", str(file)), str(tmp_path), tmp_path)
    pid = int(wait_for_text(file))
    assert command.ends(30)
    assert not ended(pid)
    processes.end_left_over(str(tmp_path), 0)
    assert ended(pid)


def test_a_changed_title(tmp_path: Path) -> None:
    file, program = tmp_path / "pid", tmp_path / "title.py"
    program.write_text(TITLE)
    command = start(f"{sys.executable} {program} {file} &", str(tmp_path), tmp_path)
    pid = int(wait_for_text(file))
    assert command.ends(30)
    processes.end_left_over(str(tmp_path), 0)
    assert ended(pid)


def test_others_are_left_alone(tmp_path: Path) -> None:
    """A child that this process has for another purpose, and another command that runs."""
    mine = subprocess.Popen(["sleep", "300"], start_new_session=True)
    other = start("sleep 300", "another mark", tmp_path)
    command = start("true", str(tmp_path), tmp_path)
    assert command.ends(30)
    processes.end_left_over(str(tmp_path), 0)
    assert mine.poll() is None
    assert not other.is_over
    other.kill()
    processes.end_left_over("another mark", 0)
    assert mine.poll() is None
    mine.kill()
    assert mine.wait() == -signal.SIGKILL


@pytest.mark.parametrize(
    "command",
    [
        "tune --budget 5m --out FILE -- PROGRAM",
        "ab --toggle epilogue_fusion --repeat 2 -- PROGRAM",
        "probe",
        "status",
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to_all", [True, False])
def test_interrupted_before_the_first_run(
    command: str, number: signal.Signals, to_all: bool, torch_python: Interpreter, tmp_path: Path
) -> None:
    """While it asks a fresh interpreter: it ends that one, and leaves nothing in /tmp."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    program = [str(torch_python.path), "-c", "import time; time.sleep(300)"]
    best = tmp_path / "best.yaml"
    words = [
        more
        for word in command.split()
        for more in (program if word == "PROGRAM" else [word.replace("FILE", str(best))])
    ]
    running = subprocess.Popen(
        [str(torch_python.path), "-m", "rocm_autopatch", *words],
        env={
            **os.environ,
            "TMPDIR": str(scratch),
            "ROCM_AUTOPATCH_POLICY": "safe",
        },
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    patience = time.monotonic() + 120
    while not [*scratch.iterdir()] or not children(running.pid):
        assert time.monotonic() < patience
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    asked = children(running.pid)
    time.sleep(0.3)
    (os.killpg if to_all else os.kill)(running.pid, number)
    out, err = running.communicate(timeout=60)
    name = words[0]
    # What status says before it imports torch may be there.
    verdict = "safe applies: ROCM_AUTOPATCH_POLICY=safe\n" if name == "status" else ""
    assert (running.returncode, out or verdict) == (processes.INTERRUPTED, verdict), err
    more = " before the first run" if name in ("tune", "ab") else ""
    assert err == f"rocm-autopatch {name}: interrupted{more}\n"
    # torch itself leaves torchinductor_USER behind.
    assert [*scratch.glob("rocm-autopatch*")] == []
    assert all(map(ended, asked))


def test_a_terminated_cache_warm_leaves_nothing(torch_python: Interpreter, tmp_path: Path) -> None:
    """The command gets the signal; its status is ours."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    ready = tmp_path / "ready"
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(300)"
    running = subprocess.Popen(
        [
            *(str(torch_python.path), "-m", "rocm_autopatch", "cache", "warm", "--"),
            *(str(torch_python.path), "-S", "-c", code),
        ],
        env={
            **os.environ,
            "TMPDIR": str(scratch),
            "ROCM_AUTOPATCH_POLICY": "safe",
            "ROCM_AUTOPATCH_CACHE": str(tmp_path / "caches"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    patience = time.monotonic() + 120
    while not ready.exists():
        assert time.monotonic() < patience
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    started = children(running.pid)
    running.terminate()
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (128 + signal.SIGTERM, ""), err
    assert [*scratch.iterdir()] == []
    assert started
    assert all(map(ended, started))


def children(pid: int) -> list[int]:
    """The processes that any thread of a process has started."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(one) for one in (thread / "children").read_text().split()]
    return found


def test_interrupted_while_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def parser(_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    before = [signal.getsignal(number) for number in processes._INTERRUPTS]
    monkeypatch.setattr(command_line, "make_parser", parser)
    assert main(["status"]) == processes.INTERRUPTED
    assert capsys.readouterr() == ("", "rocm-autopatch: interrupted\n")
    assert [signal.getsignal(number) for number in processes._INTERRUPTS] == before


@pytest.mark.parametrize("command", ["run --report REPORT --", "cache warm --"])
def test_ctrl_c_without_a_terminal_reaches_the_command(
    command: str, python311: Interpreter, tmp_path: Path
) -> None:
    """As under "docker run" without -t, where it comes to the first process alone."""
    ready = tmp_path / "ready"
    words = command.replace("REPORT", str(tmp_path / "report")).split()
    code = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(300)"
    running = subprocess.Popen(
        [
            *(str(python311.path), "-m", "rocm_autopatch", *words),
            *(str(python311.path), "-S", "-c", code),
        ],
        env={**python311.environment(), "ROCM_AUTOPATCH_CACHE": str(tmp_path / "caches")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    patience = time.monotonic() + 120
    while not ready.exists():
        assert time.monotonic() < patience
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGINT, err
    assert "KeyboardInterrupt" in err
