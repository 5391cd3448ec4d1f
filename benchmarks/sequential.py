"""How often ``ab --until-sure`` is sure, of arms that differ and of arms that do not.

    python -m benchmarks.sequential [--trials N] [--runs FILE] [--limits]

Simulated comparisons for some shapes of noise, and, with FILE, for real runs: FILE is what ``ab
--json`` printed of one command. Both arms are then drawn from the runs of one arm of FILE, as
stretches of runs that follow each other, so that slow and fast times of the machine stay together.
Torch times kernels when it compiles, so each compile of one program has a speed of its own; what
follows if all runs of an arm have the same compile is shown, too. ``--limits`` finds the limits of
the looks again, and how far apart arms are that are sure by them.
"""

from __future__ import annotations

import argparse
import json
import random
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rocm_autopatch.measure.ab import sequential

Draw = Callable[[random.Random], float]
MOST = sequential.MOST
# What all looks up to each one may err in.
_SPENT = dict(zip(sequential.LOOKS, (0.0079, 0.0105, 0.0131, 0.0151, 0.0171)))


def _nested(chance: random.Random) -> float:
    """Two values, each of which is two values that are closer, and so on."""
    return sum(chance.choice((0, 10.0**-depth)) for depth in range(8)) + 1


NOISE: dict[str, Draw] = {
    "normal, 5 %": lambda chance: chance.gauss(1, 0.05),
    "skewed (lognormal, 0.2)": lambda chance: chance.lognormvariate(0, 0.2),
    "long tail": lambda chance: 1 + chance.expovariate(10),
    "two speeds, 3 to 1": lambda chance: chance.choice([1, 1, 1, 1.3]) * chance.gauss(1, 0.01),
    "two speeds, 1 to 1": lambda chance: chance.choice([1, 1.3]) * chance.gauss(1, 0.01),
    "nested pairs (the worst)": _nested,
}
# The standard deviation of runs with the same compile, and those of compiles.
RUN, COMPILES = 0.005, (0.002, 0.005, 0.01, 0.02)
EFFECTS = (1.0, 1.05, 1.2, 2.0, 5.0)


def simulated(draw: Draw, effect: float, trials: int) -> Counter[int]:
    """After how many runs comparisons were sure."""
    chance = random.Random(1)
    return Counter(
        sequential.sure_after(
            [draw(chance) for _ in range(MOST)], [effect * draw(chance) for _ in range(MOST)]
        )
        for _ in range(trials)
    )


def resampled(numbers: Sequence[float], effect: float, trials: int) -> Counter[int]:
    """The same of real runs of one arm: two neighbours are a round, in random order."""
    chance = random.Random(1)
    found: Counter[int] = Counter()
    for _ in range(trials):
        arms: tuple[list[float], list[float]] = ([], [])
        while len(arms[0]) < MOST:
            start = chance.randrange(len(numbers) - 1)
            for place in range(start, min(start + 20, len(numbers) - 1), 2):
                pair = [numbers[place], numbers[place + 1]]
                chance.shuffle(pair)
                arms[0].append(pair[0])
                arms[1].append(pair[1] * effect)
        found[sequential.sure_after(arms[0], arms[1])] += 1
    return found


def compiled(spread: float, each_round: bool, trials: int) -> Counter[int]:
    """The same of arms that do not differ, compiled once or in each round."""
    chance = random.Random(1)

    def runs() -> list[float]:
        compiles = [chance.gauss(1, spread) for _ in range(MOST if each_round else 1)]
        return [compiles[number % len(compiles)] * chance.gauss(1, RUN) for number in range(MOST)]

    return Counter(sequential.sure_after(runs(), runs()) for _ in range(trials))


def limits(trials: int) -> dict[int, int]:
    """For each look, the most pairs in the wrong order with which the looks err as planned."""
    chance, rows = random.Random(5), []
    for _ in range(trials):
        one: list[float] = []
        other: list[float] = []
        row, wrong = {}, 0
        for count in range(1, MOST + 1):
            number = chance.random()
            wrong += bisect_left(other, number)
            insort(one, number)
            number = chance.random()
            wrong += len(one) - bisect_left(one, number)
            insort(other, number)
            if count in sequential.LOOKS:
                row[count] = min(wrong, count * count - wrong)
        rows.append(row)
    found, spent = {}, 0.0
    for look, most in _SPENT.items():
        limit = -1
        while spent + sum(row[look] <= limit + 1 for row in rows) / trials <= most:
            limit += 1
        spent += sum(row[look] <= limit for row in rows) / trials
        rows = [row for row in rows if row[look] > limit]
        found[look] = limit
        print(f"  {look:3} runs of each: {limit:3} pairs of {look * look}, {spent:.4f} in all")
    return found


def apart(trials: int) -> None:
    """For each look, how far apart arms are, of which three of four comparisons are sure by it."""
    chance = random.Random(7)
    for look in (sequential.CLEAR, *sequential.LOOKS):
        pairs = [
            ([chance.gauss(0, 1) for _ in range(look)], [chance.gauss(0, 1) for _ in range(look)])
            for _ in range(trials)
        ]
        tenths = 1
        while sum(_sure(pair, tenths / 10) for pair in pairs) < 0.75 * trials:
            tenths += 1
        print(f"  {look:3} runs of each: {tenths / 10} standard deviations apart")


def _sure(pair: tuple[Sequence[float], Sequence[float]], distance: float) -> bool:
    base, arm = pair
    return bool(sequential.sure_after(base, [number + distance for number in arm]))


def _line(name: str, found: Counter[int]) -> str:
    trials = found.total()
    runs = sum((after or MOST) * count for after, count in found.items()) / trials
    first = found[sequential.CLEAR] / trials
    return f"  {name:32} {1 - found[0] / trials:8.1%} {first:10.1%} {runs:9.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="How often ab --until-sure is sure.")
    parser.add_argument("--trials", type=int, default=20000)
    parser.add_argument("--runs", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument("--limits", action="store_true")
    asked = parser.parse_args()
    if asked.limits:
        limits(asked.trials * 10)
        apart(asked.trials)
        return
    real = {}
    for file in asked.runs:
        document = json.loads(file.read_text())
        for row in document["rows"]:
            if row["arm"] == "base" and len(row["numbers"]) >= MOST:
                real[f"{row['metric']}, {row['caches']}, {file.stem}"] = row["numbers"]
    for effect in EFFECTS:
        print(f"effect {effect}x: sure, of these after {sequential.CLEAR} runs, runs of each arm")
        for name, draw in NOISE.items():
            print(_line(name, simulated(draw, effect, asked.trials)))
        for name, numbers in real.items():
            print(_line(name[:32], resampled(numbers, effect, asked.trials)))
    print(f"no effect, runs of a compile differ by {RUN:.1%}: called different")
    for spread in COMPILES:
        for each_round in (False, True):
            found = compiled(spread, each_round, asked.trials)
            how = "in each round" if each_round else "once"
            print(_line(f"compiles by {spread:.1%}, {how}", found))


if __name__ == "__main__":
    main()
