"""From rows to what is proven: for each subject whether it is sound, and whether it gains.

A subject is sound if each of its trials ended and was right with empty and with warm caches, and if
it captures graphs, so were these in as many fresh processes as a battery makes; one fault is enough
for the contrary. It gains if it is sound, some trial is faster by GAIN or more, and
none is slower by as much: the 95 % bootstrap intervals of the ratios to the base have to show it.

The calls of one process are alike, and those of the next one may all be slower: a launch takes 1.5
times as long in some (docs/performance.md). So each start counts as one number, its median, and
five of each side are needed. What seems to gain after fewer starts is started again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from rocm_autopatch.ab import bootstrap
from rocm_autopatch.prove import (
    COLD,
    COMPILED,
    ENDED,
    FAULTS,
    FRESH_STARTS,
    NOT_HERE,
    WARM,
)
from rocm_autopatch.prove.subjects import BASE

GAIN = 0.03
# Fresh starts are about a fault that one process of so many has.
SELDOM = 5
# Of the trials that seem faster, and of those that seem slower, so many are started again.
_AGAIN = 2
Row = Mapping[str, Any]
# A GPU that only compiles gives the times of cold starts.
_TIMED = (ENDED, COMPILED)


def subjects(
    rows: Sequence[Row],
    units: Iterable[tuple[str, str]],
    fresh: Mapping[str, int] | None = None,
) -> dict[str, dict[str, Any]]:
    """For each subject of *units* what its *rows* prove; *units* are what should have been run.

    *fresh* are, by subject, how many fresh processes must have been right.
    """
    found: dict[str, list[str]] = {}
    for trial, subject in units:
        found.setdefault(subject, []).append(trial)
    needed = fresh or {}
    return {
        name: _subject(name, trials, rows, needed.get(name, 0)) for name, trials in found.items()
    }


def count_fresh(rows: Iterable[Row], subject: str, key: str = "right") -> int:
    """How many fresh processes of a subject were right, or how many "starts" there were in all."""
    return sum(row[key] for row in _fresh_rows(rows, subject))


def has_fresh_faults(rows: Iterable[Row], subject: str) -> bool:
    """Whether graphs were wrong in a fresh process."""
    return any(row["status"] in FAULTS for row in _fresh_rows(rows, subject))


def _fresh_rows(rows: Iterable[Row], subject: str) -> list[Row]:
    return [row for row in rows if (row["trial"], row["subject"]) == (FRESH_STARTS, subject)]


def chance_to_see(starts: int, one_of: int = SELDOM) -> float:
    """How likely so many processes show a fault that one process of *one_of* has."""
    return 1 - (1 - 1 / one_of) ** starts


def state_chance(starts: int) -> str:
    """The same as a sentence. Percents are cut, so it never says more than is true."""
    percent = int(100 * chance_to_see(starts))
    return f"a fault in 1 of {SELDOM} processes would have been seen with {percent} %"


def unsettled(rows: Sequence[Row], units: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Trials that have to be started again to say whether a subject gains, by subject."""
    found = {}
    for name, said in subjects(rows, units).items():
        if said["sound"] and said["gains"] is None:
            ratios = {
                trial: figures["steady"]
                for trial, figures in said["trials"].items()
                if "steady" in figures
            }
            by_ratio = sorted(ratios, key=lambda trial: ratios[trial][1])
            faster = [trial for trial in by_ratio if _is_faster(ratios[trial])]
            slower = [trial for trial in by_ratio if _is_slower(ratios[trial])]
            found[name] = faster[:_AGAIN] + slower[-_AGAIN:]
    return {name: trials for name, trials in found.items() if trials}


def finished(rows: Iterable[Row]) -> set[tuple[str, str]]:
    """The units that were tried: where the cold start ended, there is a warm one."""
    return {
        (row["trial"], row["subject"])
        for row in rows
        if row["start"] == WARM or row["status"] != ENDED
    }


