"""The bench of a search: it runs trials with the runner of ``ab``, and says what they cost.

The cost of a trial in a round is the program's number with warm caches and with cold ones, weighed
as the user says. A trial that fails, or computes something else than the base, has no cost, and is
not run again.

Switches that act only through the code that torch generates can't change the number of warm calls
if that code is the same. So of trials with the same code, a round measures the first one only.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from rocm_autopatch.measure.ab import RequestRefused, arms, results, sequential
from rocm_autopatch.measure.ab.place import ProgramPlace
from rocm_autopatch.measure.ab.runner import (
    COLD,
    ENDED,
    FAILED,
    HUNG,
    WARM,
    ArmRunner,
    MeasuredRun,
    PlannedRun,
)
from rocm_autopatch.measure.ab.toggles import HERE, MODE, POLICY, VARIABLE, Toggle
from rocm_autopatch.measure.tune.candidates import SwitchCandidate, arm_of
from rocm_autopatch.measure.tune.journal import KeptRun, RunJournal
from rocm_autopatch.measure.tune.levels import Trial
from rocm_autopatch.measure.tune.same import OutputCheck
from rocm_autopatch.measure.tune.search import BASE, BudgetSpent
from rocm_autopatch.support import masking
from rocm_autopatch.support.progress import tell_step
from rocm_autopatch.support.text import duration

FILL = "fill"
# A first run that failed beside others.
_FAILED_BESIDE = "fill beside others"
WRONG = "wrong"
_BASE = "base"
# In a confirmation, the base's runs have names that begin so.
_BASE_AGAIN = f"{_BASE}, beside policy "
# Of the budget, the most that is kept for the confirmation; and what a first run may take, which
# may search among kernels.
_RESERVE, _LONGEST_FILL = 0.4, 0.1
# Beside others a first run takes longer, and costs less of the budget.
_LONGER_BESIDE = 2
# A run may take so many times as long as the base's, or so many seconds if that is more.
_SLOWEST, _LEAST_S = 5.0, 30.0
_CONFIRM_ROUNDS = 5
# What a confirmation may take more than the budget, if it may be sure then.
_OVER = 0.1


@dataclass(frozen=True)
class TuningObjective:
    """What is measured: a *metric* by the name that the user gave ("" for the wall time), whether
    higher is better, and the part of starts that have cold caches."""

    metric: str
    higher: bool
    cold: float

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of caches that count."""
        return tuple(kind for kind, part in ((COLD, self.cold), (WARM, 1 - self.cold)) if part > 0)

    @property
    def by_code(self) -> bool:
        """Whether the same code means the same number. Wall times and cold caches have compiles."""
        return bool(self.metric) and self.kinds == (WARM,)

    def value(self, run: MeasuredRun) -> tuple[float, str]:
        """The run's number and its unit. Raises Refused if it has none, or one that is not above
        zero."""
        if not self.metric:
            return run.seconds, "s"
        (metric,) = results.chosen_metrics([results.WALL_METRIC, *run.numbers], [self.metric])
        value = results.number_of_run(run, metric)
        if value is None or value <= 0:
            raise RequestRefused(f"--metric {self.metric}: {value} is not above zero")
        return value, metric.unit

    def weighed(self, values: Mapping[str, float]) -> float:
        """One number of those with each kind of caches."""
        return sum(
            value * (self.cold if kind == COLD else 1 - self.cold) for kind, value in values.items()
        )


@dataclass(frozen=True)
class TrialTrouble:
    """Why a trial is out: ``status`` is FAILED, HUNG or WRONG."""

    status: str
    reason: str
    last_lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfirmedCosts:
    """The costs of the base and of the policy in the rounds of a confirmation, and how often the
    caches of each were filled in it."""

    base: Sequence[float] = ()
    policy: Sequence[float] = ()
    fillings: int = 0


T = TypeVar("T")
# Makes an environment, and says whether its variables are the base's.
Maker = Callable[[], tuple[Mapping[str, str], bool]]


