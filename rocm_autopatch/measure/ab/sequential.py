"""When a comparison may stop: a test that is looked at several times, with one error rate for all.

The looks are planned before the first run, after LOOKS and CLEAR runs of each arm. For arms that do
not differ, all looks together are wrong in at most ERROR of the comparisons, whatever the noise is,
if the runs do not depend on each other:

- At CLEAR runs of each arm, one arm has to lie wholly below the other, and the gap between them has
  to be larger than the range of either. For six numbers from one source, that is likeliest if the
  source has two values, each as likely as the other: 2 of the 64 ways to draw them, and a little
  more if each value is again two values that are close. So it is 3.3 %.
- At LOOKS, the rank test of Mann and Whitney: how many pairs are in the wrong order. If the arms do
  not differ, all orders of the runs are equally likely, so its error does not depend on the noise.
  The most pairs for each look were chosen so that all looks together err in 1.7 %, which is shared
  out over the looks as Lan and DeMets (1983) do it. Pairs of equal numbers count as in the wrong
  order.

``benchmarks/sequential.py`` finds these limits again, and tries the whole in simulations.
"""

from __future__ import annotations

from collections.abc import Sequence

ERROR = 0.05
CLEAR = 3
# Runs of each arm -> the most pairs in the wrong order, of the square of that number.
LOOKS = {5: 0, 7: 3, 10: 13, 14: 36, 20: 94}
MOST = max(LOOKS)
# How far apart two arms are, in standard deviations of a run, of which three of four comparisons
# are sure by a look. The noise is normal. benchmarks/sequential.py finds them again.
_APART = {CLEAR: 5.0, 5: 2.9, 7: 2.3, 10: 1.8, 14: 1.5}


def sure_after(base: Sequence[float], arm: Sequence[float]) -> int:
    """The runs of each arm after which it is sure that they differ, 0 if it is not.

    *base* and *arm* are in the order of the runs. Looks for which there are not enough runs yet are
    left out.
    """
    for count in (CLEAR, *LOOKS):
        if min(len(base), len(arm)) < count:
            return 0
        one, other = base[:count], arm[:count]
        if _clearly_apart(one, other) if count == CLEAR else _in_order(one, other, LOOKS[count]):
            return count
    return 0


def runs_needed(apart: float) -> int:
    """After how many runs of each arm it is likely to be sure that they differ.

    They are *apart* by so many standard deviations of a run.
    """
    return next((count for count, least in _APART.items() if apart >= least), MOST)


def next_look(base: Sequence[float], arm: Sequence[float]) -> tuple[int, bool]:
    """The runs of each arm at the next look, and whether it may be sure then.

    It may not if there are too many pairs in the wrong order already. There has to be a next look.
    """
    count = min(len(base), len(arm))
    look = min(look for look in LOOKS if look > count)
    return look, _in_order(base[:count], arm[:count], LOOKS[look])


def _clearly_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    gap = max(min(one) - max(other), min(other) - max(one))
    return gap > max(max(one) - min(one), max(other) - min(other))


def _in_order(one: Sequence[float], other: Sequence[float], most: int) -> bool:
    pairs = [(a, b) for a in one for b in other]
    below = sum(a < b for a, b in pairs)
    above = sum(a > b for a, b in pairs)
    return len(pairs) - max(below, above) <= most
