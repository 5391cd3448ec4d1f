"""The line on a terminal that says what a long command does, and nothing of it anywhere else."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocm_autopatch.cli.cache import wording
from rocm_autopatch.startup import caches
from rocm_autopatch.support import progress
from tests.conftest import HIP, Interpreter, label_torch

ERASED = "\r\x1b[K"
SLEEP_S = 3
SLEEPS = f"import time; time.sleep({SLEEP_S})"


@dataclass
class Shown:
    """What came to a terminal: all bytes as text, when the first of the line came and when the
    command ended, in seconds after its start."""

    text: str
    first_s: float
    ended_s: float
    status: int

    @property
    def left(self) -> str:
        """What stays on the screen."""
        return re.sub(r"[^\n]*\r\x1b\[K", "", self.text.replace("\r\n", "\n"))

    @property
    def steps(self) -> list[str]:
        """What the line said, without the seconds."""
        lines = re.findall(r"\r\x1b\[K([^\r\n]+)(?=\r\x1b\[K)", self.text)
        return list(dict.fromkeys(re.sub(r", \d+ s$", "", line) for line in lines))


def on_terminal(python: Interpreter, *words: str | Path, piped: bool = False, **env: str) -> Shown:
    """Run a command on a terminal; *piped*: only stderr is one."""
    controller, terminal = pty.openpty()
    began = time.monotonic()
    first_s, text = 0.0, b""
    with subprocess.Popen(
        [python.path, "-m", "rocm_autopatch", *words],
        stdin=terminal,
        stdout=subprocess.PIPE if piped else terminal,
        stderr=terminal,
        env=python.environment({"TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1", **env}),
        cwd=python.path.parent,
    ) as process:
        os.close(terminal)
        with contextlib.suppress(OSError):
            while part := os.read(controller, 65536):
                text += part
                if b"rocm-autopatch " in text and not first_s:
                    first_s = time.monotonic() - began
        status = process.wait()
    os.close(controller)
    return Shown(text.decode(), first_s, time.monotonic() - began, status)


@pytest.fixture(scope="module")
def slow_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PYTHONPATH with a stand-in for torch whose import takes seconds."""
    directory = tmp_path_factory.mktemp("slow")
    label_torch(directory, "2.13.0+rocm7.0", HIP)
    with (directory / "torch" / "__init__.py").open("a") as stream:
        stream.write(f"\n{SLEEPS}\n")
    return directory


COMMANDS = {
    "explain": ("explain", "--torch", "cudagraphs"),
    "probe": ("probe",),
    "prove": ("prove", "--quick", "--out", "OUT.json"),
    "tune": ("tune", "--out", "OUT.yaml", "--", "PYTHON", "-c", "print('x: 1')"),
    "ab": (
        *("ab", "--toggle", "X=1", "--repeat", "1", "--warmup", "0", "--caches", "cold", "--"),
        *("PYTHON", "-c", SLEEPS),
    ),
}


def command(python: Interpreter, name: str, directory: Path) -> Iterator[str]:
    for word in COMMANDS[name]:
        yield word.replace("OUT", str(directory / "out")).replace("PYTHON", str(python.path))


@pytest.mark.parametrize("name", COMMANDS)
def test_on_a_terminal(python311: Interpreter, slow_torch: Path, tmp_path: Path, name: str) -> None:
    words = [*command(python311, name, tmp_path)]
    shown = on_terminal(python311, *words, PYTHONPATH=str(slow_torch))
    assert shown.first_s, shown.text
    # It came before what takes long had ended.
    assert shown.first_s < shown.ended_s - SLEEP_S + 0.5
    assert any(step.startswith(f"rocm-autopatch {name}: ") for step in shown.steps)
    assert not any(step in shown.left for step in shown.steps)
    done = python311.run(
        *("-m", "rocm_autopatch", *words), env={"PYTHONPATH": str(slow_torch)}, check=False
    )
    assert done.returncode == shown.status
    assert not re.search("[\r\x1b]", done.stdout + done.stderr)
    assert not any(step in done.stderr for step in shown.steps)