def _subject(name: str, trials: Sequence[str], rows: Sequence[Row], fresh: int) -> dict[str, Any]:
    tried = {*trials, FRESH_STARTS}
    own = [row for row in rows if row["subject"] == name and row["trial"] in tried]
    right = count_fresh(own, name)
    faults = [
        {"trial": row["trial"], "start": row["start"], "status": row["status"]}
        for row in own
        if row["status"] in FAULTS
    ]
    done = {trial for trial, _ in finished(own)}
    ended = {row["trial"] for row in own if row["status"] == ENDED} & done
    sound: bool | None = None
    if faults:
        sound = False
    elif ended and done.issuperset(trials) and right >= fresh:
        sound = True
    figures = {trial: _figures(name, trial, rows) for trial in trials if trial in done}
    timed = [one for one in figures.values() if "steady" in one]
    gains: bool | None = False if sound is False else None
    if sound and timed:
        settled = [one for one in timed if one["starts"] >= bootstrap.FEWEST]
        if settled or not any(_is_faster(one["steady"]) for one in timed):
            faster = any(_is_faster(one["steady"]) for one in settled)
            gains = faster and not any(_is_slower(one["steady"]) for one in settled)
    result: dict[str, Any] = {
        "sound": sound,
        "gains": gains,
        "faults": faults,
        "missing": sorted({*trials} - done) + [FRESH_STARTS] * (not faults and right < fresh),
        "not_here": sorted({row["trial"] for row in own if row["status"] == NOT_HERE}),
        "trials": figures,
    }
    starts = count_fresh(own, name, "starts")
    if starts:
        result["fresh_starts"] = right
        result["seldom_faults"] = state_chance(starts)
    for key in ("cold", "warm", "memory"):
        known = [one[key] for one in figures.values() if one.get(key)]
        if known:
            result[key] = round(geometric_mean(known), 3)
    if timed:
        result["steady"] = round(geometric_mean([one["steady"][1] for one in timed]), 3)
    return result


def _is_faster(ratio: Sequence[float]) -> bool:
    return ratio[2] <= 1 - GAIN


def _is_slower(ratio: Sequence[float]) -> bool:
    return ratio[0] >= 1 + GAIN


def _figures(name: str, trial: str, rows: Sequence[Row]) -> dict[str, Any]:
    """A subject's ratios to the base in one trial, of the waves that have both.

    ``cold`` and ``warm``: of the first calls. Of cold starts, the first one of each wave counts:
    beside later ones there were fewer others. ``steady``: of later calls, with the interval around
    it, and ``starts``: how many each side has for it at least. ``memory``: of what was reserved at
    most while calls were timed.
    """
    ours = [row for row in rows if (row["subject"], row["trial"]) == (name, trial)]
    waves = {row["wave"] for row in ours}
    base = [
        row
        for row in rows
        if (row["subject"], row["trial"]) == (BASE, trial) and row["wave"] in waves
    ]
    found: dict[str, Any] = {}
    for kind in (COLD, WARM):
        pair = []
        for side in (ours, base):
            # A GPU that only compiles may refuse before the first call ends.
            timed = [
                row
                for row in side
                if row["start"] == kind and row["status"] in _TIMED and "first" in row
            ]
            if kind == COLD:
                timed = [*{row["wave"]: row for row in reversed(timed)}.values()]
            pair.append([row["first"] for row in timed])
        if all(pair) and min(map(min, pair)) > 0:
            found[kind] = round(median(pair[0]) / median(pair[1]), 3)
    before, after = (
        [median(row["samples"]) for row in side if row.get("samples")] for side in (base, ours)
    )
    compared = _compared(tuple(before), tuple(after))
    if compared.interval is not None and compared.ratio is not None:
        low, high = compared.interval
        found["steady"] = [round(number, 4) for number in (low, compared.ratio, high)]
        found["starts"] = min(len(before), len(after))
    peaks = [[row["peak"] for row in side if row.get("peak")] for side in (ours, base)]
    if all(peaks):
        found["memory"] = round(max(peaks[0]) / max(peaks[1]), 3)
    return found


# It takes 0.1 s, and a battery makes its document again after each start.
@functools.cache
def _compared(before: tuple[float, ...], after: tuple[float, ...]) -> bootstrap.Comparison:
    return bootstrap.compare(before, after)
