"""Parts of rocm-autopatch prove, without a start: verdicts, the file, the command, the trials."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rocm_autopatch import evidence
from rocm_autopatch.cli import main
from rocm_autopatch.evidence import file, machine
from rocm_autopatch.measure.prove import (
    COLD,
    COMPILED,
    CRASHED,
    ENDED,
    FRESH,
    FRESH_STARTS,
    HUNG,
    LEAKS,
    NOT_HERE,
    NOT_TRIED,
    WARM,
    WRONG,
    battery,
    document,
    place,
    proof,
    subjects,
    trials,
    verdicts,
)
from rocm_autopatch.measure.prove.rows import TrialOutcome, TrialRow
from rocm_autopatch.measure.prove.supervisor import StartSupervisor, TrialStart
from rocm_autopatch.policy import load
from rocm_autopatch.switches import EvidenceSubject
from tests.conftest import ROOT, Interpreter
from tests.messages import Golden
from tests.programs import program_file
from tests.running import run_battery

HERE = {
    "accelerator": "rocm",
    "torch": "2.13.0+rocm7.0",
    "hip": "7.0",
    "gpu": "",
    "device": machine.NO_GPU,
    "driver": machine.NONE,
    "triton": machine.NONE,
}


def row(
    trial: str,
    subject: str,
    start: str,
    status: str = ENDED,
    speed: float = 1.0,
    wave: int = 1,
    **more: Any,
) -> TrialRow:
    """A row; *speed* is how long it takes, as part of what the base takes."""
    made = TrialRow(trial, status, subject=subject, start=start, wave=wave, **more)
    if status == ENDED:
        made = replace(made, first=2.0 * speed)
    if (status, start) == (ENDED, WARM):
        noise = (0.999, 1.0, 1.001, 0.998, 1.002, 1.0, 0.999, 1.001)
        made = replace(made, samples=tuple(speed * one for one in noise), peak=1000)
    if status in (WRONG, CRASHED, HUNG):
        made = replace(made, reason="first call: exit status 1")
    return made


def unit(trial: str, subject: str, speed: float = 1.0, wave: int = 1) -> list[TrialRow]:
    return [row(trial, subject, kind, ENDED, speed, wave) for kind in (COLD, WARM)]


def often(
    trial: str, subject: str, speed: float = 1.0, starts: int = 5, noise: float = 0.001
) -> list[TrialRow]:
    """A unit with more warm starts: the calls of one are alike, the starts differ by *noise*."""
    speeds = [speed * (1 + noise * step) for step in (0, 1, -1, 0.5, -0.5)[:starts]]
    return [
        row(trial, subject, COLD, ENDED, speed),
        *(row(trial, subject, WARM, ENDED, one) for one in speeds),
    ]


def fresh(
    subject: str, starts: int = 21, right: int | None = None, status: str = WRONG
) -> TrialRow:
    """The row of a subject's fresh starts."""
    right = starts if right is None else right
    status = ENDED if right == starts else status
    return row(FRESH_STARTS, subject, FRESH, status, wave=0, starts=starts, right=right)