def test_runs_are_counted(python311: Interpreter, tmp_path: Path) -> None:
    shown = on_terminal(python311, *command(python311, "ab", tmp_path))
    assert re.search(r"ab: 0 of 2 runs: (base|X=1), cold, [012] s", shown.text), shown.steps
    assert re.search(r"ab: 1 of 2 runs, about \d s left: (base|X=1), cold", shown.text), shown.steps


def test_of_what_other_programs_do(python311: Interpreter, tmp_path: Path) -> None:
    """They have the terminal for themselves."""
    program = (str(python311.path), "-c", f"{SLEEPS}; print('theirs')")
    shown = on_terminal(python311, "run", "--report", tmp_path / "report", "--", *program)
    assert shown.steps == ["rocm-autopatch run: reading what the processes wrote"]
    assert shown.left.startswith("theirs\n")
    where = str(tmp_path / "caches")
    shown = on_terminal(python311, "cache", "warm", "--", *program, ROCM_AUTOPATCH_CACHE=where)
    assert "rocm-autopatch cache warm: looking at the caches" in shown.steps
    assert "rocm-autopatch cache warm: reading what the processes wrote" in shown.steps
    (mark,) = (tmp_path / "caches").glob(f"*/{caches.MARK}")
    (mark.parent / "inductor").mkdir(exist_ok=True)
    (mark.parent / "inductor" / "x").write_bytes(os.urandom(3 << 20))
    shown = on_terminal(
        python311, "cache", "pack", tmp_path / "packed.tar.gz", ROCM_AUTOPATCH_CACHE=where
    )
    assert "rocm-autopatch cache pack: looking at what there is to pack" in shown.steps, shown.text
    assert shown.left.startswith(str(tmp_path / "packed.tar.gz"))


def test_what_is_told_of_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one is packed before the line is written again."""
    told: list[object] = []
    monkeypatch.setattr(progress, "tell_step", lambda *step: told.append(step))
    wording.tell_packed(3 << 20, 5 << 20)
    assert told == [("working on the archive", 3, 5, "MiB")]


def test_nothing_beside_what_reads_a_pipe(python311: Interpreter, slow_torch: Path) -> None:
    words = ("explain", "--torch", "--json", "cudagraphs")
    shown = on_terminal(python311, *words, piped=True, PYTHONPATH=str(slow_torch))
    assert shown.text == ""


def test_a_terminal_that_can_not_erase(python311: Interpreter, slow_torch: Path) -> None:
    words = ("explain", "--torch", "cudagraphs")
    shown = on_terminal(python311, *words, PYTHONPATH=str(slow_torch), TERM="dumb")
    assert "\x1b" not in shown.text
    assert shown.text.splitlines()[0] == (
        "rocm-autopatch explain: a fresh interpreter imports torch"
    )


def test_a_step_in_words() -> None:
    def text(**more: object) -> str:
        return progress.ProgressStep("base, cold", 100.0, **more).as_text(112.4)  # type: ignore[arg-type]

    assert text() == "base, cold, 12 s"
    assert text(done=3, total=1200, units="runs") == "3 of 1,200 runs: base, cold, 12 s"
    left = {"left_s": 372.4, "done": 3, "units": "runs"}
    assert text(**left) == "3 runs, about 6 min left: base, cold, 12 s"
    assert text(**left, at_most=True) == "3 runs, at most 6 min left: base, cold, 12 s"


def test_a_narrow_terminal() -> None:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    line = progress.ProgressLine("rocm-autopatch ab", terminal, dumb=False)
    line.tell(progress.ProgressStep("ü" * 100, time.monotonic()))
    line.tell(progress.ProgressStep("too soon to be drawn", time.monotonic()))
    line.end()
    os.close(terminal)
    shown = ""
    with contextlib.suppress(OSError):
        while part := os.read(controller, 4096):
            shown += part.decode()
    _, drawn, last = shown.split(ERASED)
    assert (len(drawn), drawn[-3:], last) == (39, "...", "")
    assert drawn.startswith("rocm-autopatch ab: \\xfc")
    os.close(controller)
