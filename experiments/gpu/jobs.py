"""Jobs of several ranks on one machine, by torchrun, each with a limit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# How long torchrun may take to end its ranks. Each rank is in a group of its own, which a signal to
# torchrun's group does not reach.
_ENDING = 40


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def run(
    arguments: Sequence[str], directory: Path, env: Mapping[str, str], limit: float
) -> tuple[int | None, str]:
    """The status of ``torchrun ARGUMENTS``, None if it was not over in time, and its stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        cwd=directory,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, stderr = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return None, end(process)
    except BaseException:
        end(process)
        raise
    return process.returncode, stderr


def end(process: subprocess.Popen[str]) -> str:
    """End torchrun and its ranks, and return what they have said on stderr."""
    process.send_signal(signal.SIGTERM)
    try:
        _, stderr = process.communicate(timeout=_ENDING)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        # A rank that hangs still has its end of the pipe.
        process.wait()
        stderr = "torchrun did not end, and was killed"
    return stderr
