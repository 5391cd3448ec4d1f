"""The measures of a start: instructions, time, modules."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.startup.environments import NotMade
from benchmarks.startup.states import State

_MODULES = "import sys; print(*sys.modules)"


@dataclass
class Cost:
    """What was measured of one state; the times are those of each round, in milliseconds."""

    modules: frozenset[str]
    instructions: tuple[int, ...]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def cost(state: State) -> Cost:
    """Instructions and modules; raises NotMade where the state does not start."""
    # This start also writes missing .pyc files.
    done = subprocess.run(
        [str(state.python), "-c", _MODULES], env=dict(state.env), capture_output=True, text=True
    )
    if done.returncode:
        raise NotMade(f"status {done.returncode}: {done.stderr.strip()[-100:]}")
    if done.stderr:
        # If a hook fails, it says so there. It would be measured as a cheap hook.
        print(f"  {state.name}, on stderr: {done.stderr.strip()}", file=sys.stderr, flush=True)
    counts = tuple(instructions(state.python, state.env, "pass") for _ in range(2))
    return Cost(frozenset(done.stdout.split()), counts)


def instructions(python: Path, env: Mapping[str, str], code: str) -> int:
    """callgrind's count for ``python -c code``."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    done = subprocess.run(
        [*command, str(python), "-c", code],
        env=dict(env),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        raise NotMade(f"under valgrind: status {done.returncode}: {done.stderr.strip()[-100:]}")
    return int(found[1])


def take_turns(costs: Mapping[State, Cost], rounds: int, seed: int) -> None:
    """Time each state once in each round."""
    states = list(costs)
    shuffled = random.Random(seed)
    for _ in range(rounds):
        shuffled.shuffle(states)
        for state in states:
            wall, cpu = _start(str(state.python), state.env)
            costs[state].wall.append(wall)
            costs[state].cpu.append(cpu)


def _start(python: str, env: Mapping[str, str]) -> tuple[float, float]:
    """Milliseconds of a ``python -c pass``: wall clock, CPU."""
    silent = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    begin = time.perf_counter()
    child = os.posix_spawn(python, [python, "-c", "pass"], env, file_actions=silent)
    used = os.wait4(child, 0)[2]
    end = time.perf_counter()
    return (end - begin) * 1e3, (used.ru_utime + used.ru_stime) * 1e3