@dataclass
class TuningSession:
    """Measures trials of *candidates* in *here*.

    *budget_s* is for all sessions of this search together. *directory* is for the policies of arms.
    *tell* gets a line for each new run. So many first runs are made at the same time as *beside*
    says. ``troubles`` has the trials that are out, and why.
    """

    here: ProgramPlace
    candidates: Sequence[SwitchCandidate]
    objective: TuningObjective
    same: OutputCheck
    journal: RunJournal
    runner: ArmRunner
    directory: Path
    budget_s: float
    timeout_s: float
    seed: int
    tell: Callable[[str], None]
    beside: int = 1
    # In which modes the command compiles, as its files say; its first run tells it better.
    modes: frozenset[str] = frozenset()
    troubles: dict[Trial, TrialTrouble] = field(default_factory=dict)
    unit: str = "s"
    new_runs: int = 0
    rounds: int = 0
    _environments: list[Mapping[str, str]] = field(default_factory=list)
    _arms: dict[str, int] = field(default_factory=dict)
    _seconds: dict[tuple[str, str], float] = field(default_factory=dict)
    # What is spent when the first runs of a round have to be over.
    _fills_until_s: float = math.inf
    # By a trial's name, the digest of the code that its first run generated; "" if it is not known.
    _codes: dict[str, str] = field(default_factory=dict)
    _before_s: float = 0.0
    _live_since: float | None = None

    def __post_init__(self) -> None:
        self.runner.tells_code = True

    @property
    def runs(self) -> int:
        """All runs of this search, those of earlier sessions included."""
        return self.journal.count + self.new_runs

    @property
    def spent_s(self) -> float:
        """The seconds of the budget that are spent, those of earlier sessions included."""
        live = 0.0 if self._live_since is None else time.monotonic() - self._live_since
        return self._before_s + live

    def name(self, trial: Trial) -> str:
        """A trial in words: ``base``, or the labels of its switches."""
        return ", ".join(self.candidates[number].label for number in sorted(trial)) or _BASE

    def measure(self, trials: Sequence[Trial], ahead: Trial, rounds: int) -> Mapping[Trial, float]:
        """One round, in random order; the next one in the reverse order.

        Enough is kept to confirm *ahead* in so many *rounds*. Raises Spent, and Refused if the base
        does not run.
        """
        do = {trial: trial - self.unused for trial in trials}
        reserve = self._confirmation_reserve(ahead, rounds)
        costs = self._measure_round(list(dict.fromkeys(do.values())), reserve)
        return {trial: costs[its] for trial, its in do.items() if its in costs}

    def _measure_round(self, trials: Sequence[Trial], reserve: float) -> Mapping[Trial, float]:
        if not self._affords_round(trials, reserve):
            raise BudgetSpent
        self._fills_until_s = self.budget_s - reserve
        found: dict[Trial, float | TrialTrouble] = {**self._fill_caches(trials)}
        order = self._in_random_order(trials)
        if self.objective.by_code:
            firsts = {
                trial: self._first_run(self.name(trial), partial(self._trial_environment, trial))
                for trial in order
                if trial not in found
            }
            found.update((trial, trouble) for trial, trouble in firsts.items() if trouble)
        for trial in order:
            if trial not in found and self._measured_for(trial, trials) == trial:
                found[trial] = self._round_cost(
                    self.name(trial), partial(self._trial_environment, trial)
                )
        for trial in order:
            found.setdefault(trial, found[self._measured_for(trial, trials)])
        for trial, cost in found.items():
            if isinstance(cost, TrialTrouble):
                self.troubles[trial] = cost
                if trial == BASE:
                    raise _refused_base(cost)
        return {trial: cost for trial, cost in found.items() if isinstance(cost, float)}

    def alike(self, one: Trial, other: Trial) -> bool:
        """Whether two trials differ only in what does nothing: in modes in which nothing is
        compiled, and in switches that act through the code, which is equal."""
        differ = (one ^ other) - self.unused
        codes = {self._codes.get(self.name(trial - self.unused), "") for trial in (one, other)}
        return not differ or (
            self.objective.by_code
            and len(codes) == 1
            and "" not in codes
            and all(self.candidates[number].code for number in differ)
        )

    @property
    def unused(self) -> set[int]:
        """The options for modes in which the command compiles nothing."""
        return {
            number
            for number, one in enumerate(self.candidates)
            if one.toggle.kind == MODE and one.toggle.name not in self.modes
        }

    def _measured_for(self, trial: Trial, trials: Sequence[Trial]) -> Trial:
        """Which one of *trials* is measured for a trial: the first one that runs its code."""
        return next(one for one in trials if one == trial or self.alike(one, trial))

    def left(self) -> float:
        """The part of the budget that is left."""
        return max(0.0, 1 - self.spent_s / self.budget_s)

    def price(self, trial: Trial) -> float:
        """What the first run of a trial took, divided by what the usual one took."""
        first = COLD if self.objective.cold else FILL
        its = self._seconds.get((self.name(trial), first))
        # Not the base's: it was made alone, the others may be beside each other.
        return its / median(self._seconds_of_kind(first)) if its else 1.0

    def confirm(self, best: Trial, policy: Path, digest: str) -> ConfirmedCosts | TrialTrouble:
        """The costs of the base and of a policy file with *best*, in rounds of their own.

        They end at a look of the sequential test: the first one at which it is sure that the two
        differ, or after which there is no time for the next. Each round has new caches of both, so
        that no luck of one compile is in all of them. If there is no time to fill so many, the
        rounds up to a look share them. A Trouble if the policy fails or is wrong. Raises Refused if
        the base does not run.
        """
        toggle = Toggle(POLICY, POLICY, POLICY, (HERE, str(policy)))
        arm = arms.make_arm(self.here, [toggle], (str(policy),), (HERE,), policy)
        makers: list[tuple[str, Maker]] = [
            (f"{_BASE_AGAIN}{digest}", partial(self._trial_environment, BASE)),
            (f"policy {digest}", lambda: (arm.environ, self._same_variables(best))),
        ]

        def pair(number: int) -> list[tuple[str, Maker]]:
            return [(f"{name}, caches {number}", make) for name, make in makers]

        costs: tuple[list[float], list[float]] = ([], [])
        self._fills_until_s = math.inf
        # Caches may be large, and nobody needs those of the search any more.
        self.runner.forget()
        if self.beside > 1 and not self.objective.cold:
            # If the policy does not run, one first run shows it.
            trouble = self._first_run(*pair(1)[1])
            if trouble:
                return trouble
        pairs: list[list[tuple[str, Maker]]] = []
        look, until_s, fillings = _CONFIRM_ROUNDS, self.budget_s, 0
        while True:
            rounds = look - len(costs[0])
            left_s = until_s - self.spent_s - rounds * self._round_s(best)
            count = self._count_fillings(rounds, best, left_s) or (0 if pairs else 1)
            if count:
                if pairs:
                    self.runner.forget()
                pairs = [pair(fillings + number + 1) for number in range(count)]
                fillings += count
            every = [one for both in pairs for one in both]
            kept = self.journal.failed([name for name, _ in every], (FILL, *self.objective.kinds))
            if kept:
                return _not_the_bases(_trouble_of(kept), kept.trial)
            for name, trouble in self._fill_beside(every).items():
                return _not_the_bases(trouble, name)
            for number in range(rounds):
                for place in self._in_random_order((0, 1)):
                    name, make = pairs[number % len(pairs)][place]
                    cost = self._round_cost(name, make)
                    if not isinstance(cost, float):
                        return _not_the_bases(cost, name)
                    costs[place].append(cost)
            if look == sequential.MOST or sequential.sure_after(*costs):
                break
            look, may_be_sure = sequential.next_look(*costs)
            until_s = self.budget_s * (1 + _OVER) if may_be_sure else self.budget_s
            if self.spent_s + self._round_s(best) * (look - len(costs[0])) > until_s:
                break
        return ConfirmedCosts(*costs, fillings)

    def _count_fillings(self, rounds: int, best: Trial, left_s: float) -> int:
        """For how many of so many rounds there is time to fill caches of the base and of *best*."""
        count = rounds
        while count and self._pairs_s(count, best) > max(left_s, 0.0):
            count -= 1
        return count

    def _pairs_s(self, count: int, trial: Trial) -> float:
        """The seconds of so many first runs of the base, and as many of a trial."""
        base, its = (self._seconds.get((self.name(one), FILL), 0.0) for one in (BASE, trial))
        its = its or self._usual_fill
        if self.beside == 1:
            return self._fills_s(2 * count, (base + its) / 2)
        # The base's own one was made alone.
        return self._fills_s(2 * count, max(its, self._usual_fill))

    def _fills_s(self, count: int, each_s: float) -> float:
        """The seconds of so many first runs. Cold runs are first runs, and are measured."""
        return 0.0 if self.objective.cold else math.ceil(count / self.beside) * each_s

    def _round_s(self, trial: Trial) -> float:
        """The seconds of what is measured in a round of the base and a trial."""
        return sum(self._price_of(self.name(one)) for one in (BASE, trial))

    def _in_random_order(self, these: Sequence[T]) -> list[T]:
        self.rounds += 1
        order = list(these)
        random.Random(f"{self.seed} {(self.rounds + 1) // 2}").shuffle(order)
        return order if self.rounds % 2 else order[::-1]

    def _trial_environment(self, trial: Trial) -> tuple[Mapping[str, str], bool]:
        chosen = [self.candidates[number] for number in sorted(trial)]
        if not chosen:
            return self.here.environ, True
        file = self.directory / f"arm{len(self._environments)}.yaml"
        return arm_of(self.here, chosen, file).environ, self._same_variables(trial)

    def _same_variables(self, trial: Trial) -> bool:
        """Whether a trial has the base's environment variables."""
        return all(self.candidates[number].toggle.kind != VARIABLE for number in trial)

    def _affords_round(self, trials: Sequence[Trial], reserve: float) -> bool:
        """Whether the budget has enough for a round and for the confirmation after it."""
        names = [self.name(t) for t in trials if self._measured_for(t, trials) == t]
        empty = sum((name, FILL) not in self._seconds for name in names)
        price = sum(map(self._price_of, names)) + self._fills_s(empty, self._usual_fill)
        return self.spent_s + price + reserve <= self.budget_s

    def _confirmation_reserve(self, ahead: Trial, rounds: int) -> float:
        """The seconds that are kept for the confirmation of the trial that is ahead.

        As long as that is the base, only a clear gain would still be confirmed in time.
        """
        part = _RESERVE if ahead else _RESERVE / 2
        rounds = max(rounds, _CONFIRM_ROUNDS) if ahead else rounds
        seconds = rounds * self._round_s(ahead) + self._pairs_s(rounds, ahead)
        return min(seconds, part * self.budget_s)

    def _price_of(self, name: str) -> float:
        """The seconds of what is measured of a set in a round; if it is new, the usual ones."""
        usual = median(self._seconds_of_kind(WARM) + self._seconds_of_kind(COLD) or [0.0])
        return sum(self._seconds.get((name, kind), usual) for kind in self.objective.kinds)

    @property
    def _usual_fill(self) -> float:
        return median(
            self._seconds_of_kind(FILL)
            or self._seconds_of_kind(WARM) + self._seconds_of_kind(COLD)
            or [0.0]
        )

    def _seconds_of_kind(self, kind: str) -> list[float]:
        """The seconds of runs of a kind, those of the last run of each set."""
        return [seconds for (_, its), seconds in self._seconds.items() if its == kind]

    def _fill_caches(self, trials: Sequence[Trial]) -> Mapping[Trial, TrialTrouble]:
        """Fill the caches for a round. What is measured comes after that.

        A first run that took too long is returned: it had a fifth of the budget, and would take as
        much again.
        """
        for trial in trials:
            first = self.journal.peek(self.name(trial), FILL)
            if first:
                self._codes.setdefault(self.name(trial), _code_of(first))
        names = {self.name(t): t for t in trials if self._measured_for(t, trials) == t}
        long = self._fill_beside(
            [(name, partial(self._trial_environment, trial)) for name, trial in names.items()]
        )
        return {names[name]: trouble for name, trouble in long.items()}

    def _fill_beside(self, wanted: Sequence[tuple[str, Maker]]) -> Mapping[str, TrialTrouble]:
        """Fill caches, many at the same time. By name, what took too long.

        What these runs compute is not compared: each writes the files of the others. One that fails
        may have had no memory, so its first run is made again, alone.
        """
        if self.beside == 1:
            return {}
        empty: dict[int, str] = {}
        long: dict[str, TrialTrouble] = {}
        for name, make in wanted:
            kept = self.journal.take(name, _FAILED_BESIDE)
            if kept is not None:
                self._go_on_after(kept)
            # If nothing was measured after a first run, its caches are gone.
            first = self.journal.peek(name, FILL)
            if self.journal.peek(name, WARM) or (first and first.status != ENDED):
                continue
            arm = self._arm_number(name, make)
            if arm not in self.runner.warm:
                empty[arm] = name

        def ended(cell: PlannedRun, run: MeasuredRun) -> None:
            name = empty[cell.arm]
            kind = _FAILED_BESIDE if run.status == FAILED else FILL
            row = self._keep_run(name, kind, run, False)
            if run.status == HUNG:
                long[name] = _trouble_of(row)

        if len(empty) > 1:
            self._begin_new_runs()
            self._tell_step(f"{len(empty)} first runs, {self.beside} at a time")
            self.runner.limit_s = self._hang_limit(FILL)
            self.runner.run_beside([PlannedRun(0, arm, WARM) for arm in empty], self.beside, ended)
        return long

    def _first_run(self, name: str, make: Maker) -> TrialTrouble | None:
        """Make the first run of a set, which tells its code, if it was not made; how it failed."""
        row = self.journal.take(name, FILL)
        if row is not None:
            self._go_on_after(row)
        elif name not in self._codes and not self.journal.peek(name, WARM):
            row = self._new_run(name, FILL, make)
        return None if row is None or row.status == ENDED else _trouble_of(row)

    def _round_cost(self, name: str, make: Maker) -> float | TrialTrouble:
        """The cost of one round of what is called *name*: lower is better."""
        values = {}
        for kind in self.objective.kinds:
            row = self._kept_or_new(name, kind, make)
            if row.status != ENDED:
                return _trouble_of(row)
            assert row.value is not None
            values[kind] = row.value
        value = self.objective.weighed(values)
        return float(1 / value if self.objective.higher else value)

    def _kept_or_new(self, name: str, kind: str, make: Maker) -> KeptRun:
        """A run, kept or new. With warm caches, the run that fills them comes first."""
        kept = self.journal.take(name, kind)
        if kept is not None:
            # An interrupted search has filled the caches again.
            for row in (*self.journal.take_before(kept, FILL), kept):
                self._go_on_after(row)
            self.unit = kept.unit
            return kept
        # A first run that failed is kept, too.
        failed = self.journal.take(name, FILL) if kind == WARM and name not in self._arms else None
        if failed is not None and failed.status != ENDED:
            self._go_on_after(failed)
            return failed
        if kind == WARM and self._arm_number(name, make) not in self.runner.warm:
            filled = self._new_run(name, FILL, make)
            if filled.status != ENDED:
                return filled
        return self._new_run(name, kind, make)

    def _go_on_after(self, row: KeptRun) -> None:
        """Count a kept run."""
        self._seconds[row.trial, row.kind] = row.seconds
        self._learn_code(row)
        if self._live_since is None:
            # First runs that were beside each other are kept in the order in which they ended.
            self._before_s = max(self._before_s, row.spent_s)

    def _learn_code(self, row: KeptRun) -> None:
        """Learn from a first run what it compiled."""
        if row.kind == FILL:
            self._codes[row.trial] = _code_of(row)
            if row.trial == _BASE and row.modes is not None:
                self.modes = row.modes

    def _begin_new_runs(self) -> None:
        """The time of new runs begins. All kept runs count, also those that have to be repeated."""
        if self._live_since is None:
            self._before_s = max(self._before_s, self.journal.spent_s)
            self._live_since = time.monotonic()

    def _arm_number(self, name: str, make: Maker) -> int:
        if name not in self._arms:
            self._arms[name] = len(self._environments)
            environ, same = make()
            if same and not self.objective.cold:
                self.runner.sharing.add(self._arms[name])
            self._environments.append(environ)
            self.runner.environments = self._environments
        return self._arms[name]

    def _new_run(self, name: str, kind: str, make: Maker) -> KeptRun:
        self._begin_new_runs()
        arm = self._arm_number(name, make)
        self._tell_step(f"{name}, {kind}")
        self.runner.limit_s = self._hang_limit(kind)
        self.same.begin()
        # The first run in empty caches fills the arm's warm ones.
        cell = PlannedRun(0 if kind == FILL else 1, arm, COLD if kind == COLD else WARM)
        return self._keep_run(name, kind, self.runner.run(cell), True)

    def _keep_run(self, name: str, kind: str, run: MeasuredRun, compared: bool) -> KeptRun:
        """Keep a run that has ended; it is *compared* with the base's."""
        status, reason, value = run.status, run.reason, None
        if status == ENDED:
            try:
                value, self.unit = self.objective.value(run)
                reason = (self.same.end(run.numbers) if compared else None) or ""
                status = WRONG if reason else status
            except RequestRefused as error:
                if name == _BASE:
                    raise
                status, reason = FAILED, str(error)
        self._seconds[name, kind] = run.seconds
        self.new_runs += 1
        row = KeptRun(
            trial=name,
            kind=kind,
            status=status,
            reason=reason,
            lines=tuple(masking.text(line) for line in run.last_lines),
            seconds=round(run.seconds, 6),
            value=value,
            unit=self.unit,
            code=run.code,
            modes=None if run.modes is None else frozenset(run.modes),
            spent_s=round(self.spent_s, 3),
            numbers=dict(self.same.numbers),
            files=self.same.names_of_copies(),
        )
        self._learn_code(row)
        # Without the base nothing goes on. When it runs again, all that is kept still holds.
        if status == ENDED or kind == _FAILED_BESIDE or not _is_the_bases(name):
            self.journal.add(row)
        how = reason or f"{value:.6g} {self.unit}".rstrip()
        self.tell(f"{duration(self.spent_s)} of {duration(self.budget_s)}: {name}, {kind}: {how}")
        return row

    def _tell_step(self, what: str) -> None:
        left_s = self.budget_s - self.spent_s
        tell_step(what, self.runs, units="runs", left_s=left_s, at_most=True)

    def _hang_limit(self, kind: str) -> float:
        """The seconds after which a run counts as hanging."""
        base = self._seconds.get((_BASE, kind))
        if base is None:
            return self.timeout_s
        limit = max(_SLOWEST * base, _LEAST_S)
        if kind != WARM:
            longer = _LONGER_BESIDE if self.beside > 1 else 1
            limit = max(limit, longer * self.budget_s * _LONGEST_FILL)
            # A search among kernels may not end, and the budget is for all of it.
            limit = min(limit, max(_LONGER_BESIDE * base, self._fills_until_s - self.spent_s))
        return round(min(self.timeout_s, limit), 1)


