"""The trials of ``prove`` that are about what breaks graphs: they capture, and find what is wrong.

The GPU is a stand-in, and nothing is compiled: each function is wrapped in ``graphed``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import stand_in

from rocm_autopatch.graphs import captured_ops, graphed, soundness
from rocm_autopatch.measure.prove import bench, trials

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU here is a stand-in")
# By trial, how many functions it has captured in each of its threads together.
TRIALS = {"host_copy": 1, "memset": 1, "many_nodes": 1, "topk": 1, "capturing_threads": 6}
CALLS = 8


class GraphedBench(bench.TrialBench):
    """A side whose functions are captured, and are not compiled."""

    def __init__(self, compiled: bool) -> None:
        super().__init__(torch, "cpu", None, compiled)
        self.wrapped: list[Any] = []
        self.turn = threading.Lock()

    def compile(self, function: Any, **options: Any) -> Any:
        if not self.compiled:
            return function
        wrapped = graphed(function, verify=False)
        self.wrapped.append(wrapped)

        def call_in_turn(*given: Any) -> Any:
            # A stand-in's capture undoes what other threads write meanwhile.
            with self.turn:
                return wrapped(*given)

        return call_in_turn


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    stand_in.install()
    # A wrong replay of another test ended all graphs of the process.
    monkeypatch.setattr(soundness, "distrusted", [])
    # On ROCm, topk is not captured, and these graphs are a stand-in's.
    monkeypatch.setattr(captured_ops, "is_unsafe", lambda *given: False)
    with torch.no_grad():
        yield


def compare_calls(name: str) -> tuple[list[float], list[Any]]:
    """How far each call is from eager mode, and what a trial has wrapped."""
    trial = trials.load_trial(name)
    with ExitStack() as stack:
        if getattr(trial, "TRAINING", False):
            stack.enter_context(torch.enable_grad())
        made = []
        for compiled in (False, True):
            torch.manual_seed(0)
            side = GraphedBench(compiled)
            made.append((side, trial.make_program(side)))
        (_, eager), (side, call) = made
        apart = []
        for number in range(CALLS):
            expected = [one.clone() for one in _list(eager(number))]
            apart.append(float(bench.difference_to_eager(torch, expected, _list(call(number)))))
    return apart, side.wrapped


def _list(found: Any) -> list[Any]:
    return [found] if isinstance(found, torch.Tensor) else list(found)


def test_each_is_among_the_trials() -> None:
    assert {*TRIALS} <= {*trials.NAMES}
    assert all(not trials.load_trial(name).TIMED for name in TRIALS)


@pytest.mark.parametrize("name", TRIALS)
def test_it_replays(name: str) -> None:
    apart, wrapped = compare_calls(name)
    assert max(apart) <= 1, apart
    assert len(wrapped) == TRIALS[name]
    for one in wrapped:
        assert one.row["replays"] > 0, one.row


@pytest.mark.parametrize("name", TRIALS)
def test_it_finds_wrong_replays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_in.StandIn, "wrong", True)
    apart, _ = compare_calls(name)
    assert apart[0] <= 1
    assert any(not one <= 1 for one in apart)


def operations(name: str, number: int) -> list[str]:
    """The operations of an eager call, also those inside of other ones."""
    call = trials.load_trial(name).make_program(GraphedBench(False))
    with torch.autograd.profiler.profile() as profile:
        call(number)
    return [event.name for event in profile.function_events]


def test_a_memset_is_inside() -> None:
    # For numbers 1, 3 and so on no gradients are computed, which torch clears elsewhere.
    # One is that of zeros_like, which Inductor makes a kernel of.
    assert operations("memset", 1).count("aten::zero_") >= 2


def test_there_are_many_nodes() -> None:
    assert operations("many_nodes", 0).count("aten::mm") >= 250
