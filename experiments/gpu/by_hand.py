# mypy: disable-error-code="no-any-return"
"""The best policy of a program by trying everything: each switch alone, then sets of what helps.

A run is a line of ``hand.jsonl`` in the program's directory, so that a second call goes on. Each
set of switches has caches and a working directory of its own, and many are tried at the same time:
the programs time their calls in turns (tuned/turns.py).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from rocm_autopatch.measure.ab import bootstrap, numbers, place
from rocm_autopatch.measure.ab.runner import own_caches
from rocm_autopatch.measure.ab.toggles import MODE, VARIABLE
from rocm_autopatch.measure.tune import candidates, policy_file
from rocm_autopatch.measure.tune.candidates import SwitchCandidate

HERE = Path(__file__).parent / "tuned"
# Each program's number, and what has to be the same.
PROGRAMS = {
    "generate": ("token", "generate.pt"),
    "convolution": ("batch", "convolution.pt"),
    "training": ("step", "loss"),
    "eager": ("product", "sum"),
}
# The modes in which they compile: transformers asks for this one.
_MODES = {"generate": "reduce-overhead", "eager": ""}
# What helps alone is combined, the best of it.
_COMBINED = 4
_HELPS = 0.99
# So many of the fastest sets are tried again, in so many rounds.
_AGAIN, _ROUNDS = 3, 7
_LONGEST_S = 200.0
# A program compiles with so many processes: there are many programs at the same time. Searches
# among kernels are long: they begin first, and have more.
_THREADS, _SEARCH_THREADS = "2", "6"
# Nothing begins so shortly before the time is over.
_AHEAD_S = 15.0
BASE = "base"


class OutOfTime(Exception):
    """The time of this call is over; the next one goes on."""


@dataclass(frozen=True)
class Found:
    """The fastest set that computes the same, and its number divided by the base's."""

    name: str
    ratio: float
    interval: tuple[float, float]


class Pool:
    """Runs what it is given, *workers* at a time, and nothing new after *until* (monotonic).

    What it runs gets *environ*: the GPU, and the file with which programs on it take turns.
    """

    def __init__(self, workers: int, until: float, environ: Mapping[str, str]) -> None:
        self.until, self.environ = until, environ
        self._pool = ThreadPoolExecutor(workers)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def all(self, tasks: Sequence[Callable[[Pool], None]]) -> None:
        """Run all. Raises OutOfTime if some were not run to their end."""

        def run(task: Callable[[Pool], None]) -> bool:
            if time.monotonic() > self.until - _AHEAD_S:
                return False
            try:
                task(self)
            except OutOfTime:
                return False
            return True

        ran = [one.result() for one in [self._pool.submit(run, task) for task in tasks]]
        if not all(ran):
            raise OutOfTime


