"""Processes that are started, waited for with a limit, and ended with all that they started.

Also what happens to them if this process is told to end.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

# How long a command may take to end after SIGTERM, and how long what it left behind may take.
_GRACE_S = 2.0
LEFT_OVER_S = 5.0
# The exit status of a command that was interrupted.
INTERRUPTED = 130
# prctl(2): what this process's descendants leave behind becomes its own child.
_SET_CHILD_SUBREAPER = 36
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunningCommand:
    """A process in a group of its own, which is waited for in a thread.

    Popen.wait with a timeout looks only every 50 ms. Without a timeout it waits for ever for a
    process that is stuck in a GPU's driver. ``seconds`` is how long it ran, ``status`` is its exit
    status, negative if a signal ended it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.began = time.perf_counter()
        self.seconds = 0.0
        self.status = 0
        self._over = threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self.status = self.process.wait()
        self.seconds = time.perf_counter() - self.began
        self._over.set()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._over.is_set()

    def ends(self, within_s: float) -> bool:
        """Whether it ends by itself."""
        return self._over.wait(within_s)

    def kill(self) -> bool:
        """End the process and its group. Returns whether that worked."""
        self.seconds = time.perf_counter() - self.began
        _signal(self.process, signal.SIGTERM)
        if not self._over.wait(_GRACE_S):
            _signal(self.process, signal.SIGKILL)
        return self._over.wait(LEFT_OVER_S)


def start(
    program: Sequence[str],
    environment: Mapping[str, str],
    stdout: BinaryIO,
    stderr: BinaryIO,
    directory: Path | None = None,
) -> RunningCommand:
    """Start *program* without input, in a session of its own, so that all of it can be ended.

    It runs in *directory*, None for this process's. Raises OSError.
    """
    _adopt()
    command = RunningCommand(
        subprocess.Popen(
            program,
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    )
    _started[command.process.pid] = command, frozenset(environment.values())
    return command


# By their session, the commands that were started and not ended with all that they started, and the
# values in their environments.
_started: dict[int, tuple[RunningCommand, frozenset[str]]] = {}
# The children that this process had before it started a command.
_others: set[int] = set()


def _adopt() -> None:
    """Become the parent of what a command leaves behind, whatever session it has put itself in."""
    if all(command.is_over for command, _ in [*_started.values()]):
        _others.clear()
        _others.update(pid for pid, _, parent, _ in _table() if parent == os.getpid())
    # Most commands start no such process.
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end_left_over(mark: str, grace_s: float) -> None:
    """Kill the processes that a command has left behind: they would disturb the next one.

    They are found by *mark*, a text in the environment that the command was given: Inductor's
    compile workers have sessions of their own, and have it, too. A process with another environment
    is found by the command's session. One with another session, too, has become our child: it is
    ended once no other command runs. They get *grace_s* seconds to end by themselves.
    """
    patience = time.monotonic() + grace_s
    while True:
        left = _left_over(mark)
        if not left:
            for session, (command, values) in [*_started.items()]:
                if command.is_over and any(mark in value for value in values):
                    _started.pop(session, None)
            return
        now = time.monotonic()
        if now >= patience:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if now >= patience + LEFT_OVER_S:
            return  # It is stuck in a driver, where no signal ends it.
        time.sleep(0.02)


def _left_over(mark: str) -> set[int]:
    sessions = set()
    alone = True
    for session, (command, values) in [*_started.items()]:
        if any(mark in value for value in values):
            sessions.add(session)
        else:
            alone = alone and command.is_over
    found = set(marked(mark))
    for pid, state, parent, session in _table():
        adopted = parent == os.getpid() and session != os.getsid(0)
        adopted = adopted and pid not in _others and pid not in _started
        if state in "ZX":
            if adopted:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        elif session in sessions or (adopted and alone):
            found.add(pid)
    return found


def _table() -> list[tuple[int, str, int, int]]:
    """Each process: its id, state, parent and session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                text = Path("/proc", entry, "stat").read_bytes()
                # The name before may have blanks and parentheses.
                state, parent, _, session = text.rpartition(b")")[2].split()[:4]
                found.append((int(entry), state.decode(), int(parent), int(session)))
    return found


def marked(text: str) -> list[int]:
    """The processes that have *text* in their environment, without zombies."""
    mark = os.fsencode(text)
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/environ", "rb") as stream:
                    if mark in stream.read():
                        found.append(int(entry))
            except OSError:
                pass  # It has ended meanwhile, or belongs to another user.
    return found


@contextlib.contextmanager
def taken_interrupts() -> Iterator[None]:
    """In it, the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt.

    So a command can end what it has started, remove what only it needs, and keep what it knows.
    Further ones are ignored: they would stop this clean-up. A signal that is ignored stays so.
    Outside of the main thread, Python lets nobody take signals, and none is taken.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _INTERRUPTS:
            # nohup ignores SIGHUP. None: a handler that is not Python's could not be put back.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(*_: object) -> None:
    for number in _INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def how_it_ended(status: int) -> str:
    """An exit status in words; a negative one is a signal's."""
    return f"exit status {status}" if status >= 0 else f"ended by {_signal_name(-status)}"


def _signal_name(number: int) -> str:
    """``SIGKILL``, or ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
