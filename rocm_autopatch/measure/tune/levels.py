"""What each set of options costs by all rounds: a level for each set, and a shift for each round.

The logarithm of a cost is the level of its set, plus the shift of its round, plus noise. A shift is
what all runs of a round have in common: the machine may be slower then. It is a random effect, so
as much of it is believed as the runs of the round show (Robinson 1991). If there is hardly any,
sets of different rounds can be compared, and all runs of the base count for each comparison.

One run in many may be far off, for reasons that have nothing to do with its set. What is further
away than a few standard deviations counts less, the further the less.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

# The standard deviation of a cost's logarithm as long as nothing is known, and the least one:
# better than this, ratios can't be told apart.
_UNKNOWN, _LEAST = 0.05, 0.002
# From so many standard deviations on, a run counts less.
_FAR = 2.5
# The variance of shifts, divided by that of the noise: what is expected, and how many rounds
# would have to show something else to count as much.
_SHIFTS, _ROUNDS = 0.25, 4.0
# It is fitted in at most so many steps, or until the variances change no more than by this part.
_STEPS, _CLOSE = 60, 0.003

Trial = frozenset[int]


@dataclass(frozen=True)
class CostRatio:
    """A logarithm of two costs' ratio, its standard error, and how often the set was measured."""

    log: float
    error: float
    count: int


class CostLevels:
    """The levels of all sets in *rounds*: the costs by the set, for each round."""

    def __init__(self, rounds: Sequence[Mapping[Trial, float]]) -> None:
        self._cells = [
            [(trial, math.log(cost)) for trial, cost in costs.items()] for costs in rounds if costs
        ]
        self._of: dict[Trial, list[tuple[int, float]]] = {}
        for number, cells in enumerate(self._cells):
            for trial, cost in cells:
                self._of.setdefault(trial, []).append((number, cost))
        self._shifts = [0.0] * len(self._cells)
        self._level = {trial: median(c for _, c in its) for trial, its in self._of.items()}
        self._weights: dict[tuple[Trial, int], float] = {}
        self.noise, self._part = _UNKNOWN, _SHIFTS
        for _ in range(_STEPS):
            before = self.noise, self._part
            self._weigh_runs()
            self._fit_levels()
            if all(abs(a - b) < _CLOSE * a for a, b in zip(before, (self.noise, self._part))):
                break

    def ratio(self, against: Trial, trial: Trial) -> CostRatio:
        """A set compared with another one; both have been measured, else the count is 0."""
        if against not in self._of or trial not in self._of:
            return CostRatio(0.0, math.inf, 0)
        if trial == against:
            return CostRatio(0.0, 0.0, len(self._of[trial]))
        log = self._level[trial] - self._level[against]
        return CostRatio(log, self._standard_error(against, trial), len(self._of[trial]))

    def _standard_error(self, against: Trial, trial: Trial) -> float:
        """The standard error of the difference of two levels, as if those of all others were known.

        It is that of the mixed model's equations, after its shifts are eliminated.
        """
        one = other = both = 0.0
        for number, cells in enumerate(self._cells):
            first = self._weights.get((against, number), 0.0)
            second = self._weights.get((trial, number), 0.0)
            if first or second:
                known = 1 / self._part + sum(self._weights[its, number] for its, _ in cells)
                one += first - first**2 / known
                other += second - second**2 / known
                both += first * second / known
        return self.noise * math.sqrt((one + other - 2 * both) / (one * other - both**2))

    @property
    def trials(self) -> Iterable[Trial]:
        """All sets that were measured."""
        return self._of

    def level(self, trial: Trial) -> tuple[float, float]:
        """The logarithm of a set's cost, and its standard error if shifts were known."""
        return self._level[trial], self.noise / math.sqrt(self._residual_sum(trial))

    def error(self, count: int) -> float:
        """The standard error of a ratio after so many rounds of both sets."""
        return self.noise * math.sqrt(2 / count)

    def _residual_sum(self, trial: Trial) -> float:
        return sum(self._weights[trial, number] for number, _ in self._of[trial])

    def _residual_of(self, trial: Trial, number: int, cost: float) -> float:
        return cost - self._level[trial] - self._shifts[number]

    def _weigh_runs(self) -> None:
        """Find the noise, and how much each run counts."""
        found = {
            (trial, number): self._residual_of(trial, number, cost)
            for trial, its in self._of.items()
            for number, cost in its
        }
        # Of a set with one run, the run says nothing of the noise.
        twice = [abs(r) for (one, _), r in found.items() if len(self._of[one]) > 1]
        shifts = sum(len(cells) / (len(cells) + 1 / self._part) for cells in self._cells)
        free = len(twice) - sum(len(its) > 1 for its in self._of.values()) - shifts
        if free > 0:
            typical = max(1.4826 * median(twice), _LEAST) * math.sqrt(len(twice) / free)
            squares = sum(min(r, _FAR * typical) ** 2 for r in twice)
            # Few may all be small by chance.
            self.noise = max(_LEAST, math.sqrt(squares / free) * (1 + 1 / (2 * free)))
        far = _FAR * self.noise
        self._weights = {cell: (far / max(abs(r), far)) ** 2 for cell, r in found.items()}

    def _fit_levels(self) -> None:
        """Find the levels and the shifts, and how large shifts are."""
        squares = _ROUNDS * _SHIFTS
        for number, cells in enumerate(self._cells):
            weights = [self._weights[trial, number] for trial, _ in cells]
            below = sum(weights) + 1 / self._part
            above = sum(w * (cost - self._level[trial]) for w, (trial, cost) in zip(weights, cells))
            self._shifts[number] = above / below
            squares += (self._shifts[number] / self.noise) ** 2 + 1 / below
        self._part = squares / (_ROUNDS + len(self._cells))
        for trial, its in self._of.items():
            weighted = [
                (self._weights[trial, number], cost - self._shifts[number]) for number, cost in its
            ]
            self._level[trial] = sum(w * c for w, c in weighted) / sum(w for w, _ in weighted)
