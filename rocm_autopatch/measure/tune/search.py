"""The search for the best set of switches: which sets are measured next, and which one is best.

It knows nothing of programs. A *trial* is a set of options that are on; the empty one is the base.
A bench measures trials in rounds, by turns, as costs: lower is better. The steps:

1. Calibrate: the base alone, for the noise.
2. Screen: each likely option alone against the base, the others four at a time; four that fail or
   harm are halved. What has long first runs comes last. Then, after each round, only what may still
   be better goes on, and at most half of it.
3. Combine: what helped, on top of the best.
4. Interactions: options that did nothing alone may help together. They are dealt into four groups;
   the six pairs of groups have each pair of options in one of them. A pair of groups that helps is
   cut down to what it needs (delta debugging, Zeller 2002).
5. Prune: each option of the best is taken away alone. What is not missed is left out.
6. Sample, if there is a sampler: half of the budget is left for it. It proposes sets from all that
   was measured, and each is raced against the best. Each second one is the best without what by
   all costs does nothing. In the end, what does nothing is left out.

What a round would cost more than is left, is measured for the better half only, and so on. A part
of the budget is kept for the confirmation, less of it as long as there is nothing to confirm.

A race ends for a challenger when even an optimistic view of it (its median ratio less OPTIMISM
standard errors) is not worth it. That may miss a small gain, and a lucky option may get on: so the
search ends in a candidate, which has to be confirmed by runs of its own. A challenger that is known
to run the code that it is compared with is in no race.
"""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, product
from statistics import median
from typing import Protocol

from rocm_autopatch.measure.ab import sequential
from rocm_autopatch.measure.tune import effects
from rocm_autopatch.measure.tune.levels import CostLevels, CostRatio, Trial

BASE: Trial = frozenset()
CALIBRATION = 3
# The outcome of a trial that runs the code that it is compared with.
SAME_CODE = "the same code"
# The most rounds of a race, and how sure a race is of a challenger that it drops or takes.
ROUNDS = 5
OPTIMISM = 1.3
SURE = 1.5
# An option that alone is slower by more is not tried together with others.
_HARM = math.log(1.1)
_GROUPS = 4
# Unlikely options are screened so many at a time; a round of the screening has so many sets.
_TOGETHER, _BATCH = 4, 8
# Screening leaves so much of the budget for what comes after it.
_AFTER_SCREENING = 0.45
# What a first run may take of it. Before those that are known to be long, so much more is left.
_LONGEST_FIRST = 0.2
# A first run that takes so many times as long as the usual one makes its groups slow.
_SLOW = 2.0
# With a sampler, so much of the budget is left to it, and so much to what comes after it.
_SAMPLED, _PRUNED = 0.5, 0.05
# In a budget for fewer runs, as the first ones were, it would take what the screening needs.
_FEW = 90
# What it proposes is taken when it is ahead by so many standard errors. With more of them, small
# gains would be lost. What is taken wrongly can be beaten again.
_HOPE = 0.3
# So many proposals in a row may be in vain: together they gain less than is worth it.
_VAIN = 20


class BudgetSpent(Exception):
    """The budget is spent."""


class MeasuresTrials(Protocol):
    """Measures trials."""

    def measure(self, trials: Sequence[Trial], ahead: Trial, rounds: int) -> Mapping[Trial, float]:
        """One round: the cost of each trial. One that failed or was wrong is left out.

        Raises Spent before a round for which nothing is left. Enough is kept to confirm *ahead*,
        the trial that seems best, in so many *rounds*; less as long as that is the base.
        """

    def left(self) -> float:
        """The part of the budget that is left, from 1 to 0."""

    def price(self, trial: Trial) -> float:
        """What the first run of a measured trial took, divided by what the usual one took."""

    def alike(self, one: Trial, other: Trial) -> bool:
        """Whether two trials are known to run the same code, equally fast."""


class TrialProposals(Protocol):
    """Proposes trials, as :class:`rocm_autopatch.measure.tune.sampler.Sampler` does."""

    def start(self, known: dict[Trial, float], out: set[int]) -> None:
        """Learn of the costs of known trials, and propose no option in *out*."""

    def ask(self, wanted: Trial | None) -> Trial:
        """A trial to measure next: what is *wanted*, or what is best to try."""

    def tell(self, cost: float | None) -> None:
        """Its cost; None if it failed."""


