"""What each option does by itself, as far as the costs of many sets of options tell.

Each set says something about each option in it. So the estimates are better than those of races
between single pairs of sets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

# Effects of options are expected to be so large: a standard deviation, in logarithms of costs.
_USUAL = 0.08


def estimate(rounds: Iterable[Mapping[frozenset[int], float]], noise: float) -> dict[int, float]:
    """The effect of each option on the logarithm of the cost: a Bayesian linear regression.

    A round has the costs of sets that were measured by turns. Only what they differ by counts: a
    machine may be slower in one round than in another. *noise* is the standard deviation of the
    logarithm of a cost.
    """
    kept = [list(costs.items()) for costs in rounds if len(costs) > 1]
    order = sorted({number for costs in kept for trial, _ in costs for number in trial})
    place_of = {number: place for place, number in enumerate(order)}
    size, weight = len(order), 1 / (2 * noise**2)
    matrix = [[0.0] * (size + 1) for _ in order]
    for place in range(size):
        matrix[place][place] = 1 / _USUAL**2
    for (against, least), *others in kept:
        for trial, cost in others:
            ratio = math.log(cost / least)
            signs = {place_of[number]: 1 for number in trial - against}
            signs.update((place_of[number], -1) for number in against - trial)
            for one, sign in signs.items():
                for other, second in signs.items():
                    matrix[one][other] += sign * second * weight
                matrix[one][size] += sign * ratio * weight
    # The matrix is positive definite, so there is a pivot in each row.
    for place in range(size):
        pivot = matrix[place]
        for row in matrix:
            if row is not pivot and row[place]:
                factor = row[place] / pivot[place]
                for column in range(place, size + 1):
                    row[column] -= factor * pivot[column]
    return {
        number: matrix[place][size] / matrix[place][place] for place, number in enumerate(order)
    }