UNITS = [(trial, subject) for trial in ("a", "b") for subject in ("default", "graphs")]
BASE = [*unit("a", "default"), *unit("b", "default")]
OFTEN = [*often("a", "default"), *often("b", "default")]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("a", "b", "gains"),
        [
            (1.0, 1.0, False),
            (0.96, 1.0, True),
            (0.96, 1.02, True),
            # Slower in one trial.
            (0.5, 1.04, False),
            # Less than 3 %, and 3 % within the noise.
            (0.975, 0.975, False),
            (0.9705, 1.0, False),
        ],
    )
    def test_gains(self, a: float, b: float, gains: bool) -> None:
        rows = [*OFTEN, *often("a", "graphs", a), *often("b", "graphs", b)]
        said = verdicts.subject_verdicts(rows, UNITS)["graphs"]
        assert (said.sound, said.gains) == (True, gains)
        assert verdicts.unsettled_trials(rows, UNITS) == {}
        assert said.steady == pytest.approx(math.sqrt(a * b), rel=2e-3)
        assert said.cold == said.warm == pytest.approx(math.sqrt(a * b), rel=2e-3)
        assert said.memory == 1
        assert said.trials["a"].steady
        low, ratio, high = said.trials["a"].steady
        assert low < ratio < high
        assert ratio == pytest.approx(a, rel=1e-3)
        assert said.trials["a"].starts == 5

    def test_calls_of_one_process_are_no_proof(self) -> None:
        """However many there are: the next process may be slower in all of them."""
        rows = [*OFTEN, *unit("a", "graphs", 0.8), *unit("b", "graphs", 1.2)]
        assert verdicts.subject_verdicts(rows, UNITS)["graphs"].gains is None
        assert verdicts.unsettled_trials(rows, UNITS) == {"graphs": ["a", "b"]}
        # Two starts were fast by chance.
        rows = [*OFTEN, *often("a", "graphs", 0.8, starts=2), *often("b", "graphs", 1.0, starts=2)]
        assert verdicts.unsettled_trials(rows, UNITS) == {"graphs": ["a"]}
        rows += [row("a", "graphs", WARM, speed=speed) for speed in (1.0, 1.01, 0.99)]
        assert verdicts.subject_verdicts(rows, UNITS)["graphs"].gains is False
        assert verdicts.unsettled_trials(rows, UNITS) == {}

    def test_without_a_gain_nothing_is_started_again(self) -> None:
        rows = [*BASE, *unit("a", "graphs", 0.98), *unit("b", "graphs", 1.5)]
        assert verdicts.subject_verdicts(rows, UNITS)["graphs"].gains is False
        assert verdicts.unsettled_trials(rows, UNITS) == {}
        faulty = [*unit("a", "graphs", 0.5), row("b", "graphs", COLD, CRASHED)]
        assert verdicts.unsettled_trials([*BASE, *faulty], UNITS) == {}
        assert verdicts.unsettled_trials([*BASE, *unit("a", "graphs", 0.5)], UNITS) == {}

    def test_only_the_most_telling_trials_are_started_again(self) -> None:
        speeds = {"a": 0.9, "b": 0.7, "c": 0.8, "d": 1.3, "e": 1.1, "f": 1.2, "g": 1.0}
        units = [(trial, subject) for trial in speeds for subject in ("default", "graphs")]
        rows = [one for trial in speeds for one in unit(trial, "default")]
        rows += [one for trial, speed in speeds.items() for one in unit(trial, "graphs", speed)]
        assert verdicts.unsettled_trials(rows, units) == {"graphs": ["b", "c", "f", "d"]}

    @pytest.mark.parametrize("status", [WRONG, CRASHED, HUNG, LEAKS])
    @pytest.mark.parametrize("start", [COLD, WARM])
    def test_one_fault_is_enough(self, status: str, start: str) -> None:
        # However fast it is otherwise, and whatever a later wave says.
        faulty = [row("b", "graphs", start, status)]
        if start == WARM:
            faulty.insert(0, row("b", "graphs", COLD))
        rows = [*BASE, *unit("a", "graphs", 0.5), *faulty, *unit("b", "graphs", 0.5, wave=2)]
        said = verdicts.subject_verdicts(rows, UNITS)
        assert (said["graphs"].sound, said["graphs"].gains) == (False, False)
        assert said["graphs"].faults == (verdicts.TrialFault("b", start, status),)
        assert said["default"].sound is True

    @pytest.mark.parametrize(
        "found",
        [
            [],
            # The warm start was not made.
            [row("b", "graphs", COLD)],
            # These belong to another subject, and to no unit.
            [*unit("b", "cudagraphs")],
            [*unit("c", "graphs")],
        ],
    )
    def test_missing(self, found: list[TrialRow]) -> None:
        said = verdicts.subject_verdicts([*BASE, *unit("a", "graphs", 0.5), *found], UNITS)[
            "graphs"
        ]
        assert (said.sound, said.gains, said.missing) == (None, None, ("b",))

    @pytest.mark.parametrize("status", [NOT_HERE, COMPILED])
    def test_not_possible_here(self, status: str) -> None:
        other = row("b", "graphs", COLD, status)
        said = verdicts.subject_verdicts([*BASE, *unit("a", "graphs"), other], UNITS)["graphs"]
        # It says nothing of the subject, but another trial does.
        assert (said.sound, said.missing) == (True, ())
        assert said.not_here == (("b",) if status == NOT_HERE else ())
        said = verdicts.subject_verdicts([*BASE, replace(other, trial="a"), other], UNITS)["graphs"]
        assert (said.sound, said.gains) == (None, None)

    def test_later_cold_starts_of_a_wave_do_not_count(self) -> None:
        # Fewer others ran beside these.
        later = [row("a", name, COLD, speed=0.5) for name in ("default", "graphs")]
        rows = [*unit("a", "default"), *unit("a", "graphs"), later[0]]
        for all_rows in (rows, [*rows, later[0], later[1]]):
            said = verdicts.subject_verdicts(all_rows, [("a", "default"), ("a", "graphs")])
            assert (said["graphs"].cold, said["default"].cold) == (1.0, 1.0)
        # Each wave has its own.
        other = [*unit("a", "default", 3, wave=2), *unit("a", "graphs", 1.5, wave=2)]
        said = verdicts.subject_verdicts([*rows, *other], [("a", "default"), ("a", "graphs")])
        assert said["graphs"].cold == round(1.25 / 2, 3)

    def test_without_the_base_there_is_no_ratio(self) -> None:
        # The base of another wave ran at another time.
        rows = [*unit("a", "default", wave=1), *unit("a", "graphs", 0.5, wave=2)]
        said = verdicts.subject_verdicts(rows, [("a", "graphs")])["graphs"]
        assert (said.sound, said.gains, said.trials) == (True, None, {"a": verdicts.TrialFigures()})