@dataclass(frozen=True)
class SwitchOption:
    """An option, and the ``switch`` whose value it is: a trial has at most one value of each.

    A ``likely`` one is known to have large effects, so it is tried alone. A ``slow`` one is known
    for a long first run, as of a search among kernels. One with ``code`` acts only through the code
    that is generated, so it may turn out to do nothing.
    """

    name: str
    switch: str
    likely: bool = True
    slow: bool = False
    code: bool = False


@dataclass(frozen=True)
class RaceStep:
    """A race that was decided, for the report: what was compared with what, and the outcome.

    ``ratio`` is the cost divided by that of ``against``.
    """

    phase: str
    trial: Trial
    against: Trial
    ratio: float
    rounds: int
    outcome: str


@dataclass
class SetSearch:
    """A search over *options*. ``best`` is the best trial so far; ``steps`` tells the way to it.

    ``out`` are trials that failed or were wrong, ``same_code`` are options that changed no code.
    A gain of less than *worth*, a part of 1, is not looked for. *sampler* proposes further trials.
    """

    options: Sequence[SwitchOption]
    bench: MeasuresTrials
    worth: float
    seed: int
    best: Trial = BASE
    phase: str = "calibrate"
    steps: list[RaceStep] = field(default_factory=list)
    out: set[Trial] = field(default_factory=set)
    same_code: set[int] = field(default_factory=set)
    left: str = ""
    sampler: TrialProposals | None = None
    _until: float = 0.0
    _rounds: list[Mapping[Trial, float]] = field(default_factory=list)
    _known: tuple[int, CostLevels] = (0, CostLevels([]))
    # For each measured trial the first one that runs its code.
    _first: dict[Trial, Trial] = field(default_factory=dict)

    def run(self) -> Trial:
        """The best trial that the budget allows to find. ``left`` says what it did not allow."""
        self._until = _SAMPLED if self.sampler else 0.0
        try:
            self._search_sets()
        except BudgetSpent:
            self.left = self.phase
            # In the race that was not run to its end.
            self.best = self._seems_best()
        if self.sampler and len(self.costs(BASE)) >= CALIBRATION:
            self.left, self._until = "", _PRUNED
            with suppress(BudgetSpent):
                self._race_proposals(self.sampler)
            self._until = 0.0
            self.phase = "prune"
            with suppress(BudgetSpent):
                self._drop_idle()
                if self._cost_levels.error(ROUNDS) < self.worth / 2:
                    # Else a race may leave out what is worth it.
                    self._prune_best()
        return self.best

    def _race_proposals(self, sampler: TrialProposals) -> None:
        """Compare what the sampler proposes with the best, while its part of the budget lasts."""
        self.phase = "sample"
        levels = {
            trial: self.ratio(BASE, trial).log
            for trial in dict.fromkeys(t for costs in self._rounds for t in costs)
            if trial not in self.out
        }
        # What did nothing alone may do something with others, but not if it can't be measured.
        without = {n for n in self._idle_options() if frozenset((n,)) not in levels}
        # What the budget is not enough for alone would be in half of all sets.
        without |= {n for n in self.skipped if self.options[n].slow}
        sampler.start(levels, without.union(*(one for one in self.out if len(one) == 1)))
        # Small gains, which may be luck, have to add up to one that is worth it.
        vain, worst = 0, self.best
        while vain < _VAIN:
            vain += 1
            before = self.best
            trial = sampler.ask(
                self._smaller_best(levels.keys() | self.out) if vain % 2 == 0 else None
            )
            if trial in self.out or self.bench.alike(before, trial):
                sampler.tell(levels.get(trial))
                if trial < before and trial not in self.out:
                    self.best = trial
                continue
            self._compare_trials(before, trial)
            if trial in self.out:
                sampler.tell(None)
                continue
            levels[trial] = self.ratio(BASE, trial).log
            sampler.tell(levels[trial])
            ratio = self.ratio(before, trial)
            # A set with less in it may be a bit slower.
            allowed = self.worth / 4 if trial < before else 0.0
            better = ratio.log + _HOPE * ratio.error < allowed
            if better:
                self.best = trial
            if self.ratio(worst, self.best).log < math.log(1 - self.worth):
                worst, vain = self.best, 0
            self._note_step(before, trial, "better" if better else "not better")

    def _note_step(self, against: Trial, trial: Trial, outcome: str) -> None:
        """Add a step, for the report."""
        ratio = self.ratio(against, trial)
        if self.bench.alike(against, trial):
            outcome = SAME_CODE
        self.steps.append(
            RaceStep(self.phase, trial, against, math.exp(ratio.log), ratio.count, outcome)
        )

    def _compare_trials(self, against: Trial, trial: Trial) -> None:
        """Measure as many rounds of two trials as show that one is not better, or is."""
        while trial not in self.out and not self.bench.alike(against, trial):
            ratio = self.ratio(against, trial)
            if ratio.count >= ROUNDS or (ratio.count and ratio.log > OPTIMISM * ratio.error):
                break
            self._measure_trials([against, trial])

    @property
    def skipped(self) -> set[int]:
        """The options that the budget did not reach."""
        ran = {trial for costs in self._rounds for trial in costs}
        reached = ran | {trial for trial in self.out if len(trial) == 1}
        every = {*range(len(self.options))}
        return every.difference(self._idle_options(), *reached)

    def _idle_options(self) -> set[int]:
        """The options that alone are known to do nothing."""
        every = range(len(self.options))
        return {n for n in every if self.bench.alike(BASE, frozenset((n,)))}

    def _seems_best(self) -> Trial:
        """The trial that is most ahead of the best, perhaps by luck; else the best."""
        ran = {trial for costs in self._rounds for trial in costs} - self.out
        ahead = {}
        for trial in ran - {self.best}:
            ratio = self.ratio(self.best, trial)
            if ratio.log + SURE * ratio.error < 0:
                ahead[trial] = ratio.log
        return min(ahead, key=ahead.__getitem__, default=self.best)

    def _trial_ahead(self) -> tuple[Trial, int]:
        """What seems best, and how many rounds are likely to confirm it.

        It has been chosen because it seems best, so it may be less good by a standard error.
        """
        trial = self._seems_best()
        if trial == BASE:
            return trial, sequential.CLEAR
        ratio = self.ratio(BASE, trial)
        return trial, sequential.runs_needed(-(ratio.log + ratio.error) / self._cost_levels.noise)

    def _search_sets(self) -> None:
        for _ in range(CALIBRATION):
            self._measure_trials([BASE])
        if CALIBRATION / max(1 - self.bench.left(), 1e-9) < _FEW:
            self.sampler, self._until = None, 0.0
        usable = self._screen_sets(self._screening_sets(range(len(self.options))))
        self.phase = "interactions"
        self._try_interactions([number for number in usable if number not in self.best])
        self.phase = "prune"
        self._prune_best()
        # What a strong switch hid, or the first screening missed.
        seen = {BASE}
        while self.best not in seen:
            before = self.best
            seen.add(before)
            switches = {self.options[number].switch for number in before}
            rest = [n for n in usable if self.options[n].switch not in switches]
            usable = self._screen_sets(self._screening_sets(rest))
            if self.best == before:
                break
            self.phase = "prune"
            self._prune_best()
        self.phase = "done"

    def _screening_sets(self, numbers: Iterable[int]) -> list[Trial]:
        """What is screened of some options: likely ones alone, then the others some at a time.

        Those with long first runs come after all of them: a search that does not end may take as
        much as ten sets. They are also not mixed with others, whose first runs would be as long.
        What acts only through the code is not mixed with others, because such a set needs no more
        than its first run if the code is the same.
        """
        known = list(numbers)
        kinds: dict[tuple[bool, bool, bool], list[int]] = {}
        for number in known:
            option = self.options[number]
            kinds.setdefault((option.likely, option.slow, option.code), []).append(number)
        sets = []
        for slow, likely, code in product((False, True), (True, False), (False, True)):
            its = kinds.get((likely, slow, code), [])
            # Values of one switch are neighbours, so by strides they are in different sets.
            count = len(its) if likely else math.ceil(len(its) / _TOGETHER)
            sets += [frozenset(its[start::count]) for start in range(count)]
        return sets

    def _screen_sets(self, sets: Sequence[Trial]) -> list[int]:
        """Race sets on top of the best, and take what helps.

        Returns the options that ran well and do not harm.
        """
        self.phase = "screen"
        below = self.best
        queue = [one for one in sets if not self.bench.alike(below, self._union(one, below))]
        raced: list[Trial] = []
        while queue:
            batch = queue[:_BATCH]
            slow = any(self.options[number].slow for one in batch for number in one)
            if raced and self._left_of_budget() < _AFTER_SCREENING + (
                _LONGEST_FIRST if slow else 0
            ):
                break
            size = self._measure_some(below, [self._union(one, below) for one in batch])
            queue = queue[size:]
            for one in batch[:size]:
                trial = self._union(one, below)
                ratio = self.ratio(below, trial)
                if trial not in self.out:
                    raced.append(one)
                harms = ratio.log - SURE * ratio.error > 0
                if len(one) > 1 and (trial in self.out or harms):
                    # One of them is broken, or one may hide what another gains.
                    halves = sorted(one)[::2], sorted(one)[1::2]
                    queue += map(frozenset, halves)
        on_top = {one: self._union(one, below) for one in raced}
        ratios = self._race_trials(below, list(on_top.values()), measured=True)
        helping = sorted((t for t in ratios if self._is_better(below, t)), key=ratios.__getitem__)
        if helping:
            self.best = helping[0]
            self.phase = "combine"
            self._combine_helping(helping)
        sound = {trial for trial, ratio in ratios.items() if ratio <= _HARM}
        return sorted({number for one in raced if on_top[one] in sound for number in one})

    @property
    def _cost_levels(self) -> CostLevels:
        """What trials cost by all rounds. Those that run the same code are one."""
        if self._known[0] != len(self._rounds):
            for trial in dict.fromkeys(t for costs in self._rounds for t in costs):
                if trial not in self._first:
                    alike = (one for one in self._first.values() if self.bench.alike(one, trial))
                    self._first[trial] = next(alike, trial)
            first = self._first
            rounds = [{first[t]: cost for t, cost in costs.items()} for costs in self._rounds]
            self._known = len(rounds), CostLevels(rounds)
        return self._known[1]

    def costs(self, trial: Trial) -> list[float]:
        """All costs of a trial, in the order of the rounds."""
        return [costs[trial] for costs in self._rounds if trial in costs]

    def history(self) -> list[tuple[Trial, float]]:
        """Each measured trial of each round, with its cost divided by the base's median."""
        base = median(self.costs(BASE) or [1.0])
        return [(trial, cost / base) for costs in self._rounds for trial, cost in costs.items()]

    def ratio(self, against: Trial, trial: Trial) -> CostRatio:
        """A trial's costs divided by another one's, by all rounds."""
        levels = self._cost_levels
        return levels.ratio(self._first.get(against, against), self._first.get(trial, trial))

    def _is_better(self, against: Trial, trial: Trial) -> bool:
        ratio = self.ratio(against, trial)
        return ratio.count > 1 and ratio.log + SURE * ratio.error < 0

    def _may_be_better(self, against: Trial, trial: Trial) -> bool:
        """Whether a trial may be better by what is worth it, as far as is known."""
        ratio = self.ratio(against, trial)
        return ratio.count > 0 and ratio.log - OPTIMISM * ratio.error < math.log(1 - self.worth)

    def _is_settled(self, against: Trial, trial: Trial) -> bool:
        """Whether more rounds would not change that a trial is better."""
        ratio = self.ratio(against, trial)
        return ratio.count > 1 and ratio.log + 3 * ratio.error < math.log(1 - self.worth)

    def _left_of_budget(self) -> float:
        """The part of the budget that is left to the present steps, from 1 to 0."""
        return (self.bench.left() - self._until) / (1 - self._until)

    def _measure_trials(self, trials: Iterable[Trial]) -> None:
        if self._left_of_budget() < 0:
            raise BudgetSpent
        asked = [trial for trial in dict.fromkeys(trials) if trial not in self.out]
        costs = self.bench.measure(asked, *self._trial_ahead())
        self._rounds.append(costs)
        self.out.update(trial for trial in asked if trial not in costs)
        for trial in asked[1:]:
            if self.bench.alike(asked[0], trial):
                self.same_code |= trial ^ asked[0]

    def _measure_some(self, against: Trial, trials: Sequence[Trial]) -> int:
        """Measure as many of the first trials as what is left does for; how many."""
        size = len(trials)
        while True:
            try:
                self._measure_trials([against, *trials[:size]])
            except BudgetSpent:
                if size < 2:
                    raise
                size //= 2
            else:
                return size

    def _race_trials(
        self, against: Trial, challengers: Sequence[Trial], measured: bool = False
    ) -> dict[Trial, float]:
        """Logarithms of the ratios of the challengers that ran well; each becomes a step.

        With *measured*, they have had their first round.
        """
        alive = [t for t in challengers if t not in self.out and not self.bench.alike(against, t)]
        for number in range(ROUNDS):
            if not alive:
                break
            if number or not measured:
                alive = alive[: self._measure_some(against, alive)]
            alive = [
                trial
                for trial in alive
                if trial not in self.out
                and not self.bench.alike(against, trial)
                and self._may_be_better(against, trial)
                and not self._is_settled(against, trial)
            ]
            if len(challengers) > 2:
                alive.sort(key=lambda trial: self.ratio(against, trial).log)
                alive = alive[: math.ceil(len(challengers) / 2 ** (number + 1))]
        found = {}
        for trial in dict.fromkeys(challengers):
            ratio = self.ratio(against, trial)
            if trial in self.out or not ratio.count:
                continue
            found[trial] = ratio.log
            self._note_step(
                against, trial, "better" if self._is_better(against, trial) else "not better"
            )
        return found

    def _union(self, *trials: Trial) -> Trial:
        """The options of all trials; of two values of one switch the first."""
        found: dict[str, int] = {}
        for trial in trials:
            for number in sorted(trial):
                found.setdefault(self.options[number].switch, number)
        return frozenset(found.values())

    def _take_if_better(self, trials: Sequence[Trial]) -> bool:
        """Race trials against the best, and take the best of them if it is better."""
        trials = [trial for trial in trials if trial != self.best]
        ratios = self._race_trials(self.best, trials)
        better = [trial for trial in ratios if self._is_better(self.best, trial)]
        if better:
            self.best = min(better, key=lambda trial: ratios[trial])
        return bool(better)

    def _combine_helping(self, helping: Sequence[Trial]) -> None:
        rest = [trial for trial in helping[1:] if self._union(self.best, trial) != self.best]
        if len(rest) > 1 and self._take_if_better([self._union(self.best, *rest)]):
            return
        for trial in rest:
            self._take_if_better([self._union(self.best, trial)])

    def _try_interactions(self, neutral: Sequence[int]) -> None:
        if len(neutral) < 2:
            return
        order = list(neutral)
        random.Random(self.seed).shuffle(order)
        if len(order) <= _GROUPS:
            pairs = [frozenset(pair) for pair in combinations(order, 2)]
        else:
            # Values of one switch go into different groups, as far as there are groups.
            order.sort(key=lambda number: self.options[number].switch)
            # What makes first runs long is in one group, so that half of the pairs are quick.
            slow = [n for n in order if self.bench.price(frozenset((n,))) > _SLOW]
            rest = [number for number in order if number not in slow]
            size = math.ceil(len(order) / _GROUPS)
            groups = [slow + rest[: max(0, size - len(slow))]]
            rest = rest[max(0, size - len(slow)) :]
            groups += [rest[start :: _GROUPS - 1] for start in range(_GROUPS - 1)]
            pairs = [frozenset((*one, *other)) for one, other in combinations(groups, 2)]
        before = self.best
        if self._take_if_better([self._union(before, pair) for pair in pairs]):
            # What alone changes no code may do so beside others. One first run tells.
            self._leave_out(self._idle_options(), self.best)
            self._cut_needless(before)

    def _cut_needless(self, before: Trial) -> None:
        """Take out of the best what it has more than *before* and does not need."""
        parts = 2
        while True:
            extra = sorted(self.best - before)
            if len(extra) < 2:
                return
            size = math.ceil(len(extra) / parts)
            chunks = [frozenset(extra[n : n + size]) for n in range(0, len(extra), size)]
            smaller = [before | chunk for chunk in chunks]
            if len(chunks) > 2:
                smaller += [self.best - chunk for chunk in chunks]
            gain = self.ratio(before, self.best).log
            ratios = self._race_down(self.best, smaller, -gain / 2)
            # What keeps more than half of the gain has what the gain comes from.
            enough = [trial for trial in smaller if ratios.get(trial, math.inf) < -gain / 2]
            if enough:
                self.best = min(enough, key=lambda trial: (len(trial), ratios[trial]))
                parts = 2
            elif size == 1:
                return
            else:
                parts = min(2 * parts, len(extra))

    def _race_down(
        self, against: Trial, trials: Sequence[Trial], limit: float
    ) -> dict[Trial, float]:
        """Logarithms of ratios to *against*, measured until it is clear which exceed *limit*."""
        alive = [t for t in dict.fromkeys(trials) if not self.bench.alike(against, t)]
        for _ in range(ROUNDS if alive else 0):
            self._measure_trials([against, *alive])
            known = {t: self.ratio(against, t) for t in alive if t not in self.out}
            alive = [
                trial
                for trial, ratio in known.items()
                if not self.bench.alike(against, trial)
                and (ratio.count < 2 or abs(ratio.log - limit) < SURE * ratio.error)
            ]
            if not alive:
                break
        found = {}
        for trial in dict.fromkeys(trials):
            ratio = self.ratio(against, trial)
            if trial not in self.out and (ratio.count or self.bench.alike(against, trial)):
                found[trial] = ratio.log
                self._note_step(against, trial, "cut down")
        return found

    def _without_effect(self) -> list[int]:
        """What by all costs does nothing in the best, the most harmful first."""
        found = effects.estimate_effects(self._cost_levels)
        idle = (n for n in self.best if found.get(n, 0.0) > -self.worth / 4)
        return sorted(idle, key=lambda n: -found.get(n, 0.0))

    def _smaller_best(self, known: Container[Trial]) -> Trial | None:
        """The best without what does nothing, or without half of that, and so on; not *known* yet.

        None if there is no such set.
        """
        idle = self._without_effect()
        while idle and self.best.difference(idle) in known:
            idle = idle[: len(idle) // 2]
        return self.best.difference(idle) if idle else None

    def _drop_idle(self) -> None:
        """Leave out of the best what does nothing by all that is known."""
        whole = self.best
        self._leave_out(self._idle_options(), whole)
        idle = self._without_effect()
        while idle:
            left_out = self._leave_out(idle, whole)
            idle = self._without_effect() if left_out else idle[: len(idle) // 2]

    def _leave_out(self, idle: Iterable[int], whole: Trial) -> bool:
        """Leave options out of the best if *whole* was not better with them; whether it was not."""
        fewer, limit = self.best.difference(idle), math.log(1 + self.worth)
        if fewer == self.best:
            return True
        if self._race_down(whole, [fewer], limit).get(fewer, math.inf) > limit:
            return False
        self.best = fewer
        return True

    def _prune_best(self) -> None:
        """Leave out of the best what is not missed."""
        while len(self.best) > 1:
            whole = self.best
            without = {number: whole - {number} for number in sorted(whole)}
            limit = math.log(1 + self.worth)
            ratios = self._race_down(whole, list(without.values()), limit)
            # What fails without an option needs it.
            missed = {number: ratios.get(trial, math.inf) for number, trial in without.items()}
            least = min(missed, key=missed.__getitem__)
            if missed[least] > limit:
                return
            # One at a time: of two that do the same, each alone is not missed.
            self.best = without[least]
