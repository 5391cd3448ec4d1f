"""How long a program times its calls: first until the GPU's clock is steady, then for a median."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import turns

Result = TypeVar("Result")
# From a low clock, a GPU needs some hundred milliseconds of work to reach its usual one.
_WARM_S, _TIMED_S = 0.7, 0.5
_LEAST = 3


def median_of(call: Callable[[], tuple[float, Result]]) -> tuple[float, Result]:
    """Of calls that return their seconds and a result: the median seconds, and the last result.

    The first call, which compiles, has to be made before.
    """
    with turns.mine():
        for _ in _calls(call, _WARM_S):
            pass
        found = list(_calls(call, _TIMED_S))
    return statistics.median(seconds for seconds, _ in found), found[-1][1]


def _calls(call: Callable[[], Result], seconds: float) -> Iterator[Result]:
    """Make calls for so many seconds, but a few at least."""
    until, count = time.monotonic() + seconds, 0
    while count < _LEAST or time.monotonic() < until:
        yield call()
        count += 1
