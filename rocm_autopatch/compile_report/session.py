"""Run a command for its report: what it gets in its environment, and what it has written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Callable

from rocm_autopatch.compile_report import (
    COMMAND,
    PROCESSES,
    PROFILE,
    STATUS,
    TRACE,
    TRACES,
    WANTED,
    unfinished_path,
)
from rocm_autopatch.support import masking
from rocm_autopatch.support.progress import pause_line

# How often a command is looked at while it runs.
LOOK_S = 0.5
_PASSED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


# As a shell has it.
NOT_FOUND = 127


class NotRun(Exception):
    """The command can't be run. ``status`` is what a shell would return: 126 or 127."""

    def __init__(self, why: str, status: int) -> None:
        super().__init__(why)
        self.status = status


def prepare_environment(
    report: Path | None, profile: Path | None, environment: dict[str, str]
) -> None:
    """Put into a command's environment where to write. Raises OSError if it can't write there."""
    if report is not None:
        _prepare_report(report, environment)
    else:
        # A start looks only for this variable first. So it is set even without a report.
        environment[WANTED] = ""
    if profile is not None:
        _prepare_profile(profile, environment)


def _prepare_report(directory: Path, environment: dict[str, str]) -> None:
    directory = directory.absolute()
    traces = directory / TRACES
    try:
        # A new file system has one directory.
        names = {*os.listdir(directory)} - {"lost+found"} if directory.is_dir() else set()
        if names and PROCESSES not in names:
            raise OSError(errno.ENOTEMPTY, "it is not empty, so name another directory")
        traces.mkdir(parents=True, exist_ok=True)
        # Try to write: for root, access(2) allows many files that can't be written. Links are not
        # followed, because they may lead to somebody else's file.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        os.close(os.open(directory / PROCESSES, flags, 0o666))
        if traces.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except OSError as error:
        raise OSError(f"{directory} can't be written: {error.strerror}") from None
    if any(traces.iterdir()) or (directory / PROCESSES).stat().st_size:
        raise OSError(
            f"{directory} already has a report: name another directory, or remove this one"
        )
    if environment.get(TRACE, "") == f"{environment.get(WANTED)}/{TRACES}":
        del environment[TRACE]  # Our own start has set it.
    environment[WANTED] = str(directory)
    # A start sets it, too. It is set here for interpreters without our hook.
    environment.setdefault(TRACE, str(traces))


def _prepare_profile(path: Path, environment: dict[str, str]) -> None:
    path = path.absolute()
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OSError(f"the directory {path.parent} does not exist or can't be written")
    environment[PROFILE] = str(path)
    for stale in (path, Path(unfinished_path(str(path)))):
        stale.unlink(missing_ok=True)


def run_command(
    words: Sequence[str],
    environment: dict[str, str],
    look: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> int:
    """Run a command and return its status: 128 plus the signal's number if a signal ended it.

    *look* is called with its process every LOOK_S seconds while it runs. Raises NotRun.
    """
    pause_line()  # The terminal is the command's.
    _record_command(words, environment)
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def hand_on(number: int, _: object) -> None:
        # The command may run before Popen returns.
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # A terminal sends these two to the command, too. The command decides, and we wait for it. Where
    # there is none, as under "docker run" without -t, they came to this process alone.
    mine = _wait_on_signal if _has_terminal() else hand_on
    before = {number: signal.signal(number, mine) for number in (signal.SIGINT, signal.SIGQUIT)}
    before.update({number: signal.signal(number, hand_on) for number in _PASSED})
    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, _wait_on_signal)
    # Each signal writes to it. One that comes just before a wait would not end it: Python calls its
    # handler only after that.
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    other = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    try:
        child = subprocess.Popen(words, env=environment)
        for number in early:
            child.send_signal(number)
        while (status := child.poll()) is None:
            if select.select([told], [], [], LOOK_S if look else None)[0]:
                os.read(told, 4096)
            if look:
                look(child)
    except FileNotFoundError:
        raise NotRun("not found", NOT_FOUND) from None
    except OSError as error:
        raise NotRun(str(error.strerror), 126) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(other)
        os.close(told)
        os.close(tell)
    return status if status >= 0 else 128 - status


def _record_command(words: Sequence[str], environment: dict[str, str]) -> None:
    """Add to the command's report, if there is one, what is run, where and when."""
    if environment.get(WANTED):
        row = {
            "command": masking.command(words),
            "time": time.time(),
            "host": os.uname().nodename,
            "version": metadata.version("rocm_autopatch"),
        }
        with contextlib.suppress(OSError):  # Its processes say why it can't be written.
            _append_row(Path(environment[WANTED]), {COMMAND: row})


def record_status(directory: Path, status: int) -> None:
    """Add the command's status to its report. Raises OSError."""
    _append_row(directory, {STATUS: status})


def _append_row(directory: Path, row: dict[str, Any]) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(directory / PROCESSES, flags)
    try:
        os.write(descriptor, json.dumps(row).encode("ascii") + b"\n")
    finally:
        os.close(descriptor)


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal, which sends Ctrl-C to a whole group."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _wait_on_signal(*_: object) -> None:
    # A function instead of SIG_IGN, because the command would inherit SIG_IGN.
    pass


def written_profiles(path: Path) -> tuple[list[Path], list[str]]:
    """The profiles that were written, and the names of those that were not finished.

    Unfinished files are removed.
    """
    if "%p" in path.name:
        head, _, tail = path.name.partition("%p")
        written = sorted(path.parent.glob(f"{head}[0-9]*{tail}"))
        begun = list(path.parent.glob(f".part-{head}[0-9]*{tail}"))
    else:
        written = [path] if path.exists() else []
        begun = [part] if (part := Path(unfinished_path(str(path)))).exists() else []
    for one in begun:
        one.unlink(missing_ok=True)
    return written, [one.name[len(".part-") :] for one in begun]
