"""Ways to search for the best set of switches, on simulated programs whose best set is known.

    python -m benchmarks.search [--trials N] [--budget UNITS] [--noise NAME ...] [--runs FILE ...]
        [--fill N] [--code] [--drift PART] [--drawn]

``tune`` is the search of rocm_autopatch/measure/tune/search.py, with and without its sampler.
``forward`` is the plain one: each switch alone five times, then what helped on top of the best,
five times each. ``optuna ...`` is optuna with its TPE sampler and one of its pruners, where a
trial's rounds are its steps; it needs optuna, as ``tune`` does here.

A unit is a run of the base. The first run of a set costs FILL units more, because its caches are
empty. With --fill N, ``tune`` makes N of a round's first runs at the same time. All ways get the
same budget. With --code, ``tune`` knows which sets run the same code, as it does where the program
prints a number; of what does nothing, 3 of 10 change the code. With --drift, the machine's speed
changes from round to round by a standard deviation of PART. What counts is the true cost of the
set that a way ends with, compared with the best set; and how many options of the set are idle: it
is as fast without them. FILE is what ``ab --json`` printed; the deviations of its base's runs from
their median are a further kind of noise.

With --drawn, each trial is another program, whose switches are drawn at random. The search was made
with the six programs that have names; these show how it does on others.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from rocm_autopatch.measure.tune.levels import Trial
from rocm_autopatch.measure.tune.sampler import SetSampler
from rocm_autopatch.measure.tune.search import BASE, BudgetSpent, SetSearch, SwitchOption

FILL = 2.0
WORTH = 0.02
# Without an idle option, a set costs no more than so many times as much.
_IDLE = 1.005
Draw = Callable[[random.Random], float]
NOISE: dict[str, Draw] = {
    "normal 2 %": lambda chance: chance.gauss(1, 0.02),
    "normal 5 %": lambda chance: chance.gauss(1, 0.05),
    "2 %, some far off": lambda chance: chance.gauss(1, 0.02) * chance.choice([2] + 29 * [1]),
    "two speeds": lambda chance: chance.choice([1, 1, 1, 1.2]) * chance.gauss(1, 0.01),
}


COUNT = 30
# Options that crash, or compute something else; and options that make the first run long, as a
# search among kernels does.
BROKEN = frozenset((7, 13, 28))
# Of the options of a drawn program that do nothing, so many change the code.
_CODE = 0.3
SLOW = frozenset((1, 8, 21))


@dataclass(frozen=True)
class Surface:
    """A program: the effect of options on the logarithm of its cost, and of pairs of them."""

    effects: Mapping[int, float]
    pairs: Mapping[tuple[int, int], float]
    broken: frozenset[int] = BROKEN
    count: int = COUNT
    slow: frozenset[int] = SLOW
    # What is known for large effects, rightly or not.
    known: frozenset[int] = SLOW | {4}
    # What changes the code that torch generates; other options do nothing.
    code: frozenset[int] = frozenset(range(COUNT))

    def cost(self, trial: Trial) -> float:
        """The true cost; infinite for a set that crashes or computes something else."""
        if trial & self.broken:
            return math.inf
        alone = sum(self.effects.get(number, 0.0) for number in trial)
        return math.exp(alone + sum(e for pair, e in self.pairs.items() if trial.issuperset(pair)))

    def idle(self, trial: Trial) -> int:
        """How many options of a set do nothing."""
        most = _IDLE * self.cost(trial)
        return sum(self.cost(trial - {number}) <= most for number in trial)

    def best(self) -> float:
        """The least cost: only options with an effect matter, which are few."""
        few = sorted({*self.effects, *(number for pair in self.pairs for number in pair)})
        sets = (
            frozenset(number for place, number in enumerate(few) if mask >> place & 1)
            for mask in range(2 ** len(few))
        )
        return min(map(self.cost, sets))


SURFACES = {
    "nothing helps": Surface({3: 0.1, 9: 0.05}, {}),
    "one helps": Surface({4: -0.2, 3: 0.1, 9: 0.3}, {}),
    "four help": Surface({4: -0.2, 11: -0.1, 17: -0.06, 22: -0.04, 3: 0.2}, {}),
    "two only together": Surface({3: 0.1}, {(12, 25): -0.2}),
    "one, and two together": Surface({4: -0.15, 3: 0.1}, {(12, 25): -0.15}),
    "two exclude each other": Surface({4: -0.15, 11: -0.12}, {(4, 11): 0.25}),
}


def drawn(seed: int) -> Surface:
    """A program whose switches are drawn at random."""
    chance = random.Random(f"program {seed}")
    count = chance.randint(10, 50)

    def some(part: float) -> frozenset[int]:
        return frozenset(number for number in range(count) if chance.random() < part)

    # Each second switch that does something makes it slower.
    effects = {
        number: chance.choice([-1, 1]) * chance.expovariate(1 / 0.08)
        for number in chance.sample(range(count), chance.randint(0, 8))
    }
    pairs = {
        (one, other): chance.gauss(0, 0.12)
        for one, other in (chance.sample(range(count), 2) for _ in range(chance.randint(0, 3)))
    }
    strong = frozenset(number for number, effect in effects.items() if abs(effect) > 0.1)
    broken, slow, known = some(0.07), some(0.1), strong & some(0.5) | some(0.1)
    act = broken | slow | effects.keys() | {number for pair in pairs for number in pair}
    return Surface(effects, pairs, broken, count, slow, known, code=act | some(_CODE))


class Bench:
    """Measures sets of a surface, until the budget is spent."""

    def __init__(
        self,
        surface: Surface,
        noise: Draw,
        budget: float,
        seed: int,
        beside: int = 1,
        by_code: bool = False,
        drift: float = 0.0,
    ) -> None:
        self.by_code = by_code
        self.drift, self.shift, self.drifting = drift, 0.0, random.Random(-1 - seed)
        self.surface, self.noise, self.left_units, self.beside = surface, noise, budget, beside
        self.chance = random.Random(seed)
        self.budget = budget
        self.filled: set[Trial] = set()
        self.runs = 0

    def measure(
        self, trials: Sequence[Trial], _: Trial = BASE, __: int = 0
    ) -> Mapping[Trial, float]:
        """One round, as tune's bench does it. The confirmation is not part of the budget."""
        costs: dict[Trial, float] = {}
        self.shift = 0.9 * self.shift + self.drifting.gauss(0, self.drift)
        first = [FILL * self.price(trial) for trial in trials if trial not in self.filled]
        if self.beside > 1:
            # All at once; the longest one decides, or how many there are.
            self.left_units -= max([sum(first) / self.beside, *first, 0.0])
            self.filled.update(trials)
        for trial in trials:
            true = self.surface.cost(trial)
            price = 0 if trial in self.filled else FILL * self.price(trial)
            same = next((one for one in costs if self._same_code(one, trial)), None)
            if same is None:
                price += min(true, 2.0) if math.isfinite(true) else 1.0
            if price > self.left_units:
                raise BudgetSpent
            self.left_units -= price
            self.runs += 1
            self.filled.add(trial)
            if same is not None:
                costs[trial] = costs[same]
            elif math.isfinite(true):
                costs[trial] = true * math.exp(self.shift) * self.noise(self.chance)
        return costs

    def left(self) -> float:
        """As tune's bench has it."""
        return self.left_units / self.budget

    def price(self, trial: Trial) -> float:
        """As tune's bench has it."""
        return 5.0 if trial & self.surface.slow else 1.0

    def alike(self, one: Trial, other: Trial) -> bool:
        """As tune's bench has it."""
        return one == other or ({one, other} <= self.filled and self._same_code(one, other))

    def _same_code(self, one: Trial, other: Trial) -> bool:
        return self.by_code and not (one ^ other) & self.surface.code