def _code_of(row: KeptRun) -> str:
    """The digest of the code of a first run; "" if it is unknown, or the run did not end well."""
    return row.code if row.status == ENDED else ""


def _trouble_of(row: KeptRun) -> TrialTrouble:
    return TrialTrouble(row.status, row.reason, row.lines)


def _is_the_bases(name: str) -> bool:
    return name == _BASE or name.startswith(_BASE_AGAIN)


def _not_the_bases(trouble: TrialTrouble, name: str) -> TrialTrouble:
    """The trouble that a run of what is called so had in a confirmation. Raises Refused if that was
    the base."""
    if _is_the_bases(name):
        raise _refused_base(trouble)
    return trouble


def _of_the_base(trouble: TrialTrouble) -> str:
    if trouble.status == WRONG:
        return (
            f"two runs of the command as it is here are not the same: {trouble.reason}; give a "
            "larger --tolerance, or have the command set its seeds"
        )
    return f"the command as it is here: {trouble.reason}"


def _refused_base(trouble: TrialTrouble) -> RequestRefused:
    """The error where the command does not run as it is here, with what it printed last."""
    quoted = () if trouble.status == WRONG else [f"  | {line}" for line in trouble.last_lines]
    return RequestRefused(_of_the_base(trouble), quoted=quoted)