def fake_work(
    rows: Sequence[TrialRow], only: Sequence[str] = (), quick: bool = False
) -> battery.TrialBattery:
    """A battery on the CPU that has run already."""
    how = battery.QUICK if quick else battery.FULL
    supervisor = StartSupervisor({}, "cpu", assume=False)
    work = battery.TrialBattery(supervisor, how, only, [], lambda: None, lambda _: None)
    work.rows = list(rows)
    return work


class TestDocument:
    def test_a_fault_of_an_earlier_call_counts(self) -> None:
        earlier = [row("large", "memory_planning", COLD, CRASHED)]
        rows = [*unit("mlp", "default"), *unit("mlp", "memory_planning"), *earlier]
        for work in (fake_work(rows, only=("mlp", "memory_planning")), fake_work(rows, quick=True)):
            made = document.make_document(work, HERE)
            assert made["battery"] == "partial"
            assert made["subjects"]["memory_planning"]["sound"] is False
        made = document.make_document(fake_work(rows[:4], only=("mlp", "memory_planning")), HERE)
        # Only one of its trials was run.
        assert made["subjects"]["memory_planning"]["sound"] is None

    def test_whole(self) -> None:
        units = fake_work([]).units()
        rows = [one for trial, subject in units for one in unit(trial, subject)]
        assert document.make_document(fake_work(rows), HERE)["battery"] == "full"
        # A quick call after a full one loses nothing.
        again = document.make_document(fake_work(rows, quick=True), HERE)
        assert again["battery"] == "full"
        assert again["subjects"]["freezing"]["sound"]
        # The other trials were run in an earlier call.
        assert document.make_document(fake_work(rows, only=("mlp",)), HERE)["battery"] == "full"
        # The last warm start is missing.
        assert document.make_document(fake_work(rows[:-1]), HERE)["battery"] == "quick"

    def test_quick(self) -> None:
        quick = fake_work([], quick=True)
        quick.supervisor.device = "cuda"
        rows = [one for trial, subject in quick.units() for one in unit(trial, subject)]
        rows.append(fresh("graphs", battery.QUICK.fresh))
        for work in (fake_work(rows, quick=True), fake_work(rows)):
            work.supervisor.device = "cuda"
            made = document.make_document(work, HERE)
            assert (made["battery"], made["subjects"]["graphs"]["sound"]) == ("quick", True)
            # A full battery has more trials of it. As long as only some of these were run, the
            # verdict of the quick one stands; a fault ends it.
            for status, sound in ((ENDED, True), (WRONG, False)):
                work.rows = [*rows, row("large", "graphs", COLD, status)]
                made = document.make_document(work, HERE)
                assert (made["battery"], made["subjects"]["graphs"]["sound"]) == ("quick", sound)
        for missing in (rows[:-1], [*rows[:-2], rows[-1]]):
            work.rows = missing
            assert document.make_document(work, HERE)["subjects"]["graphs"]["sound"] is None

    def test_a_full_battery_has_more_fresh_starts_than_a_quick_one(self) -> None:
        work = fake_work([])
        work.supervisor.device = "cuda"
        rows = [one for trial, subject in work.units() for one in unit(trial, subject)]
        captures = [name for name, one in subjects.SUBJECTS.items() if one.gpu]
        few = [fresh(name, battery.QUICK.fresh) for name in captures]
        more = battery.FULL.fresh - battery.QUICK.fresh
        for others, kind, count in (
            ([], "partial", None),
            (few, "quick", battery.QUICK.fresh),
            # A full battery goes on from a quick one.
            ([*few, *(fresh(name, more) for name in captures)], "full", battery.FULL.fresh),
        ):
            work.rows = [*rows, *others]
            made = document.make_document(work, HERE)
            assert made["battery"] == kind
            for name in captures:
                said = made["subjects"][name]
                assert said.get("fresh_starts") == count
                proven = kind == "full" or (kind == "quick" and name == "graphs")
                assert said["sound"] is (True if proven else None)
                assert said["missing"] == ([] if proven else [FRESH_STARTS])
            assert made["subjects"]["autotune"]["sound"] is True
            assert "fresh_starts" not in made["subjects"]["autotune"]
        assert str(said["seldom_faults"]).endswith("with 99 %")
        # An older file has neither.
        del said["fresh_starts"], said["seldom_faults"]
        file.check_document(made, "older.json")

    @pytest.mark.parametrize("status", [WRONG, CRASHED, HUNG])
    def test_a_fault_in_one_fresh_process_is_enough(self, status: str) -> None:
        work = fake_work([])
        work.supervisor.device = "cuda"
        rows = [one for trial, subject in work.units() for one in unit(trial, subject)]
        work.rows = [*rows, fresh("graphs", 21, 20, status)]
        said = document.make_document(work, HERE)["subjects"]["graphs"]
        assert (said["sound"], said["gains"], said["fresh_starts"]) == (False, False, 20)
        assert said["faults"] == [{"trial": FRESH_STARTS, "start": FRESH, "status": status}]
        assert said["missing"] == []

    @pytest.mark.parametrize(
        ("changed", "same"),
        [
            ({}, True),
            ({"image": "rocm/pytorch:latest", "os": "ubuntu 24.04"}, True),
            ({"torch": "2.14.0+rocm7.0"}, False),
            ({"driver": "6.12.12"}, False),
            ({"hip": "7.1"}, False),
            ({"gpu": "AMD Instinct MI300X"}, False),
            ({"new": "fact"}, False),
        ],
    )
    def test_rows_of_the_same_place_are_kept(
        self, tmp_path: Path, changed: Mapping[str, str], same: bool
    ) -> None:
        out = tmp_path / "evidence.json"
        assert document.kept_rows(out, HERE) == ()
        rows = unit("mlp", "default")
        file.write_evidence(out, document.make_document(fake_work(rows), HERE))
        assert list(document.kept_rows(out, {**HERE, **changed})) == (rows if same else [])

    def test_rows_of_another_version_are_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "evidence.json"
        file.write_evidence(out, document.make_document(fake_work(unit("mlp", "default")), HERE))
        monkeypatch.setattr(document, "our_version", lambda: "0.0.1")
        assert document.kept_rows(out, HERE) == ()