class Program:
    """A program, the sets of switches that are tried, and its runs: ``rows``, as they are kept."""

    def __init__(self, name: str, work: Path, caches: Path, small: bool, tolerance: float) -> None:
        self.name, self.tolerance = name, tolerance
        self.metric, self.same = PROGRAMS[name]
        self.work = work / name
        self.work.mkdir(parents=True, exist_ok=True)
        self.caches = caches / name
        self.caches.mkdir(parents=True, exist_ok=True)
        self.command = [sys.executable, str(HERE / f"{name}.py"), *(["--small"] if small else [])]
        self.here = place.find_program_place(self.command)
        self._file = self.work / "hand.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._lock = threading.Lock()
        self._environments: dict[str, Mapping[str, str]] = {BASE: self.here.environ}
        self.sets: dict[str, Sequence[SwitchCandidate]] = {BASE: ()}

    def find(self, wanted: Sequence[str]) -> Sequence[SwitchCandidate]:
        """What is tried, by hand and by tune."""
        only = [text.partition("=")[0] for text in wanted]
        found = candidates.find_candidates(self.here, self.command, wanted, (), only, self.caches)
        mode = _MODES.get(self.name, "default")
        return [
            one
            for one in found.candidates
            if one.toggle.kind != MODE or one.toggle.name == mode or wanted
        ]

    def add(self, chosen: Sequence[SwitchCandidate]) -> str:
        """Make a set of switches known; its name."""
        name = ", ".join(one.label for one in chosen)
        if name not in self.sets:
            file = self.caches / f"{_digest(name)}.yaml"
            self._environments[name] = candidates.arm_of(self.here, chosen, file).environ
            self.sets[name] = chosen
        return name

    def add_policy(self, file: Path) -> str:
        """Make a policy file known; its name."""
        environ = {**self.here.environ, "ROCM_AUTOPATCH_POLICY": str(file)}
        environ |= {} if self.here.is_rocm else {"ROCM_AUTOPATCH_ASSUME": "accelerator=rocm"}
        self._environments[file.stem] = environ
        return file.stem

    def write(self, name: str) -> Path:
        """The policy of a set, written."""
        file = self.work / "hand.yaml"
        rows = [(one, "By hand.") for one in self.sets[name]]
        file.write_text(policy_file.policy_text(self.here, file.stem, "By hand.", rows))
        return file

    def measure(
        self, stage: str, names: Sequence[str], rounds: int, pool: Pool, *, anew: bool = False
    ) -> None:
        """Run each of *names* so often, by turns; first once for its caches. Raises OutOfTime.

        With *anew*, each round has caches of its own, as in tune's confirmation. What is kept from
        an earlier call needs no caches any more.
        """

        def place(name: str, key: str) -> Path:
            return self.caches / _digest(f"{name}, {key}" if anew else name)

        if not (self.work / "base.json").exists():
            pool.all([partial(self._run, BASE, "first", self.caches / _digest(BASE))])
        empty = {
            place(name, key): name
            for name, key in self._left(stage, names, rounds)
            if not (place(name, key) / "filled").exists()
        }
        order = sorted(empty.items(), key=lambda each: (not self._slow(each[1]), each[1]))
        pool.all([partial(self._run, name, f"fill {stage}", its) for its, name in order])
        # Some may have been wrong now.
        left = self._left(stage, names, rounds)
        pool.all([partial(self._run, name, key, place(name, key)) for name, key in left])

    def _left(self, stage: str, names: Sequence[str], rounds: int) -> list[tuple[str, str]]:
        """The runs of a stage that are left, in their order: the name and the key."""
        # A set is not tried again once it was wrong.
        right = [name for name in names if name == BASE or not self.wrong(name)]
        done = {(row["name"], row["key"]) for row in self.rows}
        left: list[tuple[str, str]] = []
        for number in range(rounds):
            key = f"{stage} {number}"
            random.Random(key).shuffle(right)
            left += [(name, key) for name in right if (name, key) not in done]
        return left

    def costs(self, stage: str, name: str) -> list[float]:
        """The program's numbers in the runs of a stage, in the order of the rounds."""
        rows = [row for row in self.rows if row["name"] == name and not row["why"]]
        keys = [row for row in rows if row["key"].rpartition(" ")[0] == stage]
        return [row["value"] for row in sorted(keys, key=lambda row: row["key"])]

    def wrong(self, name: str) -> str:
        """Why a run of this set failed, or what is not the same; "" if all were right."""
        return next((row["why"] for row in self.rows if row["name"] == name and row["why"]), "")

    def _slow(self, name: str) -> bool:
        return any(one.slow for one in self.sets.get(name, ()))

    def _run(self, name: str, key: str, directory: Path, pool: Pool) -> None:
        directory.mkdir(exist_ok=True)
        # As in tune: of a kernel that two sets have, the first run compiles it.
        chosen = self.sets.get(name)
        same = chosen is not None and all(one.toggle.kind != VARIABLE for one in chosen)
        caches = own_caches(directory, self.caches / "kernels" if same else None)
        threads = _SEARCH_THREADS if self._slow(name) else _THREADS
        began = time.monotonic()
        value, why = None, ""
        try:
            done = subprocess.run(
                self.command,
                env={
                    **self._environments[name],
                    **pool.environ,
                    **caches,
                    "TORCHINDUCTOR_COMPILE_THREADS": threads,
                },
                cwd=directory,
                capture_output=True,
                text=True,
                timeout=min(_LONGEST_S, pool.until - began),
            )
        except subprocess.TimeoutExpired:
            if time.monotonic() >= pool.until:
                raise OutOfTime from None
            why = f"did not end within {_LONGEST_S:g} s"
        else:
            if done.returncode:
                why = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1][:300]
            else:
                (directory / "filled").touch()
                found = {
                    one.name: its for one, its in numbers.find_numbers(*_both(done), ()).items()
                }
                value = found[self.metric]
                why = self._differs(directory, found)
        if why and name == BASE:
            raise SystemExit(f"{self.name}, as it is here: {why}")
        seconds = round(time.monotonic() - began, 3)
        row = {"name": name, "key": key, "seconds": seconds, "value": value, "why": why}
        with self._lock, self._file.open("a") as file:
            self.rows.append(row)
            file.write(json.dumps(row) + "\n")

    def _differs(self, directory: Path, found: Mapping[str, float]) -> str:
        """In what a run differs from the base's first one, which is kept."""
        if self.same in found:
            its = [found[self.same]]
        else:
            its = torch.load(directory / self.same, weights_only=True).flatten().tolist()
        reference = self.work / "base.json"
        if not reference.exists():
            reference.write_text(json.dumps(its))
        base = json.loads(reference.read_text())
        size = max(map(abs, base))
        apart = max(abs(a - b) for a, b in zip(base, its)) / size
        good = len(base) == len(its) and apart <= self.tolerance
        return "" if good else f"{self.same} is apart by {apart:.3g} of the largest number"


