"""From rows to what is proven: for each subject whether it is sound, and whether it gains.

A subject is sound if each of its trials ended and was right with empty and with warm caches, and if
it captures graphs, so were these in as many fresh processes as a battery makes; one fault is enough
for the contrary. It gains if it is sound, some trial is faster by GAIN or more, and
none is slower by as much: the 95 % bootstrap intervals of the ratios to the base have to show it.

The calls of one process are alike, and those of the next one may all be slower: a launch takes 1.5
times as long in some (docs/measurements.md). So each start counts as one number, its median, and
five of each side are needed. What seems to gain after fewer starts is started again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, median

from rocm_autopatch.measure.ab import bootstrap
from rocm_autopatch.measure.prove import (
    COLD,
    COMPILED,
    ENDED,
    FAULTS,
    FRESH_STARTS,
    NOT_HERE,
    WARM,
)
from rocm_autopatch.measure.prove.rows import TrialRow
from rocm_autopatch.measure.prove.subjects import BASE

GAIN = 0.03
# Fresh starts are about a fault that one process of so many has.
SELDOM = 5
# Of the trials that seem faster, and of those that seem slower, so many are started again.
_AGAIN = 2
# A GPU that only compiles gives the times of cold starts.
_TIMED = (ENDED, COMPILED)


@dataclass(frozen=True)
class TrialFault:
    """A trial of a subject that did not work in a start: its status is one of FAULTS."""

    trial: str
    start: str
    status: str


@dataclass(frozen=True)
class TrialFigures:
    """Ratios to the base, None if they are not known; below 1 is faster, or less memory.

    ``cold`` and ``warm``: of the first calls. ``steady``: of later calls, with the ends of its
    95 % interval before and after it, and ``starts``: how many each side has for it at least.
    ``memory``: of what was reserved at most while calls were timed.
    """

    cold: float | None = None
    warm: float | None = None
    steady: tuple[float, float, float] | None = None
    starts: int | None = None
    memory: float | None = None

    @property
    def is_settled(self) -> bool:
        """Whether there are enough starts to believe ``steady``."""
        return self.starts is not None and self.starts >= bootstrap.FEWEST

    @property
    def is_faster(self) -> bool:
        """Whether it is sure that later calls are faster by GAIN or more."""
        return self.steady is not None and self.steady[2] <= 1 - GAIN

    @property
    def is_slower(self) -> bool:
        """Whether it is sure that they are slower by as much."""
        return self.steady is not None and self.steady[0] >= 1 + GAIN

    def document(self) -> dict[str, object]:
        """The figures as JSON has them."""
        steady = list(self.steady) if self.steady else None
        return _known_figures(
            cold=self.cold,
            warm=self.warm,
            steady=steady,
            starts=self.starts,
            memory=self.memory,
        )


@dataclass(frozen=True)
class SubjectVerdict:
    """What is proven of a subject: whether it is ``sound`` and ``gains``, None if it is not known.

    ``missing`` are the trials that were not finished, ``not_here`` those that are not possible
    here; ``trials`` has the figures of each. ``fresh_starts`` is how many fresh processes were
    right, and ``seldom_faults`` what that says, None if there were none. The other figures are
    geometric means over the trials.
    """

    sound: bool | None
    gains: bool | None
    faults: tuple[TrialFault, ...]
    missing: tuple[str, ...]
    not_here: tuple[str, ...]
    trials: Mapping[str, TrialFigures]
    fresh_starts: int | None = None
    seldom_faults: str | None = None
    cold: float | None = None
    warm: float | None = None
    memory: float | None = None
    steady: float | None = None

    def document(self) -> dict[str, object]:
        """The verdict as the evidence file has it."""
        return {
            "sound": self.sound,
            "gains": self.gains,
            "faults": [asdict(one) for one in self.faults],
            "missing": list(self.missing),
            "not_here": list(self.not_here),
            "trials": {trial: figures.document() for trial, figures in self.trials.items()},
            **_known_figures(
                fresh_starts=self.fresh_starts,
                seldom_faults=self.seldom_faults,
                cold=self.cold,
                warm=self.warm,
                memory=self.memory,
                steady=self.steady,
            ),
        }


def _known_figures(**figures: object) -> dict[str, object]:
    return {name: value for name, value in figures.items() if value is not None}


def subject_verdicts(
    rows: Sequence[TrialRow],
    units: Iterable[tuple[str, str]],
    fresh: Mapping[str, int] | None = None,
) -> dict[str, SubjectVerdict]:
    """For each subject of *units* what its *rows* prove; *units* are what should have been run.

    *fresh* are, by subject, how many fresh processes must have been right.
    """
    found: dict[str, list[str]] = {}
    for trial, subject in units:
        found.setdefault(subject, []).append(trial)
    needed = fresh or {}
    return {
        name: _subject_verdict(name, trials, rows, needed.get(name, 0))
        for name, trials in found.items()
    }


def count_fresh(rows: Iterable[TrialRow], subject: str) -> int:
    """How many fresh processes of a subject were right."""
    return sum(row.right or 0 for row in _fresh_rows(rows, subject))


def count_fresh_starts(rows: Iterable[TrialRow], subject: str) -> int:
    """How many fresh processes of a subject there were, right or not."""
    return sum(row.starts or 0 for row in _fresh_rows(rows, subject))


def has_fresh_faults(rows: Iterable[TrialRow], subject: str) -> bool:
    """Whether graphs were wrong in a fresh process."""
    return any(row.status in FAULTS for row in _fresh_rows(rows, subject))


def _fresh_rows(rows: Iterable[TrialRow], subject: str) -> list[TrialRow]:
    return [row for row in rows if row.unit == (FRESH_STARTS, subject)]


def chance_to_see(starts: int, one_of: int = SELDOM) -> float:
    """How likely so many processes show a fault that one process of *one_of* has."""
    return 1 - (1 - 1 / one_of) ** starts


def state_chance(starts: int) -> str:
    """The same as a sentence. Percents are cut, so it never says more than is true."""
    percent = int(100 * chance_to_see(starts))
    return f"a fault in 1 of {SELDOM} processes would have been seen with {percent} %"


def unsettled_trials(
    rows: Sequence[TrialRow], units: Iterable[tuple[str, str]]
) -> dict[str, list[str]]:
    """Trials that have to be started again to say whether a subject gains, by subject."""
    found = {}
    for name, said in subject_verdicts(rows, units).items():
        if said.sound and said.gains is None:
            ratios = {trial: one.steady[1] for trial, one in said.trials.items() if one.steady}
            by_ratio = sorted(ratios, key=ratios.__getitem__)
            faster = [trial for trial in by_ratio if said.trials[trial].is_faster]
            slower = [trial for trial in by_ratio if said.trials[trial].is_slower]
            found[name] = faster[:_AGAIN] + slower[-_AGAIN:]
    return {name: trials for name, trials in found.items() if trials}


def finished_units(rows: Iterable[TrialRow]) -> set[tuple[str, str]]:
    """The units that were tried: where the cold start ended, there is a warm one."""
    return {row.unit for row in rows if row.start == WARM or row.status != ENDED}


def _subject_verdict(
    name: str, trials: Sequence[str], rows: Sequence[TrialRow], fresh: int
) -> SubjectVerdict:
    tried = {*trials, FRESH_STARTS}
    own = [row for row in rows if row.subject == name and row.trial in tried]
    right = count_fresh(own, name)
    faults = tuple(
        TrialFault(row.trial, row.start, row.status) for row in own if row.status in FAULTS
    )
    done = {trial for trial, _ in finished_units(own)}
    ended = {row.trial for row in own if row.status == ENDED} & done
    sound: bool | None = None
    if faults:
        sound = False
    elif ended and done.issuperset(trials) and right >= fresh:
        sound = True
    figures = {trial: _figures_of(name, trial, rows) for trial in trials if trial in done}
    timed = [one for one in figures.values() if one.steady]
    gains: bool | None = False if sound is False else None
    if sound and timed:
        settled = [one for one in timed if one.is_settled]
        if settled or not any(one.is_faster for one in timed):
            faster = any(one.is_faster for one in settled)
            gains = faster and not any(one.is_slower for one in settled)
    starts = count_fresh_starts(own, name)
    return SubjectVerdict(
        sound,
        gains,
        faults,
        missing=(*sorted({*trials} - done), *[FRESH_STARTS] * (not faults and right < fresh)),
        not_here=tuple(sorted({row.trial for row in own if row.status == NOT_HERE})),
        trials=figures,
        fresh_starts=right if starts else None,
        seldom_faults=state_chance(starts) if starts else None,
        cold=_geometric_mean([one.cold for one in figures.values()]),
        warm=_geometric_mean([one.warm for one in figures.values()]),
        memory=_geometric_mean([one.memory for one in figures.values()]),
        steady=_geometric_mean([one.steady[1] if one.steady else None for one in timed]),
    )


def _geometric_mean(figures: Iterable[float | None]) -> float | None:
    """The geometric mean of what is known."""
    known = [one for one in figures if one]
    return round(geometric_mean(known), 3) if known else None


def _figures_of(name: str, trial: str, rows: Sequence[TrialRow]) -> TrialFigures:
    """A subject's figures in one trial, of the waves that have both it and the base.

    Of cold starts, the first one of each wave counts: beside later ones there were fewer others.
    """
    ours = [row for row in rows if row.unit == (trial, name)]
    waves = {row.wave for row in ours}
    base = [row for row in rows if row.unit == (trial, BASE) and row.wave in waves]
    steady, starts = None, None
    before, after = ([median(row.samples) for row in side if row.samples] for side in (base, ours))
    compared = _compare_samples(tuple(before), tuple(after))
    if compared.interval is not None and compared.ratio is not None:
        low, high = compared.interval
        steady = round(low, 4), round(compared.ratio, 4), round(high, 4)
        starts = min(len(before), len(after))
    memory = None
    peaks = [[row.peak for row in side if row.peak] for side in (ours, base)]
    if all(peaks):
        memory = round(max(peaks[0]) / max(peaks[1]), 3)
    return TrialFigures(
        _first_call_ratio(ours, base, COLD),
        _first_call_ratio(ours, base, WARM),
        steady,
        starts,
        memory,
    )


def _first_call_ratio(
    ours: Sequence[TrialRow], base: Sequence[TrialRow], kind: str
) -> float | None:
    """The ratio of the first calls in starts of a kind."""
    pair = []
    for side in (ours, base):
        # A GPU that only compiles may refuse before the first call ends.
        timed = [
            row
            for row in side
            if row.start == kind and row.status in _TIMED and row.first is not None
        ]
        if kind == COLD:
            timed = [*{row.wave: row for row in reversed(timed)}.values()]
        pair.append([row.first for row in timed if row.first is not None])
    if not all(pair) or min(map(min, pair)) <= 0:
        return None
    return round(median(pair[0]) / median(pair[1]), 3)


# It takes 0.1 s, and a battery makes its document again after each start.
@functools.cache
def _compare_samples(
    before: tuple[float, ...], after: tuple[float, ...]
) -> bootstrap.MedianComparison:
    return bootstrap.compare_medians(before, after)