class TestRows:
    def test_each_row_of_a_file_is_read_and_written_as_it_is(self) -> None:
        (path,) = (ROOT / "evidence").glob("*.json")
        rows = file.read_evidence(path).trials
        assert len(rows) > 400
        assert [TrialRow.read(row).document() for row in rows] == rows

    def test_what_is_not_known_is_left_out(self) -> None:
        assert TrialOutcome("mlp", HUNG).document() == {"trial": "mlp", "status": HUNG}
        assert TrialOutcome.read({"trial": "mlp", "status": HUNG, "of": "later"}) == TrialOutcome(
            "mlp", HUNG
        )
        # Nothing is something that is known.
        zero = {"trial": "mlp", "status": ENDED, "subject": "default", "start": COLD, "wave": 0}
        assert TrialRow.read({**zero, "peak": 0}).document() == {**zero, "peak": 0}


class Hanging:
    """In the place of a supervisor: *hang* are the trials of freezing that hang in a cold start.

    ``alone`` are those that also hang alone, ``started`` what was started, ``places`` the caches.
    """

    device = "cpu"

    def __init__(self, hang: Sequence[str], alone: Sequence[str] | None = None) -> None:
        self.hang, self.alone = hang, hang if alone is None else alone
        self.stop = threading.Event()
        self.started: list[tuple[str, str, tuple[str, ...], float]] = []
        self.places: set[Path] = set()
        # The most of them that were there at a time; the calls that cold starts were to compare.
        self.most_places = 0
        self.calls: list[int] = []
        self.lock = threading.Lock()

    def run(self, start: TrialStart) -> list[TrialOutcome]:
        subject = start.caches.name.rpartition("-")[0]
        kind = WARM if start.time else COLD
        least = min(start.limit.values())
        with self.lock:
            self.started.append((subject, kind, tuple(start.trials), least))
            self.places.add(start.caches)
            there = sum(place.exists() for place in self.places)
            self.most_places = max(self.most_places, there)
            self.calls += [start.calls] if kind == COLD else []
        hang = self.alone if least == battery.FULL.limit else self.hang
        found: list[TrialOutcome] = []
        for trial in start.trials:
            if (subject, kind) == ("freezing", COLD) and trial in hang:
                return [*found, TrialOutcome(trial, HUNG, "first call")]
            found.append(TrialOutcome(trial, ENDED, first=1.0, seconds=start.calls / 1e3))
        return found