def search(program: Program, tried: Sequence[SwitchCandidate], repeat: int, pool: Pool) -> Found:
    """Try everything: each switch alone, then all sets of what helped. Raises OutOfTime."""
    alone = {program.add([one]): one for one in tried}
    program.measure("alone", [BASE, *alone], repeat, pool)
    ratios = _ratios(program, "alone", alone)
    helped = [
        alone[name] for name in sorted(ratios, key=ratios.__getitem__) if ratios[name] < _HELPS
    ]
    # Of the values of one switch, the best.
    best = list({one.switch: one for one in reversed(helped)}.values())[::-1][:_COMBINED]
    sets = [
        program.add(some)
        for size in range(2, len(best) + 1)
        for some in itertools.combinations(best, size)
    ]
    if sets:
        program.measure("together", [BASE, *sets], repeat, pool)
        ratios.update(_ratios(program, "together", sets))
    fastest = [name for name in sorted(ratios, key=ratios.__getitem__) if ratios[name] < _HELPS]
    fastest = fastest[:_AGAIN]
    # The fastest of many is partly luck, also of its compile, so it has to show it again.
    if fastest:
        program.measure("again", [BASE, *fastest], _ROUNDS, pool, anew=True)
    found = Found(BASE, 1.0, (1.0, 1.0))
    for name in fastest:
        if program.wrong(name):
            continue
        compared = bootstrap.compare_medians(
            program.costs("again", BASE), program.costs("again", name), 1
        )
        assert compared.ratio is not None
        assert compared.interval is not None
        if compared.interval[1] < 1 and compared.ratio < found.ratio:
            found = Found(name, compared.ratio, compared.interval)
    return found


def so_far(rows: Iterable[tuple[str, str, float | None]]) -> str:
    """What runs say up to now: their number, and the sets that are fastest.

    A row has the name of a set, what kind of run it is, and its number.
    """
    count, values = 0, dict[str, list[float]]()
    for name, kind, value in rows:
        count += 1
        if value is not None and not kind.startswith(("fill", "first")):
            values.setdefault(name, []).append(value)
    measured = sum(map(len, values.values()))
    said = f"{count} runs, {measured} of them measured, of {len(values)} sets"
    if BASE in values:
        base = median(values.pop(BASE))
        for name in sorted(values, key=lambda one: median(values[one]))[:_AGAIN]:
            said += f"; {name} {median(values[name]) / base:.3f}x ({len(values[name])})"
    return said


def _ratios(program: Program, stage: str, names: Iterable[str]) -> dict[str, float]:
    """By the name of each set that computes the same, its number divided by the base's."""
    base = median(program.costs(stage, BASE))
    costs = {name: program.costs(stage, name) for name in names if not program.wrong(name)}
    return {name: median(its) / base for name, its in costs.items() if its}


def _both(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    return done.stdout, done.stderr


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]
