"""How several test files run what they test. The rest is ``Interpreter.run`` (tests/conftest.py)
and, for programs that begin alike, tests/forked.py."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.measure.prove import battery
from rocm_autopatch.measure.prove.rows import TrialRow
from tests.conftest import Interpreter, run_with_site

QUIET = {"ROCM_AUTOPATCH_LOG": "quiet"}


def run_command(
    python: Interpreter,
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command of ours, whatever its exit status is. Its own start says nothing."""
    env = {**QUIET, **(env or {})}
    return python.run("-m", "rocm_autopatch", *arguments, env=env, check=False, **options)


def wait_for_text(file: Path, patience_s: float = 120.0) -> str:
    """What another process writes to a file, when some of it is there.

    A file that exists may be empty: it is made before it is written. Raises AssertionError.
    """
    end = time.monotonic() + patience_s
    while not (file.exists() and (text := file.read_text().strip())):
        assert time.monotonic() < end, f"nobody has written {file}"
        time.sleep(0.02)
    return text


def run_on_terminal(
    python: Interpreter, *arguments: str | Path, env: Mapping[str, str], columns: int = 0
) -> str:
    """What a program writes to a terminal that is its stdout; of no known width if *columns* is 0.

    *env* is all that it gets but PATH.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [python.path, *arguments],
        env={"PATH": os.environ["PATH"], **env},
        cwd=python.path.parent,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # as Linux ends a terminal
            break
        if not part:
            break
        text += part
    os.close(ours)
    process.communicate()
    return text.decode().replace("\r\n", "\n")


def run_at_site(python: Interpreter, site: Path, code: str, **env: str) -> tuple[str, list[str]]:
    """What a program prints with the files of *site* in /etc/rocm-autopatch: its stdout, and the
    lines of its stderr."""
    done = run_with_site(site, python.path, "-c", code, **env)
    return done.stdout, done.stderr.splitlines()


def run_mounted(
    script: str, *command: str | Path, env: Mapping[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in a mount namespace of its own, after a shell script that mounts.

    *env* is all that both get but PATH. The test is skipped where namespaces can't be made.
    """
    if os.getuid() != 0:
        pytest.skip("mounting needs root")
    done: subprocess.CompletedProcess[str] = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{script} && exec "$@"', "sh", *command],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        **options,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    return done


def run_battery(
    supervisor: Any,
    how: battery.BatteryThoroughness,
    only: Sequence[str] = (),
    kept: Sequence[TrialRow] = (),
) -> battery.TrialBattery:
    """Run a battery of prove, with a stand-in of the supervisor that starts nothing."""
    work = battery.TrialBattery(supervisor, how, only, kept, lambda: None, lambda _: None)
    work.run()
    return work


def last_said(stderr: str) -> str:
    """The last line of an error, without the page that it belongs to."""
    return [line for line in stderr.splitlines() if not line.startswith("  more: ")][-1]