FOUR = ("mlp", "decoder", "convolution", "attention")


def run_freezing(
    supervisor: Hanging,
    cores: int,
    monkeypatch: pytest.MonkeyPatch,
    kept: Sequence[TrialRow] = (),
) -> battery.TrialBattery:
    """Run a battery of four trials of freezing."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(trials, "NAMES", FOUR)
    how = dataclasses.replace(battery.FULL, trials=FOUR, subjects=("default", "freezing"))
    return run_battery(supervisor, how, kept=kept)


def cold_of(work: battery.TrialBattery) -> dict[str, TrialRow]:
    """By trial, the row of the cold start of freezing."""
    own = [one for one in work.rows if (one.subject, one.start) == ("freezing", COLD)]
    return {one.trial: one for one in own}


def verdict_of(work: battery.TrialBattery) -> verdicts.SubjectVerdict:
    return verdicts.subject_verdicts(work.rows, work.units())["freezing"]


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start says which it is, how many results of all are there, and what may be left."""
    told: list[tuple[Any, ...]] = []

    def tell(what: str, done: int, total: int, units: str, left_s: float, at_most: bool) -> None:
        told.append((what, done, total, units, 0 < left_s <= battery.FULL.seconds, at_most))

    monkeypatch.setattr(battery, "tell_step", tell)
    work = run_freezing(Hanging(()), 2, monkeypatch)
    whole = len(work.units()) * 3
    assert told[0] == ("default, cold start", 0, whole, "results", True, True)
    assert {one[0] for one in told} >= {"freezing, warm start", "freezing, cold start"}
    assert [one[1] for one in told] == sorted(one[1] for one in told)


