"""What each option does by itself, as far as the costs of many sets of options tell.

Each set says something about each option in it. So the estimates are better than those of races
between single pairs of sets.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocm_autopatch.measure.tune.levels import CostLevels, Trial

# Effects of options are expected to be so large: a standard deviation, in logarithms of costs.
_USUAL = 0.08
# The level of the base may be anything.
_ANY = 100.0


def estimate_effects(levels: CostLevels) -> dict[int, float]:
    """The effect of each option on the logarithm of the cost: a Bayesian linear regression."""
    known: Mapping[Trial, tuple[float, float]] = {one: levels.level(one) for one in levels.trials}
    order = sorted({number for trial in known for number in trial})
    place_of = {number: place for place, number in enumerate(order)}
    size = len(order) + 1
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for place in range(size):
        matrix[place][place] = 1 / (_USUAL if place < len(order) else _ANY) ** 2
    for trial, (log, error) in known.items():
        places = [*(place_of[number] for number in trial), len(order)]
        for one in places:
            for other in places:
                matrix[one][other] += 1 / error**2
            matrix[one][size] += log / error**2
    # The matrix is positive definite, so there is a pivot in each row.
    for place in range(size):
        pivot = matrix[place]
        for row in matrix:
            if row is not pivot and row[place]:
                factor = row[place] / pivot[place]
                for column in range(place, size + 1):
                    row[column] -= factor * pivot[column]
    return {
        number: matrix[place][size] / matrix[place][place] for number, place in place_of.items()
    }
