"""How two arms differ, and whether that can be told from noise.

The ratio is that of the medians. Its interval is the middle 95 % of the ratios that resampling
gives: both arms drawn anew from their own numbers, with replacement (the percentile bootstrap). A
difference is one whose interval leaves 1 out. With five or more runs of each arm that is wrong for
about one in twenty arms that do not differ, whatever the shape of the noise; with four it is wrong
for one in ten (tests/test_ab.py), so there is no verdict then.
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
class Comparison:
    """An arm against the base: ``ratio`` of medians, its interval, and what can be said.

    ``noise`` is how far the interval reaches from the ratio, as a part of it. Without positive
    numbers on both sides there is no ratio, and the three are None.
    """

    verdict: str
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    noise: float | None = None


def compare(base: Sequence[float], arm: Sequence[float], seed: int = 0) -> Comparison:
    """Compare the numbers of an arm with those of the base; the same *seed*, the same answer."""
    if not base or not arm or min(*base, *arm) <= 0:
        return Comparison(NO_RATIO)
    ratio = median(arm) / median(base)
    chance = random.Random(seed)
    low, high = _middle([_redrawn(arm, chance) / _redrawn(base, chance) for _ in range(_RESAMPLES)])
    verdict = SAME if low <= 1 <= high else DIFFERENT
    if min(len(base), len(arm)) < FEWEST:
        verdict = TOO_FEW
    return Comparison(verdict, ratio, (low, high), max(ratio - low, high - ratio) / ratio)


def interval(numbers: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median of *numbers*."""
    chance = random.Random(seed)
    return _middle([_redrawn(numbers, chance) for _ in range(_RESAMPLES)])


def _redrawn(numbers: Sequence[float], chance: random.Random) -> float:
    return median(chance.choices(numbers, k=len(numbers)))


def _middle(drawn: list[float]) -> tuple[float, float]:
    drawn.sort()
    cut = round(len(drawn) * (1 - CONFIDENCE) / 2)
    return drawn[cut], drawn[-1 - cut]
