"""How two arms differ, and whether the difference is larger than the noise.

The ratio is that of the medians. Its interval is the middle 95 % of the ratios from resampling:
both arms are drawn again from their own numbers, with replacement (the percentile bootstrap). Two
arms differ if the interval does not contain 1. With five or more runs of each arm, this is wrong
for about one in twenty arms that do not differ, whatever the shape of the noise. With four runs it
is wrong for one in ten (tests/test_ab.py), so there is no verdict then.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

CONFIDENCE = 0.95
FEWEST = 5
_RESAMPLES = 4000

DIFFERENT, SAME, TOO_FEW, NO_RATIO = "different", "no difference", "too few runs", "no ratio"


@dataclass(frozen=True)
class MedianComparison:
    """An arm against the base: the verdict, the ``ratio`` of medians, and its interval.

    ``noise`` is the largest distance from the ratio to an end of the interval, as a part of the
    ratio. If not all numbers of both arms are positive, these three are None. ``sure_after`` is how
    many runs of each arm a sequential test needed to be sure, 0 if it is not; None without such a
    test.
    """

    verdict: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    noise: float | None = None
    sure_after: int | None = None


def compare_medians(base: Sequence[float], arm: Sequence[float], seed: int = 0) -> MedianComparison:
    """Compare the numbers of an arm with the base's. The same *seed* gives the same answer."""
    if not base or not arm or min(*base, *arm) <= 0:
        return MedianComparison(NO_RATIO)
    ratio = median(arm) / median(base)
    chance = random.Random(seed)
    low, high = _middle_interval(
        [_redrawn_median(arm, chance) / _redrawn_median(base, chance) for _ in range(_RESAMPLES)]
    )
    verdict = SAME if low <= 1 <= high else DIFFERENT
    if min(len(base), len(arm)) < FEWEST:
        verdict = TOO_FEW
    return MedianComparison(verdict, ratio, (low, high), max(ratio - low, high - ratio) / ratio)


def median_interval(numbers: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median of *numbers*."""
    chance = random.Random(seed)
    return _middle_interval([_redrawn_median(numbers, chance) for _ in range(_RESAMPLES)])


def _redrawn_median(numbers: Sequence[float], chance: random.Random) -> float:
    return median(chance.choices(numbers, k=len(numbers)))


def _middle_interval(drawn: list[float]) -> tuple[float, float]:
    drawn.sort()
    cut = round(len(drawn) * (1 - CONFIDENCE) / 2)
    return drawn[cut], drawn[-1 - cut]