class TestHangs:
    """A hang costs minutes, and one is enough."""

    def test_after_two_of_them_others_are_not_tried(
        self, monkeypatch: pytest.MonkeyPatch, golden: Golden
    ) -> None:
        supervisor = Hanging(FOUR)
        work = run_freezing(supervisor, 2, monkeypatch)
        found, verdict = cold_of(work), verdict_of(work)
        statuses = [found[name].status for name in FOUR]
        assert statuses == [HUNG, HUNG, NOT_TRIED, NOT_TRIED]
        golden(found["attention"].reason)
        assert (verdict.sound, verdict.missing) == (False, ())
        assert not [one for one in supervisor.started if one[:2] == ("freezing", WARM)]

    def test_beside_others_one_is_confirmed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        supervisor = Hanging(FOUR)
        found = cold_of(run_freezing(supervisor, 8, monkeypatch))
        statuses = [found[name].status for name in FOUR]
        assert statuses == [HUNG, HUNG, NOT_TRIED, NOT_TRIED]
        own = [one[2:] for one in supervisor.started if one[0] == "freezing"]
        # Beside others a trial may take twice as long.
        limit = battery.FULL.limit
        assert own == [(FOUR, 2 * limit), (FOUR[1:], 2 * limit), (FOUR[:1], limit)]

    def test_others_were_guilty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        supervisor = Hanging(FOUR, alone=("attention",))
        work = run_freezing(supervisor, 8, monkeypatch)
        found, verdict = cold_of(work), verdict_of(work)
        assert [found[name].status for name in FOUR] == [ENDED, ENDED, ENDED, HUNG]
        assert found["mlp"].beside_others
        assert verdict.faults == (verdicts.TrialFault("attention", COLD, HUNG),)
        (warm, _) = [one[2] for one in supervisor.started if one[:2] == ("freezing", WARM)]
        assert warm == FOUR[:3]


class Fast(Hanging):
    """Nothing hangs, and freezing makes mlp faster and attention slower: in *starts* warm ones."""

    def __init__(self, starts: int) -> None:
        super().__init__(())
        self.left = starts

    def run(self, start: TrialStart) -> list[TrialOutcome]:
        found = super().run(start)
        if start.time:
            speeds = dict.fromkeys(start.trials, 1.0)
            if start.caches.name.startswith("freezing-") and self.left:
                self.left -= 1
                speeds.update({"mlp": 0.5, "attention": 1.01})
            found = [replace(one, samples=(speeds[one.trial],) * 3, peak=1) for one in found]
        return found


