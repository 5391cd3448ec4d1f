"""Turns of programs that share a machine: only one of them times its calls at a time.

TUNED_TURNS names the file that they lock. Without it nobody waits. Meanwhile all others that were
started with the same file are stopped, so that neither their compilers nor their kernels disturb
the times. The first call of a program compiles, and is made beside others. Warming up belongs to
the turn.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

_NAME = "TUNED_TURNS"
# Kernels of the others that have begun, end in this time.
_STILL_S = 0.05


@contextlib.contextmanager
def mine() -> Iterator[None]:
    """Wait for this program's turn, and keep it for the block."""
    name = os.environ.get(_NAME)
    if not name:
        yield
        return
    with open(name, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with _stopped(_others(f"{_NAME}={name}".encode())):
            time.sleep(_STILL_S)
            yield


def _others(setting: bytes) -> list[int]:
    """The processes that were started with this setting, without this one and what it started."""
    found, started = set[int](), dict[int, list[int]]()
    for process in Path("/proc").glob("[0-9]*"):
        # It may have ended. The name before the parent may have spaces and brackets.
        with contextlib.suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            started.setdefault(parent, []).append(int(process.name))
            if setting in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
    own = [os.getpid()]
    for one in own:
        own += started.get(one, [])
    return sorted(found.difference(own))


@contextlib.contextmanager
def _stopped(processes: list[int]) -> Iterator[None]:
    """Stop processes for the block. They go on even if this one dies."""
    words = ["sh", "-c", 'read _; kill -CONT "$@" 2>/dev/null', "sh", *map(str, processes)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as going_on:
        for one in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGSTOP)
        try:
            yield
        finally:
            assert going_on.stdin is not None
            going_on.stdin.close()
