"""Fresh starts of prove: each way in which one of many processes may fail is seen, and told right.

Real processes are forked, without torch. A stand-in of the supervisor has what a GPU would show.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from rocm_autopatch.cli.prove import _fresh_sentences
from rocm_autopatch.measure.prove import (
    CRASHED,
    ENDED,
    FRESH,
    FRESH_STARTS,
    HUNG,
    WRONG,
    battery,
    document,
    fresh_starts,
    subjects,
    trials,
    verdicts,
)
from rocm_autopatch.measure.prove.rows import TrialOutcome, TrialRow
from rocm_autopatch.measure.prove.supervisor import FreshStarts, StartSupervisor, TrialStart
from tests.conftest import Interpreter
from tests.running import run_battery
from tests.test_prove_parts import HERE

CAPTURES = [name for name, one in subjects.SUBJECTS.items() if one.gpu]


def fork_all(
    find: Callable[[], list[str]], count: int = 1, limit: float = 20.0
) -> list[TrialOutcome]:
    told: list[TrialOutcome] = []
    fresh_starts.fork_starts(find, count, limit, told.append, os._exit)
    return told


def wait_long() -> list[str]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
    return []


def die() -> list[str]:
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def refuse() -> list[str]:
    raise RuntimeError("HIP error: no device\nmore of it")


# Threads of pytest's own.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
class TestForks:
    def test_each_is_a_process_of_its_own(self) -> None:
        found = fork_all(lambda: [str(os.getpid())], 3)
        assert len({one.reason for one in found} | {str(os.getpid())}) == 4
        assert all(one.seconds is not None and one.seconds >= 0 for one in found)

    @pytest.mark.parametrize(
        ("find", "status", "reason"),
        [
            (list, ENDED, ""),
            (
                lambda: ["memset: 3 of 9", "program: 2 of 8"],
                WRONG,
                "memset: 3 of 9; program: 2 of 8",
            ),
            (refuse, WRONG, "RuntimeError: HIP error: no device"),
            (die, CRASHED, "ended by SIGKILL"),
            (lambda: os._exit(0), CRASHED, "exit status 0"),
            (lambda: os._exit(3), CRASHED, "exit status 3"),
            (lambda: ["é" * 5000] * 20, WRONG, "; ".join(["é" * 300] * 20)),
        ],
    )
    def test_how_it_ends(self, find: Callable[[], list[str]], status: str, reason: str) -> None:
        (found,) = fork_all(find)
        assert (found.status, found.reason) == (status, reason)

    def test_an_exit_that_crashes(self) -> None:
        def leave(status: int) -> NoReturn:
            die()
            os._exit(status)

        told: list[TrialOutcome] = []
        fresh_starts.fork_starts(list, 1, 20, told.append, leave)
        assert (told[0].status, told[0].reason) == (CRASHED, "ended by SIGKILL")

    def test_two_that_hang_are_enough(self) -> None:
        found = fork_all(wait_long, 21, limit=0.2)
        assert [one.status for one in found] == [HUNG, HUNG]
        assert found[0].reason == "did not end within 0 s, and was killed"

    def test_one_that_dies_does_not_end_the_others(self, tmp_path: Path) -> None:
        made = tmp_path / "made"

        def find() -> list[str]:
            with made.open("ab") as stream:
                stream.write(b"x")
            return die() if made.stat().st_size == 3 else []

        found = [one.status for one in fork_all(find, 5)]
        assert found == [ENDED, ENDED, CRASHED, ENDED, ENDED]


class Simulated:
    """A stand-in of the supervisor: *poisoned* says of each fresh process whether it is wrong."""

    device = "cuda"

    def __init__(self, poisoned: Callable[[], bool], made: int | None = None) -> None:
        self.poisoned, self.made = poisoned, made
        self.stop = threading.Event()
        self.asked: list[FreshStarts] = []

    def run_fresh_starts(self, asked: FreshStarts) -> list[TrialOutcome]:
        self.asked.append(asked)
        assert asked.policy.exists()
        count = asked.count if self.made is None else self.made
        bad = TrialOutcome(FRESH_STARTS, WRONG, "program: 7 of 8 calls differ from eager mode")
        right = TrialOutcome(FRESH_STARTS, ENDED)
        return [bad if self.poisoned() else right for _ in range(count)]

    def run(self, start: TrialStart) -> list[TrialOutcome]:
        return [TrialOutcome(one, ENDED, first=1.0, seconds=1.0) for one in start.trials]


def run_simulated(
    supervisor: Simulated,
    only: Sequence[str] = (FRESH_STARTS,),
    how: battery.BatteryThoroughness = battery.FULL,
    kept: Sequence[TrialRow] = (),
) -> battery.TrialBattery:
    return run_battery(supervisor, how, only, kept)


class TestBattery:
    def test_they_are_made_once_for_all_subjects(self) -> None:
        supervisor = Simulated(lambda: False)
        work = run_simulated(supervisor)
        assert [one.count for one in supervisor.asked] == [battery.FULL.fresh] == [21]
        assert [(row.subject, row.start) for row in work.rows] == [
            (name, FRESH) for name in CAPTURES
        ]
        # A second call goes on from there.
        again = Simulated(lambda: True)
        assert run_simulated(again, kept=work.rows).rows == work.rows
        assert again.asked == []

    def test_a_full_battery_adds_to_a_quick_one(self) -> None:
        supervisor = Simulated(lambda: False)
        quick = run_simulated(supervisor, how=battery.QUICK)
        assert [row.subject for row in quick.rows] == ["graphs"]
        assert verdicts.count_fresh(quick.rows, "graphs") == battery.QUICK.fresh
        run_simulated(supervisor, only=(FRESH_STARTS, "graphs"), kept=quick.rows)
        counts = [one.count for one in supervisor.asked]
        assert counts == [battery.QUICK.fresh, battery.FULL.fresh - battery.QUICK.fresh]

    def test_out_of_time(self) -> None:
        supervisor = Simulated(lambda: False, made=7)
        work = run_simulated(supervisor, only=(FRESH_STARTS, "graphs"))
        assert verdicts.count_fresh(work.rows, "graphs") == 7
        assert document.make_document(work, HERE)["subjects"]["graphs"]["sound"] is None
        supervisor.made = None
        run_simulated(supervisor, only=(FRESH_STARTS, "graphs"), kept=work.rows)
        assert supervisor.asked[-1].count == 14

    @pytest.mark.parametrize(
        ("only", "wanted"),
        [
            ((), CAPTURES),
            (("graphs",), ["graphs"]),
            ((FRESH_STARTS,), CAPTURES),
            ((FRESH_STARTS, "cudagraphs", "freezing"), ["cudagraphs"]),
            (("mlp", "graphs"), []),
            (("freezing",), []),
        ],
    )
    def test_whose_they_are(self, only: Sequence[str], wanted: list[str]) -> None:
        for device, names in (("cuda", wanted), ("cpu", [])):
            supervisor = StartSupervisor({}, device, assume=False)
            args = (supervisor, battery.FULL, only, (), lambda: None, lambda _: None)
            assert battery.TrialBattery(*args).fresh_subjects() == names

    def test_they_come_first(self) -> None:
        order: list[str] = []

        def poisoned() -> bool:
            order.append("fresh")
            return False

        supervisor = Simulated(poisoned)
        real = supervisor.run

        def note(start: TrialStart) -> list[TrialOutcome]:
            order.append("trial")
            return real(start)

        supervisor.run = note  # type: ignore[method-assign]
        work = run_simulated(supervisor, only=("graphs",), how=battery.QUICK)
        assert order[:10] == ["fresh"] * 10
        assert order[10] == "trial"
        assert document.make_document(work, HERE)["subjects"]["graphs"]["sound"] is True


class TestChance:
    """How likely a fault in one process of five is seen: by the real battery and its verdict."""

    def test_exactly(self) -> None:
        """All outcomes of 21 processes, each with its probability."""
        count, one_of = battery.FULL.fresh, verdicts.SELDOM
        seen = 0.0
        for bad in range(count + 1):
            left = iter([True] * bad + [False] * (count - bad))
            work = run_simulated(Simulated(left.__next__), only=(FRESH_STARTS, "graphs"))
            said = document.make_document(work, HERE)["subjects"]["graphs"]
            assert said["sound"] is (False if bad else None)  # Its trials were not run.
            if said["sound"] is False:
                share = math.comb(count, bad) / one_of**bad * (1 - 1 / one_of) ** (count - bad)
                seen += share
        assert seen == pytest.approx(verdicts.chance_to_see(count))
        assert 0.99 <= seen < 1

    def test_by_runs(self) -> None:
        """The same with chance: 2,000 machines on which one process of five is poisoned."""
        chance = random.Random(1)
        found = 0
        for _ in range(2000):
            supervisor = Simulated(lambda: chance.random() < 1 / verdicts.SELDOM)
            work = run_simulated(supervisor, only=(FRESH_STARTS, "graphs"))
            found += verdicts.has_fresh_faults(work.rows, "graphs")
        assert found >= 0.99 * 2000

    def test_the_sentence_is_computed(self) -> None:
        assert verdicts.chance_to_see(0) == 0
        assert verdicts.chance_to_see(1) == pytest.approx(0.2)
        percents = [verdicts.state_chance(count).split()[-2] for count in (0, 3, 10, 14, 20, 21)]
        # 3 starts were all that there were: 51 % of such faults were missed.
        assert percents == ["0", "48", "89", "95", "98", "99"]

    def test_the_command_says_it(self) -> None:
        work = run_simulated(Simulated(lambda: False), how=battery.QUICK)
        said = _fresh_sentences(document.make_document(work, HERE)["subjects"])
        (sentence,) = said
        assert said == {sentence: ["graphs"]}
        assert sentence.startswith("10 fresh processes were right; ")
        assert sentence.endswith(verdicts.state_chance(10))


def test_nothing_is_imported_by_whoever_starts_it() -> None:
    assert not hasattr(fresh_starts, "torch")
    assert FRESH_STARTS not in trials.NAMES


class TestSupervisor:
    """The real process that forks, on a torch without a GPU: each fork fails, and that is told."""

    def test_without_a_gpu(self, torch_python: Interpreter, tmp_path: Path) -> None:
        code = (
            "import json, sys, time; from pathlib import Path\n"
            "from rocm_autopatch import fresh_interpreter\n"
            "from rocm_autopatch.measure.prove.supervisor import FreshStarts, StartSupervisor\n"
            "supervisor = StartSupervisor(fresh_interpreter.environment(), 'cuda', assume=True)\n"
            "caches = Path(sys.argv[1]); policy = caches / 'policy.yaml'\n"
            "policy.write_text('version: 1\\nname: mine\\nextends: [safe]\\n')\n"
            "asked = FreshStarts(3, policy, caches, 600, 1200, time.monotonic() + 3000)\n"
            "print(json.dumps([one.document() for one in supervisor.run_fresh_starts(asked)]))\n"
        )
        env = {"HOME": str(tmp_path), "ROCM_AUTOPATCH_LOG": "quiet"}
        (tmp_path / "caches").mkdir()
        done = torch_python.run("-c", code, str(tmp_path / "caches"), env=env, timeout=4000)
        found = json.loads(done.stdout)
        assert [one["status"] for one in found] == [WRONG] * 3, found
        assert all("rror: " in one["reason"] for one in found)