class TestGains:
    """What seems to gain is started as often as a verdict needs, and nothing else is."""

    @pytest.mark.parametrize("cores", [2, 8])
    def test_seems_to_gain(self, monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
        supervisor = Fast(starts=9)
        work = run_freezing(supervisor, cores, monkeypatch)
        verdict = verdict_of(work)
        assert (verdict.gains, verdict.trials["mlp"].starts) == (True, 5)
        for name in ("default", "freezing"):
            own = [one[1:3] for one in supervisor.started if one[0] == name]
            # Once more it is compiled anew, so that the luck of one compile is not in all starts.
            first, second = [(COLD, FOUR), *[(WARM, FOUR)] * 2], [(COLD, ("mlp",))]
            assert own == [*first, *second, *[(WARM, ("mlp",))] * 3]
        # In caches of their own, which are gone in the end.
        assert len(supervisor.places) == 4
        assert supervisor.most_places == 2
        # It repeats only the times, so it does not say how long a trial usually takes.
        assert supervisor.calls == [battery.FULL.calls] * 2 + [battery._FEW] * 2
        assert work.base["mlp"] == battery.FULL.calls / 1e3

    def test_by_chance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        supervisor = Fast(starts=2)
        verdict = verdict_of(run_freezing(supervisor, 2, monkeypatch))
        assert (verdict.sound, verdict.gains) == (True, False)
        assert len([one for one in supervisor.started if one[:2] == ("freezing", WARM)]) == 5

    def test_no_gain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        supervisor = Fast(starts=0)
        verdict = verdict_of(run_freezing(supervisor, 2, monkeypatch))
        assert verdict.gains is False
        assert len([one for one in supervisor.started if one[1] == WARM]) == 4

    def test_interrupted_before_it_was_settled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        supervisor = Fast(starts=9)
        monkeypatch.setattr(battery, "FULL", dataclasses.replace(battery.FULL, settle=1))
        first = run_freezing(supervisor, 2, monkeypatch)
        assert verdict_of(first).gains is None
        monkeypatch.undo()
        assert verdict_of(run_freezing(supervisor, 2, monkeypatch, first.rows)).gains is True
        started = [one[2] for one in supervisor.started if one[:2] == ("freezing", COLD)]
        assert started == [FOUR, ("mlp",), ("mlp",)]


class TestUnits:
    @pytest.mark.parametrize(
        ("only", "wanted"),
        [
            (("mlp", "freezing"), {("mlp", "default"), ("mlp", "freezing")}),
            (("mlp", "default"), {("mlp", "default")}),
            # Nothing is captured on a CPU, and weights is not about freezing.
            (("mlp", "graphs"), set()),
            (("weights", "freezing"), set()),
        ],
    )
    def test_only(self, only: Sequence[str], wanted: set[tuple[str, str]]) -> None:
        assert {*fake_work([], only).units()} == wanted

    def test_no_trial_of_a_gpu_on_a_cpu(self) -> None:
        units = fake_work([]).units()
        assert {subject for _, subject in units}.isdisjoint(("graphs", "cudagraphs"))
        assert {trial for trial, _ in units}.isdisjoint(("streams", "transformers_generate"))
        gpu = fake_work([])
        gpu.supervisor.device = "cuda"
        assert {trial for trial, _ in gpu.units()} == {*trials.NAMES}
        assert {subject for _, subject in gpu.units()} == {*evidence.SUBJECTS}


DIFFERENCES = program_file("prove_parts/differences.py")


def test_differences(torch_python: Interpreter, tmp_path: Path) -> None:
    wrong = json.loads(torch_python.run(DIFFERENCES, env={"HOME": str(tmp_path)}).stdout)
    right = {"the same", "rounding", "large", "half", "zeros", "whole", "truth", "list"}
    assert {name for name, is_wrong in wrong.items() if not is_wrong} == right
    assert len(wrong) > len(right)


class TestCommand:
    @pytest.fixture
    def on(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        """What is found of the place."""
        found = dict(HERE)
        monkeypatch.setattr(place, "find_machine", lambda environ: found)
        return found

    @pytest.fixture
    def nothing_starts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("something was started")

        monkeypatch.setattr(subprocess, "Popen", refuse)
        monkeypatch.setattr(place, "find_machine", refuse)

    @pytest.mark.usefixtures("nothing_starts")
    def test_list(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["prove", "--list"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        for name in (*evidence.SUBJECTS, *trials.NAMES):
            assert f"\n  {name}: " in out

    @pytest.mark.usefixtures("nothing_starts")
    def test_unknown_name(self, capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
        with pytest.raises(SystemExit) as raised:
            main(["prove", "--only", "mlp,freezin"])
        assert raised.value.code == 2
        golden(capsys.readouterr().err.splitlines()[-1])

    @pytest.mark.usefixtures("nothing_starts")
    @pytest.mark.parametrize("out", ["directory", "directory/file/new/evidence.json"])
    def test_not_writable(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, out: str, golden: Golden
    ) -> None:
        (tmp_path / "directory").mkdir()
        (tmp_path / "directory" / "file").touch()
        assert main(["prove", "--out", str(tmp_path / out)]) == 1
        golden(capsys.readouterr().err)

    @pytest.mark.usefixtures("nothing_starts")
    def test_a_directory_where_no_file_can_be_made(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        # Root may write there, says the directory.
        assert main(["prove", "--out", "/proc/evidence.json"]) == 1
        said = capsys.readouterr().err
        assert said.startswith("rocm-autopatch prove: /proc/evidence.json can't be written: ")

    def test_no_evidence(
        self,
        on: dict[str, str],
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        golden: Golden,
    ) -> None:
        out = tmp_path / "evidence.json"
        made = document.make_document(fake_work([]), on)
        for name, text in (
            ("not JSON", '{\n "version": nothing\n}'),
            ("wrong", json.dumps({**made, "battery": "large"})),
        ):
            out.write_text(text)
            assert main(["prove", "--out", str(out), "--only", "mlp,freezing"]) == 1
            assert out.read_text() == text
            golden(capsys.readouterr().err, name)

    def test_nothing_to_try(
        self,
        on: dict[str, str],
        capsys: pytest.CaptureFixture[str],
        tmp_path: Path,
        golden: Golden,
    ) -> None:
        out = tmp_path / "evidence.json"
        assert main(["prove", "--out", str(out), "--only", "weights,freezing"]) == 1
        assert not out.exists()
        golden(capsys.readouterr().err)

    def test_no_torch(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path, golden: Golden
    ) -> None:
        assert main(["prove", "--out", str(tmp_path / "evidence.json")]) == 1
        golden(capsys.readouterr().err)

    @pytest.mark.parametrize("arguments", [(), ("--device", "cpu")])
    def test_a_cpu_proves_nothing_of_the_gpu(
        self,
        on: dict[str, str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        arguments: Sequence[str],
    ) -> None:
        on.update(device="gfx942 0x74a1 304 CUs", driver="6.12.12")
        on["gpu"] = "AMD Instinct MI300X" if arguments else ""
        out = tmp_path / "evidence.json"

        def run_nothing(work: battery.TrialBattery) -> None:
            assert work.supervisor.device == "cpu"
            work.rows = [*unit("mlp", "default"), *unit("mlp", "freezing")]
            work.keep()

        monkeypatch.setattr(battery.TrialBattery, "run", run_nothing)
        command = ["prove", *arguments, "--out", str(out), "--only", "mlp,freezing"]
        assert main(command) == 0
        found = file.read_evidence(out)
        assert len(found.trials) == 4
        assert (found.place["device"], found.place["driver"]) == (machine.NO_GPU, machine.NONE)

    def test_a_variable_of_the_user_does_not_decide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The first is deleted by safe, so an image that sets it would fail without us, too.
        (deleted, *_) = [one.name for one in load.top("safe").env if one.action == "delete"]
        for name in (deleted, "ROCM_AUTOPATCH", "ROCM_AUTOPATCH_KEEP", "OTHER"):
            monkeypatch.setenv(name, "1")
        environ = StartSupervisor(proof._programs_environment([]), "cpu", assume=False).environ
        assert {deleted, "ROCM_AUTOPATCH", "ROCM_AUTOPATCH_KEEP"}.isdisjoint(environ)
        assert environ["OTHER"] == "1"


class TestTrials:
    def test_each_file_is_named(self) -> None:
        (directory,) = trials.__path__
        files = {path.stem for path in Path(directory).glob("*.py")} - {"__init__"}
        assert files == {*trials.NAMES}
        assert len(trials.NAMES) == len({*trials.NAMES})
        assert {*trials.QUICK} <= {*trials.NAMES}

    @pytest.mark.parametrize("name", trials.NAMES)
    def test_each_has_what_it_needs(self, name: str) -> None:
        trial = trials.load_trial(name)
        first = (trial.__doc__ or "").splitlines()[0]
        assert first.endswith(".")
        known = {one.group for one in subjects.SUBJECTS.values()} | {*subjects.SUBJECTS}
        assert trial.ABOUT
        assert {*trial.ABOUT} <= known
        assert isinstance(getattr(trial, "NEEDS", ()), tuple)
        assert getattr(trial, "TURN", 1) >= 1
        assert {getattr(trial, flag, False) for flag in ("GPU", "TRAINING")} <= {True, False}
        assert callable(trial.make_program)
        # Whoever starts a battery has no torch to import.
        for word in ("torch", *getattr(trial, "NEEDS", ())):
            assert not hasattr(trial, word.partition(".")[0])

    def test_each_subject_is_tried(self) -> None:
        assert list(subjects.SUBJECTS) == list(evidence.SUBJECTS)
        for name, subject in subjects.SUBJECTS.items():
            assert name == subject.name
            about = [one for one in trials.NAMES if _is_about(one, subject)]
            # At least one that needs neither a GPU nor a package.
            assert any(
                not hasattr(trials.load_trial(one), "NEEDS")
                and not hasattr(trials.load_trial(one), "GPU")
                for one in about
            )
        assert {*battery.QUICK.subjects} <= {*subjects.SUBJECTS}

    @pytest.mark.parametrize("name", subjects.SUBJECTS)
    def test_its_policy_is_right(self, name: str, tmp_path: Path) -> None:
        work = fake_work([])
        work.directory = tmp_path
        written = work._prepare_caches(name) / "policy.yaml"
        found = load.top(str(written))
        said = yaml.safe_load(written.read_text())
        assert (said["version"], found.name) == (1, f"prove-{name}")
        assert main(["check", str(written)]) == 0


def _is_about(name: str, subject: EvidenceSubject) -> bool:
    return trials.is_about(trials.load_trial(name), subject.name, subject.group)
