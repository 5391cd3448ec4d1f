"""Which starts there are, in which order, and what is kept of them.

Before all else, if a subject captures graphs, many fresh processes look at graphs alone
(``fresh_starts``). What they find holds for each such subject.

Each subject has a cold start with empty caches, and then warm starts in processes of their own,
with what the first one has compiled. A start runs all trials that are about its subject, one after
the other; if one crashes or hangs, the others go on in a new process.

Subjects come in waves, each with the base. Cold starts run beside each other, and say whether a
program works. Warm starts run one by one, so their times can be compared: the subjects in turn, and
for the second time in the opposite order, so that a drift over time affects all of them equally.
Trials in which a subject seems to gain, or to lose, are started more often when all else was run,
those of switches first: each process is one number for a verdict. For these starts all is compiled
anew, once: torch times kernels when it compiles them, and the luck of that would else be in all
starts of a subject.

A hang beside other starts may be their fault, and so may a crash for want of memory, or in the same
seconds as another one: a GPU that is reset ends all programs. So these are repeated alone, and that
counts. All else counts at once. A subject that hung in two trials is not tried in others: each hang
costs minutes, and one is enough.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import yaml

from rocm_autopatch.measure.ab import bootstrap
from rocm_autopatch.measure.prove import (
    COLD,
    CRASHED,
    ENDED,
    FRESH,
    FRESH_STARTS,
    HUNG,
    NOT_TRIED,
    WARM,
    trials,
    verdicts,
)
from rocm_autopatch.measure.prove.rows import TrialOutcome, TrialRow
from rocm_autopatch.measure.prove.subjects import BASE, SUBJECTS
from rocm_autopatch.measure.prove.supervisor import (
    FreshStarts,
    OutOfTime,
    StartSupervisor,
    TrialStart,
)
from rocm_autopatch.support.progress import tell_step
from rocm_autopatch.switches import SWITCH_GROUP, EvidenceSubject

T = TypeVar("T")


@dataclass(frozen=True)
class BatteryThoroughness:
    """How much a battery does.

    ``seconds``: for all of it. ``calls`` are compared with eager mode in each start, for at most
    ``check`` seconds; ``time`` seconds are timed; ``warm`` starts follow the cold one, and where
    the subject seems to gain, as many more that there are ``settle`` in all. A trial is hanging
    after ``limit`` seconds, or after ``slower`` times what the base took, if that is more; beside
    other starts after twice as long.
    ``subjects`` and ``trials`` are what it has. ``fresh`` processes must be right for a subject
    that captures graphs.
    """

    name: str
    seconds: float
    calls: int
    check: float
    time: float
    warm: int
    settle: int
    limit: float
    slower: float
    subjects: tuple[str, ...]
    trials: tuple[str, ...]
    fresh: int = 0


FULL = BatteryThoroughness(
    name="full",
    seconds=1200,
    calls=320,
    check=2,
    time=0.4,
    warm=2,
    settle=bootstrap.FEWEST,
    limit=120,
    slower=10,
    subjects=tuple(SUBJECTS),
    trials=trials.NAMES,
    # A fault in one process of five is missed by these with less than 1 %: 0.8**21.
    fresh=21,
)
QUICK = BatteryThoroughness(
    name="quick",
    seconds=120,
    calls=120,
    check=1,
    time=0.3,
    warm=1,
    settle=1,
    limit=40,
    slower=5,
    subjects=(BASE, "graphs"),
    trials=trials.QUICK,
    fresh=10,
)
# Cold starts beside each other: each may take some GB of memory, and compiles on several cores.
_MOST_AT_ONCE = 6
_CORES_A_START = 2
# A wave has so many times what runs at once.
_WAVE = 3
# Of warm starts, one is on the device. The others import torch meanwhile.
_WARM_AT_ONCE = 3
# How many limits the imports may take: of torch and others, for the first time perhaps.
_IMPORTS = 3
# How many limits a trial may take that others run beside.
_BESIDE = 2
# A subject that hung so often in a start is not tried any further.
_HANGS = 2
# Crashes within so many seconds may have one cause.
_NEAR_S = 10
# Calls that a further warm start compares with eager mode.
_FEW = 20
# How many seconds a fresh process may take. It needs one or two.
_FRESH_S = 40.0
# Of the rows of fresh starts: they belong to no wave.
_NO_WAVE = 0


@dataclass
class TrialBattery:
    """A run of trials: *kept* are the rows of an earlier run, whose units are not run again.

    *only* are names of trials and of subjects: if it has any of a kind, there are no others. *keep*
    is called when rows were added, *says* with each new row.
    """

    supervisor: StartSupervisor
    how: BatteryThoroughness
    only: Sequence[str]
    kept: Sequence[TrialRow]
    keep: Callable[[], None]
    says: Callable[[TrialRow], None]

    def __post_init__(self) -> None:
        self.rows = list(self.kept)

    def run(self) -> None:
        """Run what is missing, as long as there is time."""
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.end = self.began + self.how.seconds
        # The subjects whose starts crashed, and when, in seconds.
        self.crashes: list[tuple[str, float]] = []
        cores = os.cpu_count() or 1
        self.at_once = max(1, min(_MOST_AT_ONCE, cores // _CORES_A_START))
        self.threads = max(1, cores // self.at_once)
        # What a unit of the base took, in seconds: by trial.
        self.base: dict[str, float] = {}
        with tempfile.TemporaryDirectory(prefix="rocm-autopatch-prove-") as directory:
            self.directory = Path(directory)
            left = self._left_trials()
            names = [name for name in left if name != BASE]
            size = _WAVE * max(2, self.at_once)
            waves = [names[start : start + size] for start in range(0, len(names), size)]
            try:
                self._make_fresh_starts()
                # Trials of the base that no other subject needs any more.
                needed = {trial for name in names for trial in left[name]}
                alone = [trial for trial in left.get(BASE, ()) if trial not in needed]
                if alone:
                    self._run_wave([BASE], {BASE: alone})
                numbers = [self._run_wave([BASE, *wave], left) for wave in waves]
                # What works is worth more than what gains, if the time is short.
                for number, wave in zip(numbers, waves):
                    self._settle_gains([BASE, *wave], left, number)
            except OutOfTime:
                pass
            except BaseException:
                # The threads that wait for starts end them.
                self.supervisor.stop.set()
                raise

    def units(self, whole: BatteryThoroughness | None = None) -> list[tuple[str, str]]:
        """Each trial with each of its subjects that is to be run, whether it was run or not.

        If *whole* is given, all that such a battery has on this device.
        """
        how, only = (whole, ()) if whole else (self.how, self.only)
        return [
            (name, subject.name)
            for name in how.trials
            for subject in self._trial_subjects(name, how.subjects, only)
        ]

    def fresh_subjects(self, whole: BatteryThoroughness | None = None) -> list[str]:
        """The subjects that need fresh starts: those that capture graphs.

        If *whole* is given, all that such a battery has on this device.
        """
        how, only = (whole, ()) if whole else (self.how, self.only)
        named = {*only} & {*trials.NAMES, FRESH_STARTS}
        if self.supervisor.device != "cuda" or (named and FRESH_STARTS not in named):
            return []
        wanted = {*only} & {*SUBJECTS} or {*SUBJECTS}
        return [name for name in how.subjects if name in wanted and SUBJECTS[name].gpu]

    def _make_fresh_starts(self) -> None:
        """Make what is missing of them, once for all subjects: they are about graphs as such."""
        left = {
            name: self.how.fresh - verdicts.count_fresh(self.rows, name)
            for name in self.fresh_subjects()
            if not verdicts.has_fresh_faults(self.rows, name)
        }
        lacking = [name for name, missing in left.items() if missing > 0]
        if not lacking:
            return
        with self._prepared_caches(lacking[:1]) as caches:
            [directory] = caches.values()
            self._tell_step("fresh processes look at graphs")
            found = self.supervisor.run_fresh_starts(
                FreshStarts(
                    count=max(left[name] for name in lacking),
                    policy=directory / "policy.yaml",
                    caches=directory,
                    limit=_FRESH_S,
                    imports=_IMPORTS * self.how.limit,
                    end=self.end,
                )
            )
        if found:
            made = [_fresh_row(name, found) for name in lacking]
            for row in made:
                self.says(row)
            self._keep_rows(made)

    def _trial_subjects(
        self, name: str, among: Sequence[str], only: Sequence[str]
    ) -> list[EvidenceSubject]:
        """The subjects of a trial, the base first; none where it is not asked for or can't be."""
        trial = trials.load_trial(name)
        gpu = self.supervisor.device == "cuda"
        if getattr(trial, "GPU", False) and not gpu:
            return []
        if {*only} & {*trials.NAMES, FRESH_STARTS} and name not in only:
            return []
        known = [SUBJECTS[one] for one in among if gpu or not SUBJECTS[one].gpu]
        wanted = [one for one in known if trials.is_about(trial, one.name, one.group)]
        if {*only} & {*SUBJECTS}:
            wanted = [one for one in wanted if one.name in only]
        base = [] if any(one.name == BASE for one in wanted) else [SUBJECTS[BASE]]
        return [*base, *wanted] if wanted else []

    def _left_trials(self) -> dict[str, list[str]]:
        """By subject, the trials that were not run to their end yet; the base has all of those."""
        left: dict[str, list[str]] = {}
        for trial, subject in self.units():
            own = [row for row in self.rows if row.unit == (trial, subject)]
            if not any(row.status != ENDED for row in own) and len(own) <= self.how.warm:
                left.setdefault(subject, []).append(trial)
        if self.how.settle > self.how.warm:
            for subject, again in verdicts.unsettled_trials(self.rows, self.units()).items():
                own_left = left.setdefault(subject, [])
                own_left += [trial for trial in again if trial not in own_left]
        self.rows = [row for row in self.rows if row.trial not in left.get(row.subject, ())]
        wanted = {trial for those in left.values() for trial in those}
        if left:
            left[BASE] = [trial for trial in self.how.trials if trial in wanted]
        return left

    def _trial_names(self, names: list[str], left: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """The trials of a wave, by subject. The base, the first one, has those of all others."""
        base, *others = names
        wanted = {trial for name in others or [base] for trial in left[name]}
        trial_names = {name: left[name] for name in others}
        trial_names[base] = [trial for trial in left[base] if trial in wanted]
        return trial_names

    def _run_wave(self, names: list[str], left: Mapping[str, list[str]]) -> int:
        """Cold starts beside each other, then warm ones in turn. The number of the wave."""
        number = 1 + max((row.wave for row in self.rows), default=0)
        trial_names = self._trial_names(names, left)
        with self._prepared_caches(names) as caches:
            self._cold_starts(trial_names, caches, number)
            for turn in range(self.how.warm):
                self._warm_starts(trial_names, caches, number, turn)
        return number

    def _settle_gains(self, names: list[str], left: Mapping[str, list[str]], number: int) -> None:
        """Start again what a wave needs to say whether its subjects gain."""
        base, *others = names
        trial_names = self._trial_names(names, left)
        # Of a switch, policies ask whether it gains; of a mode, only whether it works.
        switches = [name for name in others if SUBJECTS[name].group == SWITCH_GROUP]
        for group in (switches, [name for name in others if name not in switches]):
            again = self._unsettled_trials({name: trial_names[name] for name in (base, *group)})
            if again and self.how.settle > self.how.warm:
                with self._prepared_caches(again) as caches:
                    self._cold_starts(again, caches, number, self.how.warm)
                    for turn in range(self.how.warm, self.how.settle):
                        self._warm_starts(again, caches, number, turn)

    def _cold_starts(
        self,
        trial_names: Mapping[str, list[str]],
        caches: Mapping[str, Path],
        wave: int,
        turn: int = 0,
    ) -> None:
        """A cold start of each subject that has caches, beside each other."""

        def cold(name: str) -> list[TrialRow]:
            """The rows for which others may be guilty. All else is kept at once."""
            rows = self._run_subject(
                name, trial_names[name], caches[name], COLD, wave, turn, beside=True
            )
            beside = (CRASHED, HUNG, NOT_TRIED) if self.at_once > 1 else ()
            self._keep_rows([row for row in rows if row.status not in beside])
            return [row for row in rows if row.status in beside]

        with ThreadPoolExecutor(self.at_once) as pool:
            found = self._for_each_subject(pool, cold, list(caches))
        for name, doubtful in zip(caches, found):
            hangs = False
            for row in doubtful:
                # One hang is enough.
                if not (hangs and row.status in (HUNG, NOT_TRIED)):
                    row = self._confirmed_row(row, caches[name], turn)
                self._keep_rows([row])
                hangs = hangs or row.status == HUNG

    def _warm_starts(
        self,
        trial_names: Mapping[str, list[str]],
        caches: Mapping[str, Path],
        wave: int,
        turn: int,
    ) -> None:
        """A warm start of each subject, in turns in the opposite order."""
        alive = {
            name: [one for one in trial_names[name] if self._still_alive(name, one, wave)]
            for name in (caches if turn % 2 == 0 else [*caches][::-1])
            if name in trial_names
        }

        def warm(name: str) -> None:
            self._keep_rows(self._run_subject(name, alive[name], caches[name], WARM, wave, turn))

        with ThreadPoolExecutor(min(_WARM_AT_ONCE, self.at_once)) as pool:
            self._for_each_subject(pool, warm, list(alive))

    def _unsettled_trials(self, trial_names: Mapping[str, list[str]]) -> dict[str, list[str]]:
        """Of a wave, what has to be started again, and with it the base."""
        units = [(trial, name) for name, own in trial_names.items() for trial in own]
        found = verdicts.unsettled_trials(self.rows, units)
        wanted = {trial for own in found.values() for trial in own}
        base = [trial for trial in trial_names[BASE] if trial in wanted]
        return {BASE: base, **found} if found else {}

    def _for_each_subject(
        self, pool: ThreadPoolExecutor, run: Callable[[str], T], names: Sequence[str]
    ) -> list[T]:
        """What *run* returns for each subject. If one is interrupted, all others are ended."""
        try:
            return list(pool.map(run, names))
        except BaseException:
            self.supervisor.stop.set()
            raise

    def _keep_rows(self, rows: list[TrialRow]) -> None:
        with self.lock:
            self.rows += rows
            self.keep()

    def _still_alive(self, subject: str, trial: str, wave: int) -> bool:
        """Whether all starts of a trial in this wave ended so far."""
        own = [row for row in self.rows if row.unit == (trial, subject)]
        return all(row.status == ENDED for row in own if row.wave == wave)

    def _confirmed_row(self, row: TrialRow, caches: Path, turn: int) -> TrialRow:
        """A row of a cold start. What others may be guilty of is repeated alone."""
        if not self._is_doubtful(row):
            return row
        [again] = self._run_subject(row.subject, [row.trial], caches, COLD, row.wave, turn)
        if row.status == NOT_TRIED:
            return again
        return replace(again, beside_others=f"{row.status}: {row.reason}")

    def _is_doubtful(self, row: TrialRow) -> bool:
        """Whether another start may be guilty of a fault."""
        if row.status == CRASHED:
            assert row.over is not None
            near = [
                other
                for other, when in self.crashes
                if other != row.subject and abs(when - row.over) < _NEAR_S
            ]
            return bool(near) or "out of memory" in row.reason.lower()
        return row.status in (HUNG, NOT_TRIED)

    def _run_subject(
        self,
        name: str,
        trial_names: list[str],
        caches: Path,
        kind: str,
        wave: int,
        turn: int = 0,
        beside: bool = False,
    ) -> list[TrialRow]:
        """A start of a subject; if a trial ends the process, further ones for the others."""
        subject = SUBJECTS[name]
        rows: list[TrialRow] = []
        left = list(trial_names)
        more = _BESIDE if beside and self.at_once > 1 else 1
        while left:
            if time.monotonic() > self.end:
                raise OutOfTime
            if [row.status for row in rows].count(HUNG) >= _HANGS:
                reason = f"{name} hung in {_HANGS} trials"
                others = [TrialOutcome(trial, NOT_TRIED, reason) for trial in left]
                return rows + [_row_of(one, name, kind, wave) for one in others]
            self._tell_step(f"{name}, {kind} start")
            found = self.supervisor.run(
                TrialStart(
                    trials=left,
                    policy=caches / "policy.yaml",
                    mode=subject.mode,
                    caches=caches,
                    # Further starts only repeat the times.
                    calls=self.how.calls if turn == 0 else _FEW,
                    seconds=self.how.check,
                    time=self.how.time if kind == WARM else 0.0,
                    imports=_IMPORTS * self.how.limit,
                    limit={trial: more * self._limit_of(trial) for trial in left},
                    end=self.end,
                    # What is compiled already needs no workers, which would disturb the times.
                    threads=self.threads if kind == COLD else 1,
                    keys=subject.keys,
                    alone=str(self.directory / "alone") if kind == WARM else "",
                )
            )
            for one in found:
                if name == BASE and kind == COLD and turn == 0:
                    self.base[one.trial] = one.seconds or 0.0
                row = _row_of(one, name, kind, wave)
                if row.status == CRASHED:
                    over = round(time.monotonic() - self.began, 1)
                    self.crashes.append((name, over))
                    row = replace(row, over=over)
                self.says(row)
                rows.append(row)
            tried = {one.trial for one in found}
            left = [trial for trial in left if trial not in tried]
        return rows

    def _tell_step(self, what: str) -> None:
        """Starts beside each other share the line: it has the last one."""
        total = len(self.units()) * (1 + self.how.warm) + len(self.fresh_subjects())
        done = min(len(self.rows), total)
        left_s = self.end - time.monotonic()
        tell_step(what, done, total, "results", left_s, at_most=True)

    def _limit_of(self, trial: str) -> float:
        return max(self.how.limit, self.how.slower * self.base.get(trial, 0.0))

    @contextmanager
    def _prepared_caches(self, names: Iterable[str]) -> Iterator[dict[str, Path]]:
        """By subject, a directory for its caches. In the end they are removed."""
        found: dict[str, Path] = {}
        try:
            for name in names:
                found[name] = self._prepare_caches(name)
            yield found
        finally:
            for path in found.values():
                shutil.rmtree(path, ignore_errors=True)

    def _prepare_caches(self, name: str) -> Path:
        """A directory for the caches of a subject, with its policy in it."""
        caches = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))
        policy = {"version": 1, "name": f"prove-{name}", **SUBJECTS[name].policy}
        file = caches / "policy.yaml"
        file.write_text(yaml.safe_dump(policy, sort_keys=False), encoding="utf-8")
        file.chmod(0o644)  # A start refuses a policy that everybody may write.
        return caches


def _row_of(one: TrialOutcome, subject: str, start: str, wave: int) -> TrialRow:
    """An outcome as the row of a subject's start."""
    said = {known.name: getattr(one, known.name) for known in fields(one)}
    return TrialRow(**said, subject=subject, start=start, wave=wave)


def _fresh_row(name: str, found: Sequence[TrialOutcome]) -> TrialRow:
    """The row of a subject of all its fresh starts; its status is that of the first fault."""
    faults = [one for one in found if one.status != ENDED]
    row = TrialRow(
        trial=FRESH_STARTS,
        subject=name,
        start=FRESH,
        status=faults[0].status if faults else ENDED,
        wave=_NO_WAVE,
        starts=len(found),
        right=len(found) - len(faults),
        seconds=round(sum(one.seconds or 0.0 for one in found), 3),
    )
    if not faults:
        return row
    reasons = "; ".join(dict.fromkeys(one.reason for one in faults))
    reason = f"{len(faults)} of {len(found)} processes: {reasons}"
    return replace(row, reason=reason, last_lines=faults[0].last_lines)
