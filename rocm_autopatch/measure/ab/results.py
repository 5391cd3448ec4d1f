"""From runs to rows: which numbers are compared, and how each arm compares with the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from rocm_autopatch.measure.ab import RequestRefused, bootstrap, sequential
from rocm_autopatch.measure.ab.numbers import WALL, NumberLabel
from rocm_autopatch.measure.ab.runner import ENDED, MeasuredRun

WALL_METRIC = NumberLabel(WALL, "s")


@dataclass(frozen=True)
class MetricRow:
    """An arm's numbers of one metric with cold or warm caches.

    ``comparison`` is with the base's numbers; None for the base itself. ``base_runs`` is how many
    runs of the base ended in which this number was looked for.
    """

    metric: NumberLabel
    caches: str
    arm: int
    numbers: tuple[float, ...]
    comparison: bootstrap.MedianComparison | None
    base_runs: int = 1


def number_of_run(run: MeasuredRun, metric: NumberLabel) -> float | None:
    """A run's number; None if the run did not print it."""
    return run.seconds if metric == WALL_METRIC else run.numbers.get(metric)


def comparable_metrics(runs: Sequence[MeasuredRun], patterns: bool) -> list[NumberLabel]:
    """What can be compared: the wall time, and the numbers that every run printed.

    With *patterns*, the numbers that any run printed.
    """
    ended = [run for run in runs if run.status == ENDED]
    found = dict.fromkeys(metric for run in ended for metric in run.numbers)
    return [
        WALL_METRIC,
        *(m for m in found if patterns or all(m in run.numbers for run in ended)),
    ]


def chosen_metrics(found: Sequence[NumberLabel], names: Sequence[str]) -> list[NumberLabel]:
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
            raise RequestRefused(
                f"--metric {name}: {wrong}; {'they' if fits else 'the others'} are: {there}"
            )
        picked += fits
    return picked or list(found)


def changing_metrics(
    found: Sequence[NumberLabel], runs: Sequence[MeasuredRun]
) -> list[NumberLabel]:
    """The metrics without those that are the same number in all runs, such as sizes."""
    return [
        m
        for m in found
        if len({number_of_run(r, m) for r in runs if r.status == ENDED} - {None}) != 1
    ]


def table_rows(
    runs: Sequence[MeasuredRun],
    found: Sequence[NumberLabel],
    caches: Sequence[str],
    arms: int,
    seed: int,
    until_sure: bool = False,
) -> list[MetricRow]:
    """The rows of a table: metric by metric, cold before warm, the base first.

    With *until_sure* the verdicts are those of the sequential test.
    """
    made = []
    for metric in found:
        for kind in caches:
            base_runs = sum(
                bool(run.round) and (run.arm, run.caches, run.status) == (0, kind, ENDED)
                for run in runs
            )
            numbers = [numbers_of(runs, metric, kind, arm) for arm in range(arms)]
            for arm, its in enumerate(numbers):
                both = arm and its and numbers[0]
                # An arm may have stopped before the base: they are compared in the same rounds.
                base = numbers[0][: len(its)] if until_sure else numbers[0]
                compared = bootstrap.compare_medians(base, its, seed) if both else None
                if compared and until_sure:
                    compared = _sequential_comparison(compared, base, its)
                if its:
                    made.append(MetricRow(metric, kind, arm, its, compared, base_runs))
    return made


def _sequential_comparison(
    compared: bootstrap.MedianComparison, base: Sequence[float], arm: Sequence[float]
) -> bootstrap.MedianComparison:
    """A comparison with the verdict of the sequential test."""
    after = sequential.sure_after(base, arm)
    verdict = compared.verdict
    if verdict != bootstrap.NO_RATIO:
        verdict = bootstrap.DIFFERENT if after else bootstrap.SAME
        if not after and min(len(base), len(arm)) < bootstrap.FEWEST:
            verdict = bootstrap.TOO_FEW
    return replace(compared, verdict=verdict, sure_after=after)


def numbers_of(
    runs: Sequence[MeasuredRun], metric: NumberLabel, caches: str, arm: int
) -> tuple[float, ...]:
    """The measured numbers of an arm, in the order of the runs."""
    found = [
        number_of_run(run, metric)
        for run in runs
        if run.round and (run.arm, run.caches, run.status) == (arm, caches, ENDED)
    ]
    return tuple(number for number in found if number is not None)


def verdict_text(row: MetricRow) -> str:
    """The row in words."""
    compared = row.comparison
    if compared is None:
        if not row.arm:
            return ""
        missing = "did not print this number" if row.base_runs else "was not measured"
        return f"no ratio: the base {missing}"
    if compared.ratio is None or compared.interval is None or compared.noise is None:
        return "no ratio: not all numbers of this arm and the base are above zero"
    low, high = compared.interval
    ratio = compared.ratio
    if compared.verdict == bootstrap.TOO_FEW:
        return (
            f"{ratio_text(ratio)}x, too few runs for a verdict, which needs {bootstrap.FEWEST} of "
            "each arm"
        )
    if compared.verdict == bootstrap.SAME:
        if len({*row.numbers}) == 1 and low == ratio == high:
            return "no difference: always the same number"
        if compared.sure_after == 0:
            low_high = f"({ratio_text(low)} to {ratio_text(high)})"
            return f"no difference that is sure after {len(row.numbers)} runs of each {low_high}"
        noise = percent_text(compared.noise)
        return f"no difference seen: noise of ±{noise} is larger than the effect"
    sure = f", sure after {compared.sure_after} runs of each" if compared.sure_after else ""
    if row.metric == WALL_METRIC:
        if ratio < 1:
            faster = f"({ratio_text(1 / high)} to {ratio_text(1 / low)})"
            return f"{ratio_text(1 / ratio)}x faster {faster}{sure}"
        return f"{ratio_text(ratio)}x slower ({ratio_text(low)} to {ratio_text(high)}){sure}"
    word = "lower" if ratio < 1 else "higher"
    return f"{ratio_text(ratio)}x, {word} ({ratio_text(low)} to {ratio_text(high)}){sure}"


def ratio_text(ratio: float) -> str:
    """A ratio, with enough digits to show that it is not 1."""
    for digits in (2, 3, 4):
        if abs(ratio - 1) >= 2 * 10.0**-digits:
            return f"{ratio:.{digits}f}"
    return f"{ratio:.5f}" if ratio != 1 else "1.00"


def percent_text(part: float) -> str:
    """A part of 1 as a percentage of two digits: ``4 %``, ``0.35 %``."""
    return f"{100 * part:.{0 if part >= 0.0095 else 2}f} %"


def row_spread(row: MetricRow) -> tuple[float, float, float]:
    """Lowest, median and highest number of a row."""
    return min(row.numbers), median(row.numbers), max(row.numbers)
