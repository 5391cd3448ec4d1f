"""Which processes use a directory of caches now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def users_of(directory: Path) -> list[int]:
    """The processes that have a directory in their environment, open, or mapped; not this one.

    Only those count that may be looked at: of this user, and in this PID namespace. A process whose
    own start has set its variables has the old ones in ``/proc/PID/environ``. So it counts once it
    has opened or mapped something, or by its children: Inductor's workers, compilers.
    """
    marks = {os.fsencode(directory), os.fsencode(os.path.realpath(directory))}
    own = os.getpid()
    return [pid for pid in _running_processes() if pid != own and _uses_marks(pid, marks)]


def processes_text(processes: list[int]) -> str:
    """Processes in words."""
    more = f" and {len(processes) - 1} more" if len(processes) > 1 else ""
    return f"process {processes[0]}{more}"


def _running_processes() -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            yield int(entry)


def _uses_marks(pid: int, marks: set[bytes]) -> bool:
    return any(mark in text for text in _process_texts(pid) for mark in marks)


def _process_texts(pid: int) -> Iterator[bytes]:
    for name in ("environ", "maps"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as stream:
                yield stream.read()
        except OSError:
            pass  # It has ended meanwhile, or belongs to another user.
    try:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            yield os.readlink(os.fsencode(f"/proc/{pid}/fd/{descriptor}"))
    except OSError:
        pass
