"""The confirmation of tune, with a clock and a runner of its own, so that all ways can be tried."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocm_autopatch.measure.ab import RequestRefused, toggles
from rocm_autopatch.measure.ab.numbers import NumberLabel
from rocm_autopatch.measure.ab.runner import (
    COLD,
    ENDED,
    FAILED,
    HUNG,
    WARM,
    MeasuredRun,
    PlannedRun,
)
from rocm_autopatch.measure.tune import same, session
from rocm_autopatch.measure.tune.candidates import SwitchCandidate
from rocm_autopatch.measure.tune.journal import RunJournal
from rocm_autopatch.measure.tune.levels import Trial
from rocm_autopatch.measure.tune.search import BASE, BudgetSpent
from rocm_autopatch.measure.tune.session import (
    FILL,
    ConfirmedCosts,
    TrialTrouble,
    TuningObjective,
    TuningSession,
)
from rocm_autopatch.measure.tune.tuning import TuningResult

GOOD: Trial = frozenset((0,))
_POLICY = "POLICY"


@dataclasses.dataclass
class World:
    """In the place of a machine: what the base's first runs take, those of the set and its policy,
    and all others, in seconds; the set's cost where the base's is 10; and how a run of the base or
    of the policy ends, by its number. All differ a little, as *seed* says."""

    directory: Path
    budget_s: float = 100.0
    beside: int = 1
    cold: float = 0.0
    seed: int = 1
    base_first_s: float = 1.0
    first_s: float = 1.0
    warm_s: float = 0.2
    cost: float = 9.8
    kind: str = toggles.CONFIG
    ends: Callable[[str, int], str] = lambda arm, number: ENDED
    clock_s: float = 0.0
    ran: int = 0
    stop_before: int | None = None
    counts: Counter[str] = dataclasses.field(default_factory=Counter)

    def monotonic(self) -> float:
        return self.clock_s


class StandIn:
    """In the place of a runner."""

    def __init__(self, world: World) -> None:
        self.world, self.limit_s, self.tells_code = world, 0.0, False
        self.warm: dict[int, object] = {}
        # The most caches that there were at a time.
        self.most = 0
        self.sharing: set[int] = set()
        self.environments: Sequence[dict[str, str]] = []

    def run(self, cell: PlannedRun) -> MeasuredRun:
        world = self.world
        if world.ran == world.stop_before:
            raise KeyboardInterrupt
        what = self.environments[cell.arm].get("WHAT", "")
        first = cell.caches == COLD or cell.arm not in self.warm
        seconds = (world.first_s if what else world.base_first_s) if first else world.warm_s
        chance = random.Random(f"{world.seed} {world.ran}")
        world.ran += 1
        status = ENDED
        if what in ("", _POLICY):
            world.counts[what] += 1
            status = world.ends(what, world.counts[what])
        seconds = self.limit_s if status == HUNG else seconds * chance.uniform(0.95, 1.05)
        world.clock_s += seconds
        if first and status == ENDED:
            self.warm[cell.arm] = object()
            self.most = max(self.most, len(self.warm))
        cost = (world.cost if what else 10.0) * chance.gauss(1, 0.01)
        found = {NumberLabel("cost", "ms"): cost} if status == ENDED else {}
        return MeasuredRun(
            cell.round, cell.arm, cell.caches, seconds, status, status, numbers=found
        )

    def forget(self) -> None:
        self.warm.clear()

    def run_beside(
        self,
        cells: Sequence[PlannedRun],
        count: int,
        ended: Callable[[PlannedRun, MeasuredRun], None],
    ) -> None:
        for start in range(0, len(cells), count):
            began = longest = self.world.clock_s
            for cell in cells[start : start + count]:
                self.world.clock_s = began
                run = self.run(cell)
                longest = max(longest, self.world.clock_s)
                ended(cell, run)
            self.world.clock_s = longest


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path / "runs")
    monkeypatch.setattr(session, "time", made)
    of_policy = SimpleNamespace(make_arm=lambda *_: SimpleNamespace(environ={"WHAT": _POLICY}))
    monkeypatch.setattr(session, "arms", of_policy)
    of_set = SimpleNamespace(environ={"WHAT": "set"})
    monkeypatch.setattr(session, "arm_of", lambda *_: of_set)
    return made


def confirmed(world: World, stop_before: int | None = None) -> tuple[TuningSession, Any]:
    """Search a little, and confirm; None if it was interrupted before this run of the session."""
    world.stop_before = None if stop_before is None else world.ran + stop_before
    toggle = toggles.Toggle(world.kind, "torch._inductor.config.good", "good", (False, True))
    here: Any = SimpleNamespace(environ={})
    runner: Any = StandIn(world)
    made = TuningSession(
        here,
        [SwitchCandidate(toggle, "", True)],
        TuningObjective("cost", False, world.cold),
        same.OutputCheck([], 0.01, world.directory, here),
        RunJournal(world.directory, {"seed": 1}, False),
        runner,
        world.directory,
        budget_s=world.budget_s,
        timeout_s=1e6,
        seed=1,
        tell=lambda _: None,
        beside=world.beside,
    )
    result = None
    try:
        for _ in range(3):
            made.measure([BASE], BASE, 3)
        try:
            for _ in range(2):
                made.measure([BASE, GOOD], GOOD, 5)
        except BudgetSpent:
            pass
        result = made.confirm(GOOD, Path("policy.yaml"), "1")
    except KeyboardInterrupt:
        pass
    finally:
        made.journal.close()
    return made, result


def rows(world: World) -> Iterator[dict[str, Any]]:
    for line in (world.directory / "runs.jsonl").read_text().splitlines()[1:]:
        row = json.loads(line)
        if "policy" in row["trial"]:
            yield row


WAYS = [(1, 0.0), (4, 0.0), (1, 0.5)]


class TestCompiles:
    @pytest.mark.parametrize(("beside", "cold"), WAYS)
    def test_each_round_has_its_own(self, world: World, beside: int, cold: float) -> None:
        world.beside, world.cold = beside, cold
        _, found = confirmed(world)
        assert isinstance(found, ConfirmedCosts)
        assert found.fillings == len(found.base) == len(found.policy) >= 5
        ran = Counter((row["trial"], row["kind"]) for row in rows(world))
        assert set(ran.values()) == {1}
        names = [
            f"{arm}, caches {number + 1}"
            for arm in ("base, beside policy 1", "policy 1")
            for number in range(found.fillings)
        ]
        assert ran.keys() == {*product(names, (COLD if cold else FILL, WARM))}

    @pytest.mark.parametrize("beside", [1, 2, 4])
    @pytest.mark.parametrize("first_s", [0.3, 1.0, 4.0])
    @pytest.mark.parametrize("warm_s", [0.2, 0.8])
    @pytest.mark.parametrize("budget_s", [15.0, 20.0, 30.0, 40.0])
    def test_as_many_as_there_is_time_for(
        self, world: World, beside: int, first_s: float, warm_s: float, budget_s: float
    ) -> None:
        world.beside, world.budget_s = beside, budget_s
        world.first_s, world.warm_s = first_s, warm_s
        made, found = confirmed(world)
        assert isinstance(found, ConfirmedCosts)
        # Five rounds of one compile are made in any case.
        assert made.spent_s < 1.13 * budget_s or (found.fillings, len(found.base)) == (1, 5)
        measured = Counter(row["trial"] for row in rows(world) if row["kind"] == WARM)
        assert len(measured) == 2 * found.fillings
        if len(found.base) == 5:
            assert max(measured.values()) - min(measured.values()) <= 1
        filled = {row["trial"] for row in rows(world) if row["kind"] == FILL}
        assert filled == measured.keys()
        # Not fewer than there was time for.
        pair = 2 * max(first_s, 1.0)
        if found.fillings < len(found.base) == 5:
            assert made.spent_s + pair > budget_s

    @pytest.mark.parametrize("beside", [1, 4])
    def test_those_of_earlier_rounds_are_removed(self, world: World, beside: int) -> None:
        # It needs all twenty rounds. At most six are made between two looks.
        world.beside, world.cost = beside, 10.0
        made, found = confirmed(world)
        assert isinstance(found, ConfirmedCosts)
        assert len(found.base) == 20
        runner: Any = made.runner
        assert runner.most == 2 * 6

    @pytest.mark.parametrize("kind", [toggles.CONFIG, toggles.VARIABLE])
    def test_kernels_are_shared_if_the_variables_are_the_same(
        self, world: World, kind: str
    ) -> None:
        world.kind = kind
        made, found = confirmed(world)
        assert isinstance(found, ConfirmedCosts)
        shared = {made.runner.environments[arm].get("WHAT", "") for arm in made.runner.sharing}
        assert shared == ({"", "set", _POLICY} if kind == toggles.CONFIG else {""})

    @pytest.mark.parametrize(
        ("fillings", "rounds", "said"),
        [(1, 5, ", compiled once"), (4, 5, ", compiled 4 times"), (5, 5, ""), (0, 0, "")],
    )
    def test_fewer_are_said(self, fillings: int, rounds: int, said: str) -> None:
        costs = [1.0] * rounds
        done: Any = SimpleNamespace(confirmed=ConfirmedCosts(costs, costs, fillings))
        assert TuningResult.compiled.fget(done) == said  # type: ignore[attr-defined]


class TestItGoesOn:
    @pytest.mark.parametrize(("beside", "cold"), WAYS)
    @pytest.mark.parametrize("budget_s", [16.0, 18.0, 25.0, 100.0])
    def test_after_an_interruption_anywhere(
        self, world: World, beside: int, cold: float, budget_s: float
    ) -> None:
        directory = world.directory
        for stop_before in range(1, 200, 3):
            world.directory = directory.with_name(f"runs{stop_before}")
            world.budget_s, world.beside, world.cold, world.ran = budget_s, beside, cold, 0
            _, first = confirmed(world, stop_before)
            if first is not None:
                assert stop_before > 20
                return
            went_on, second = confirmed(world)
            again, third = confirmed(world)
            assert second == third is not None
            assert again.new_runs == 0
            assert again.runs == went_on.runs
        raise AssertionError("it never ended")


class TestTroubles:
    @pytest.mark.parametrize("beside", [1, 4])
    @pytest.mark.parametrize("status", [FAILED, HUNG])
    def test_a_policy_that_does_not_run_costs_one_run(
        self, world: World, beside: int, status: str
    ) -> None:
        world.beside = beside
        world.ends = lambda arm, number: status if arm == _POLICY else ENDED
        made, found = confirmed(world)
        assert isinstance(found, TrialTrouble)
        assert found.status == status
        assert world.counts[_POLICY] == 1
        again, found = confirmed(world)
        assert isinstance(found, TrialTrouble)
        assert (again.new_runs, again.runs) == (0, made.runs)

    @pytest.mark.parametrize("status", [FAILED, HUNG])
    @pytest.mark.parametrize("number", range(2, 9))
    def test_a_later_one_is_not_made_again(self, world: World, status: str, number: int) -> None:
        """Beside others one that failed is made once more alone."""
        world.beside = 4
        first = number

        def ends(arm: str, number: int) -> str:
            return status if arm == _POLICY and number >= first else ENDED

        world.ends = ends
        _, found = confirmed(world)
        assert isinstance(found, TrialTrouble)
        again, found = confirmed(world)
        assert isinstance(found, TrialTrouble)
        assert again.new_runs == 0

    @pytest.mark.parametrize("number", range(2, 6))
    def test_one_hang_is_enough(self, world: World, number: int) -> None:
        world.beside, hangs = 4, number
        world.ends = lambda arm, number: HUNG if arm and number == hangs else ENDED
        _, found = confirmed(world)
        assert isinstance(found, TrialTrouble)
        assert found.status == HUNG

    @pytest.mark.parametrize("beside", [1, 4])
    def test_it_is_said_if_the_base_does_not_run(self, world: World, beside: int) -> None:
        world.beside = beside
        # It has run six times in the search, once for its caches.
        world.ends = lambda arm, number: FAILED if not arm and number > 6 else ENDED
        for _ in range(2):
            with pytest.raises(RequestRefused, match="the command as it is here: failed"):
                confirmed(world)
        # When it runs again, the search goes on.
        world.ends = lambda arm, number: ENDED
        made, found = confirmed(world)
        assert isinstance(found, ConfirmedCosts)
        assert made.runs > made.new_runs
        again, other = confirmed(world)
        assert (again.new_runs, other) == (0, found)
