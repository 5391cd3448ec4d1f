"""From runs to rows: which numbers are compared, and how each arm compares with the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from rocm_autopatch.ab import Refused, bootstrap, sequential
from rocm_autopatch.ab.numbers import WALL, Metric
from rocm_autopatch.ab.runner import ENDED, Run

WALL_METRIC = Metric(WALL, "s")


@dataclass(frozen=True)
class Row:
    """An arm's numbers of one metric with cold or warm caches.

    ``comparison`` is with the base's numbers; None for the base itself.
    """

    metric: Metric
    caches: str
    arm: int
    numbers: tuple[float, ...]
    comparison: bootstrap.Comparison | None


def of(run: Run, metric: Metric) -> float | None:
    """A run's number; None if the run did not print it."""
    return run.seconds if metric == WALL_METRIC else run.numbers.get(metric)


def metrics(runs: Sequence[Run], patterns: bool) -> list[Metric]:
    """What can be compared: the wall time, and the numbers that every run printed.

    With *patterns*, the numbers that any run printed.
    """
    ended = [run for run in runs if run.status == ENDED]
    found = dict.fromkeys(metric for run in ended for metric in run.numbers)
    return [
        WALL_METRIC,
        *(m for m in found if patterns or all(m in run.numbers for run in ended)),
    ]


def chosen(found: Sequence[Metric], names: Sequence[str]) -> list[Metric]:
    """The metrics that *names* mean. Raises Refused if a name means none, or several."""
    picked = []
    for name in names:
        fits = [m for m in found if name in (m.name, str(m))]
        fits = fits or [m for m in found if name.lower() in m.name.lower()]
        if len(fits) != 1:
            there = "; ".join(map(str, fits or found))
            wrong = (
                "several numbers have this name" if fits else "not every run prints such a number"
            )
            raise Refused(
                f"--metric {name}: {wrong}; {'they' if fits else 'the others'} are: {there}"
            )
        picked += fits
    return picked or list(found)


def changing(found: Sequence[Metric], runs: Sequence[Run]) -> list[Metric]:
    """The metrics without those that are the same number in all runs, such as sizes."""
    return [m for m in found if len({of(r, m) for r in runs if r.status == ENDED} - {None}) != 1]


def rows(
    runs: Sequence[Run],
    found: Sequence[Metric],
    caches: Sequence[str],
    arms: int,
    seed: int,
    until_sure: bool = False,
) -> list[Row]:
    """The rows of a table: metric by metric, cold before warm, the base first.

    With *until_sure* the verdicts are those of the sequential test.
    """
    made = []
    for metric in found:
        for kind in caches:
            numbers = [numbers_of(runs, metric, kind, arm) for arm in range(arms)]
            for arm, its in enumerate(numbers):
                both = arm and its and numbers[0]
                # An arm may have stopped before the base: they are compared in the same rounds.
                base = numbers[0][: len(its)] if until_sure else numbers[0]
                compared = bootstrap.compare(base, its, seed) if both else None
                if compared and until_sure:
                    compared = _sequential(compared, base, its)
                if its:
                    made.append(Row(metric, kind, arm, its, compared))
    return made


def _sequential(
    compared: bootstrap.Comparison, base: Sequence[float], arm: Sequence[float]
) -> bootstrap.Comparison:
    """A comparison with the verdict of the sequential test."""
    after = sequential.sure_after(base, arm)
    verdict = compared.verdict
    if verdict != bootstrap.NO_RATIO:
        verdict = bootstrap.DIFFERENT if after else bootstrap.SAME
        if not after and min(len(base), len(arm)) < bootstrap.FEWEST:
            verdict = bootstrap.TOO_FEW
    return replace(compared, verdict=verdict, sure_after=after)


def numbers_of(runs: Sequence[Run], metric: Metric, caches: str, arm: int) -> tuple[float, ...]:
    """The measured numbers of an arm, in the order of the runs."""
    found = [
        of(run, metric)
        for run in runs
        if run.round and (run.arm, run.caches, run.status) == (arm, caches, ENDED)
    ]
    return tuple(number for number in found if number is not None)


def verdict(row: Row) -> str:
    """The row in words."""
    compared = row.comparison
    if compared is None:
        return "no ratio: the base did not print this number" if row.arm else ""
    if compared.ratio is None or compared.interval is None or compared.noise is None:
        return "no ratio: not all numbers of this arm and the base are above zero"
    low, high = compared.interval
    ratio = compared.ratio
    if compared.verdict == bootstrap.TOO_FEW:
        return (
            f"{shown(ratio)}x, too few runs for a verdict, which needs {bootstrap.FEWEST} of each "
            "arm"
        )
    if compared.verdict == bootstrap.SAME:
        if len({*row.numbers}) == 1 and low == ratio == high:
            return "no difference: always the same number"
        if compared.sure_after == 0:
            low_high = f"({shown(low)} to {shown(high)})"
            return f"no difference that is sure after {len(row.numbers)} runs of each {low_high}"
        return f"no difference seen: noise of ±{percent(compared.noise)} is larger than the effect"
    sure = f", sure after {compared.sure_after} runs of each" if compared.sure_after else ""
    if row.metric == WALL_METRIC:
        if ratio < 1:
            return f"{shown(1 / ratio)}x faster ({shown(1 / high)} to {shown(1 / low)}){sure}"
        return f"{shown(ratio)}x slower ({shown(low)} to {shown(high)}){sure}"
    word = "lower" if ratio < 1 else "higher"
    return f"{shown(ratio)}x, {word} ({shown(low)} to {shown(high)}){sure}"


def shown(ratio: float) -> str:
    """A ratio, with enough digits to show that it is not 1."""
    for digits in (2, 3, 4):
        if abs(ratio - 1) >= 2 * 10.0**-digits:
            return f"{ratio:.{digits}f}"
    return f"{ratio:.5f}" if ratio != 1 else "1.00"


def percent(part: float) -> str:
    """A part of 1 as a percentage of two digits: ``4 %``, ``0.35 %``."""
    return f"{100 * part:.{0 if part >= 0.0095 else 2}f} %"


def spread(row: Row) -> tuple[float, float, float]:
    """Lowest, median and highest number of a row."""
    return min(row.numbers), median(row.numbers), max(row.numbers)
