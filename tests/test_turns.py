"""Programs that share a GPU in the comparison of ``tune`` time calls while others stand still."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

TURNS = Path(__file__).parents[1] / "experiments" / "gpu" / "tuned"
_LONGEST_S = 20.0
# A wrapper that has started the program is one of the others, too.
_BUSY = ["sh", "-c", f"{sys.executable} -c 'while True: pass'; true"]
_TIMES = f"""
import sys
sys.path.insert(0, {str(TURNS)!r})
import subprocess, turns
own = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
with turns.mine():
    print(own.pid, flush=True)
    sys.stdin.readline()
own.kill()
"""


def _states(pids: list[int]) -> set[str]:
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _become(pids: list[int], stopped: bool) -> bool:
    """Whether all of them are stopped, or none, before long."""
    until = time.monotonic() + _LONGEST_S
    while time.monotonic() < until:
        states = _states(pids)
        if states == {"T"} if stopped else "T" not in states:
            return True
        time.sleep(0.02)
    return False


@contextmanager
def _busy(environ: Mapping[str, str]) -> Iterator[list[int]]:
    """A shell and the busy program that it has started."""
    with subprocess.Popen(_BUSY, env=environ, start_new_session=True) as shell:
        try:
            until = time.monotonic() + _LONGEST_S
            while not _children(shell.pid) and time.monotonic() < until:
                time.sleep(0.02)
            yield [shell.pid, *_children(shell.pid)]
        finally:
            os.killpg(shell.pid, signal.SIGKILL)


@pytest.mark.parametrize("killed", [False, True], ids=["ends", "is killed"])
def test_others_stand_still_until_the_turn(killed: bool, tmp_path: Path) -> None:
    environ = {**os.environ, "ROCM_AUTOPATCH": "off", "TUNED_TURNS": str(tmp_path / "turns")}
    elsewhere = {**environ, "TUNED_TURNS": str(tmp_path / "of another GPU")}
    with _busy(environ) as others, _busy(elsewhere) as strangers:
        timing = subprocess.Popen(
            [sys.executable, "-c", _TIMES],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert timing.stdout is not None
        own = int(timing.stdout.readline())
        try:
            assert len(others) == 2
            assert _become(others, True)
            assert "T" not in _states([own, timing.pid, *strangers])
            if killed:
                timing.kill()
            timing.communicate("\n", timeout=_LONGEST_S)
            assert _become(others, False)
        finally:
            timing.kill()
            if killed:
                os.kill(own, signal.SIGKILL)