def _tune(sampled: bool, bench: Bench, seed: int) -> Trial:
    known = bench.surface.known
    slow = bench.surface.slow
    options = [
        SwitchOption(str(n), str(n), n in known, n in slow) for n in range(bench.surface.count)
    ]
    sampler = SetSampler(options, seed) if sampled else None
    return SetSearch(options, bench, WORTH, seed, sampler=sampler).run()


def _forward(bench: Bench, _: int) -> Trial:
    def costs(trials: Sequence[Trial]) -> dict[Trial, float]:
        rounds = [bench.measure(trials) for _ in range(5)]
        return {t: median(r[t] for r in rounds) for t in trials if all(t in r for r in rounds)}

    best = BASE
    try:
        alone = costs([BASE, *(frozenset((number,)) for number in range(bench.surface.count))])
        gain = 1 - WORTH
        helping = sorted((t for t in alone if alone[t] < gain * alone[BASE]), key=alone.__getitem__)
        for trial in helping:
            both = costs([best, best | trial])
            if both.get(best | trial, math.inf) < gain * both[best]:
                best |= trial
    except BudgetSpent:
        pass
    return best


def _optuna(pruner: str) -> Callable[[Bench, int], Trial]:
    def search(bench: Bench, seed: int) -> Trial:
        optuna: Any = importlib.import_module("optuna")

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if pruner == "median":
            made = optuna.pruners.MedianPruner(n_startup_trials=5)
        else:
            made = optuna.pruners.WilcoxonPruner(p_threshold=0.1)
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True),
            pruner=made,
        )
        count = bench.surface.count
        study.enqueue_trial({str(number): False for number in range(count)})

        def objective(trial: Any) -> float:
            chosen = frozenset(
                number
                for number in range(count)
                if trial.suggest_categorical(str(number), [False, True])
            )
            found = []
            for step in range(5):
                cost = bench.measure([chosen])
                if not cost:
                    raise optuna.TrialPruned  # It crashed.
                found.append(cost[chosen])
                trial.report(found[-1] if pruner == "wilcoxon" else median(found), step)
                if trial.should_prune():
                    if pruner == "wilcoxon":
                        return median(found)
                    raise optuna.TrialPruned
            return median(found)

        with contextlib.suppress(BudgetSpent):
            study.optimize(objective, n_trials=1000)
        try:
            chosen = study.best_trial.params
        except ValueError:
            return BASE
        return frozenset(number for number in range(count) if chosen[str(number)])

    return search


WAYS: dict[str, Callable[[Bench, int], Trial]] = {
    "tune": partial(_tune, True),
    "tune, no optuna": partial(_tune, False),
    "forward": _forward,
    "optuna, median": _optuna("median"),
    "optuna, wilcoxon": _optuna("wilcoxon"),
}


def _same(surface: Surface, _: int) -> Surface:
    return surface


def _recorded(file: Path) -> tuple[str, Draw]:
    document = json.loads(file.read_text())
    row = next(r for r in document["rows"] if r["arm"] == "base" and r["metric"] != "wall time")
    ratios = [number / row["median"] for number in row["numbers"]]
    return f"of {file.stem}", lambda chance: chance.choice(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ways to search, on simulated programs.")
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--budget", type=float, nargs="+", default=[200, 400])
    parser.add_argument("--noise", nargs="*", choices=NOISE, default=list(NOISE))
    parser.add_argument("--runs", type=Path, nargs="*", default=[], metavar="FILE")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--fill", type=int, default=1, help="first runs at the same time, of tune")
    parser.add_argument(
        "--code", action="store_true", help="what does nothing is known by the code, to tune"
    )
    parser.add_argument(
        "--drift", type=float, default=0.0, metavar="PART", help="of the machine's speed"
    )
    parser.add_argument("--drawn", action="store_true", help="another program in each trial")
    asked = parser.parse_args()
    if any(way == "tune" or way.startswith("optuna") for way in asked.ways):
        for name in ("optuna", "scipy"):
            if importlib.util.find_spec(name) is None:
                parser.error(f"no {name}: pip install {name}, or --ways 'tune, no optuna' forward")
    programs: dict[str, Callable[[int], Surface]] = {"drawn": drawn}
    if not asked.drawn:
        programs = {name: partial(_same, surface) for name, surface in SURFACES.items()}
    noises = {**{name: NOISE[name] for name in asked.noise}, **dict(map(_recorded, asked.runs))}
    for budget in asked.budget:
        for noise, draw in noises.items():
            print(
                f"noise {noise}, budget {budget:g} units: within 3 % of the best, mean loss, idle, "
                "units"
            )
            for name, program in programs.items():
                surfaces = [program(trial) for trial in range(asked.trials)]
                bests = [surface.best() for surface in surfaces]
                cells = []
                for way in asked.ways:
                    losses, idle, used = [], [], []
                    for trial, (surface, best) in enumerate(zip(surfaces, bests)):
                        tune = way.startswith("tune")
                        beside, by_code = (asked.fill, asked.code) if tune else (1, False)
                        bench = Bench(surface, draw, budget, trial, beside, by_code, asked.drift)
                        found = WAYS[way](bench, trial)
                        losses.append(surface.cost(found) / best - 1)
                        idle.append(surface.idle(found))
                        used.append(budget - bench.left_units)
                    near = mean(loss < 0.03 for loss in losses)
                    cells.append(
                        f"{way} {near:4.0%} {mean(losses):5.1%} {mean(idle):4.1f} {mean(used):4.0f}"
                    )
                print(f"  {name:24}" + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
