# mypy: allow-subclassing-any
"""What several threads of a program do with graphs at the same time.

The GPU is a stand-in. Where two threads have to meet, one of them is made slow at that place.
"""

from __future__ import annotations

import functools
import gc
import random
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import lock_order
import replayed
import stand_in

from rocm_autopatch.graphs import (
    capture,
    graph_cache,
    graphed,
    layout,
    memory,
    passes,
    record,
    soundness,
    training,
    wrapper,
)
from rocm_autopatch.graphs.graph_cache import GraphCache
from rocm_autopatch.graphs.memory import FirstCallMemory, GraphMemory

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU here is a stand-in")
replaying = replayed.replaying


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    stand_in.install()
    with torch.no_grad():
        yield


class Slow(dict[Any, Any]):
    """A dict that takes its time while someone looks at all of its values."""

    def values(self) -> Any:
        for one in super().values():
            time.sleep(0.02)
            yield one


def during(work: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """What *work* returns, while another thread does *other* shortly after its begin."""
    raised: list[BaseException] = []

    def run() -> None:
        time.sleep(0.05)
        try:
            other()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    result = work()
    thread.join()
    assert raised == []
    return result


def region(pools: capture.CapturePools | None = None) -> training.TrainingRegion:
    return training.TrainingRegion("name", "mode", pools or capture.CapturePools())


def forward(its: training.TrainingRegion) -> Any:
    return training.CompiledForward(its, tuple, [])


@replayed.nothing("its memory has no graph")
def test_results_are_swept_while_they_are_looked_at() -> None:
    memory = GraphMemory()

    class Results:
        gone = float("inf")
        for_backward = False

        def used_of_gone(self) -> list[int]:
            return []

        def abandoned_outputs(self) -> Results:
            return self

        def result_memories(self) -> list[int]:
            return []

        def used_memories(self) -> list[int]:
            return []

        def only_shown_in_use(self) -> bool:
            return True

        def why_held(self) -> str | None:
            # As the finalizer of a function does that another thread lets go of.
            memory.sweep()
            return None

    for number in range(3):
        memory.lend(number, Results())
    assert memory.busy(0) is None
    assert memory.lent == {}


@replayed.nothing("its forwards are not called")
def test_a_forward_waits_while_others_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowSet(weakref.WeakSet[Any]):
        def __iter__(self) -> Iterator[Any]:
            for one in super().__iter__():
                time.sleep(0.02)
                yield one

    monkeypatch.setattr(passes, "_waiting", SlowSet())
    several = [forward(region()) for _ in range(6)]
    for one in several[:5]:
        passes.await_backward(one.calls)
    found = during(passes.find_waiting, lambda: passes.await_backward(several[5].calls))
    assert len(found) == 5
    assert len(passes.find_waiting()) == 6


@replayed.nothing("its forward is not called")
def test_a_forward_gets_a_signature_in_a_backward() -> None:
    one = forward(region())
    signatures = {number: SimpleNamespace(state=None) for number in range(5)}
    one.cache.signatures = Slow(signatures)
    find = functools.partial(one.cache.run_call, ("key",), None, [])
    assert during(one.calls.places_of_numbers, find) == {}
    assert len(one.cache.signatures) == 6


@replayed.nothing("its forward is not called")
def test_a_forward_is_captured_while_a_call_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    one = forward(region())
    one.calls.note_saved({1}, {2})
    with monkeypatch.context() as patched:
        patched.setattr(capture, "is_capturing", lambda: True)
        one.calls.note_saved({5}, {6})
    assert (one.calls.saved, one.calls.places) == ({1}, {1, 2})
    one.calls.has_graphs = True
    one.calls.note_saved({3}, {4})
    assert (one.calls.saved, one.calls.places) == ({1}, {1, 2})


@replayed.nothing("its forwards are not called")
def test_threads_that_compile_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    released: list[Any] = []
    monkeypatch.setattr(FirstCallMemory, "release_handles", lambda self: released.append(self))
    monkeypatch.setattr(passes, "_waiting", weakref.WeakSet())
    monkeypatch.setattr(capture, "give_back", lambda: None)
    pools = capture.CapturePools()
    old, others, new = region(pools), region(), region(pools)
    kept = [forward(old), forward(others)]
    for one in kept:
        passes.await_backward(one.calls)
    new.take(SimpleNamespace(fx_kwargs={}, current_callable=tuple))
    assert released == [pools.first_calls]


@replayed.nothing("its row is of no callable")
def test_the_report_while_calls_are_counted() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    row = record.new_row("name", "mode")
    graph: record.GraphRow = {
        "signature": "",
        "replays": 1,
        "capture_seconds": 0.0,
        "memory_before": 0,
        "memory_after": 0,
        "verified": False,
        "checks": 0,
    }
    over = threading.Event()

    def count() -> None:
        while not over.is_set():
            row["plain"].clear()
            row["graphs"].clear()
            for number in range(15):
                record.count_plain_call(row, str(number))
                row["graphs"].append(graph.copy())

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(3000):
            record.finished_row(row)
    finally:
        sys.setswitchinterval(interval)
        over.set()
        thread.join()
        record._rows.remove(row)
    done = record.finished_row(row)
    done["plain"]["0"] = done["graphs"][0]["replays"] = 7
    assert (row["plain"]["0"], row["graphs"][0]["replays"]) == (1, 1)


def test_a_module_gets_other_weights_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            return self.second(y) if hasattr(self, "second") else y

    module = Module()
    wrapped, x, find = graphed(module, guards="none"), torch.ones(2, 4), GraphCache._find_signature
    slow = threading.main_thread()

    def found(self: GraphCache, *args: Any) -> Any:
        if threading.current_thread() is slow:
            time.sleep(0.2)
        return find(self, *args)

    def other() -> None:
        # Such as a LoRA layer.
        module.second = torch.nn.Linear(4, 4)
        with torch.no_grad():
            wrapped(torch.ones(3, 4))

    wrapped(x)
    monkeypatch.setattr(GraphCache, "_find_signature", found)
    module.first.weight.data = module.first.weight.data.clone()
    got = during(lambda: wrapped(x), other)
    # Its weights were looked up before, and the function ran after that.
    assert torch.equal(got, module(x))
    for _ in range(5):
        assert torch.equal(wrapped(x), module(x))
    assert wrapped.row["replays"] >= 2


def test_a_graph_is_dropped_before_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    wrapped = graphed(torch.nn.Linear(4, 4), guards="none")
    x, same = torch.ones(2, 4), layout.same_places
    for _ in range(4):
        wrapped(x)
    slow = threading.main_thread()

    def slowly(*args: Any) -> Any:
        result = same(*args)
        if threading.current_thread() is slow:
            time.sleep(0.2)
        return result

    monkeypatch.setattr(graph_cache, "same_places", slowly)
    during(lambda: wrapped(x), wrapped.clear)
    # It counts as the first one of its signature, and nobody keeps a graph beside the entries.
    assert len(wrapped.row["graphs"]) == 1
    assert [one.calls for one in wrapped._graphs.signatures.values()] == [1]


def test_weights_are_replaced_in_a_capture_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = torch.nn.Linear(4, 4), torch.ones(2, 4)
    wrapped = graphed(module, guards="none")
    for _ in range(4):
        wrapped(x)
    module.weight = torch.nn.Parameter(torch.zeros(4, 4))
    monkeypatch.setattr(wrapper, "is_capturing", lambda: True)
    # To drop graphs takes a lock, and waits for the device.
    monkeypatch.setattr(GraphCache, "clear", lambda self: pytest.fail("graphs are dropped"))
    assert torch.equal(wrapped(x), module(x))
    assert any("another capture is under way" in why for why in wrapped.row["plain"])


@pytest.mark.parametrize("often", [1, 2])
def test_another_thread_draws_random_numbers(often: int) -> None:
    calls = 0

    def function(x: Any) -> Any:
        nonlocal calls
        calls += 1
        # The second call is observed, and those after it until one is as it should be.
        if 2 <= calls < 2 + often:
            thread = threading.Thread(target=random.random)
            thread.start()
            thread.join()
        return x + 1

    wrapped = graphed(function, guards="none")
    for _ in range(8):
        wrapped(torch.ones(2))
    assert wrapped.row["replays"] == 6 - often
    assert wrapped.row["refused"] == []


@pytest.mark.parametrize(
    ("keeps", "outputs"), [(False, "clone"), (True, "clone"), (False, "alias")]
)
def test_results_that_other_streams_may_read(keeps: bool, outputs: str) -> None:
    wrapped = graphed(lambda x: x + 1, outputs=outputs, guards="none")
    kept = []
    for _ in range(4):
        result = wrapped(torch.ones(2))
        kept += [result] if keeps else []
        del result
    (one,) = wrapped._graphs.signatures.values()
    assert one.state.observed.pool.lends == (not keeps)


@replayed.nothing("it gives memory back alone")
def test_torch_gives_no_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    capture.give_back()


def test_the_order_of_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.graphs_in_modes()
    monkeypatch.setattr(soundness, "checks_by_default", lambda: True)

    def use(way: str) -> None:
        function = graphed(torch.nn.Linear(4, 4), guards=way, limit=1, check=True, verify=True)
        with torch.no_grad():
            for size in (1, 2):
                for _ in range(5):
                    function(torch.ones(size, 4))
        function.clear()

    def train() -> None:
        model = torch.nn.Linear(4, 4)
        fast = torch.compile(model, mode="reduce-overhead")
        with torch.enable_grad():
            for _ in range(6):
                fast(torch.ones(2, 4)).sum().backward()

    with lock_order.watch(monkeypatch) as noted:
        for way in ("all", "none"):
            during(functools.partial(use, way), functools.partial(use, way))
        during(train, functools.partial(use, "all"))
        gc.collect()
    assert ("GuardedGraphs._lock", "CapturePools.lock") in noted.pairs
    assert lock_order.against_the_order(noted) == []


@replayed.nothing("it takes locks alone")
def test_locks_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_order.watch(monkeypatch) as noted:
        pools = capture.CapturePools()
        with memory._lock, pools.lock:
            pass
    assert lock_order.against_the_order(noted) == [("memory._lock", "CapturePools.lock")]


def test_a_graph_is_dropped_while_hooks_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    stand_in.graphs_in_modes()
    asked, dropped = threading.Event(), threading.Event()
    real = passes._has_number_on_host

    def slowly(state: Any) -> bool:
        asked.set()
        dropped.wait(60)
        return real(state)

    monkeypatch.setattr(passes, "_has_number_on_host", slowly)
    monkeypatch.setattr(graph_cache, "CALLS_IN_USE", 3)
    model = torch.nn.Linear(4, 4)
    fast = torch.compile(model, mode="reduce-overhead")

    def drop() -> None:
        asked.wait(60)
        with torch.enable_grad():
            kept = [fast(torch.ones(2, 4)) for _ in range(8)]
        dropped.set()
        del kept

    with torch.enable_grad():
        for _ in range(5):
            fast(torch.ones(2, 4)).sum().backward()
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: one, lambda one: one)

        def call() -> Any:
            with torch.enable_grad(), hooks:
                return fast(torch.ones(2, 4))

        got = during(call, drop)
        assert torch.equal(got, model(torch.ones(2, 4)))


def test_two_threads_find_the_forward_of_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    stand_in.graphs_in_modes()
    model = torch.nn.Linear(4, 4)
    fast = torch.compile(model, mode="reduce-overhead")
    made, other = threading.Event(), threading.Event()
    real = passes.BackwardPass.make_cache

    def slowly(self: Any) -> Any:
        cache = real(self)
        if threading.current_thread() is threading.main_thread():
            made.set()
            other.wait(60)
        return cache

    monkeypatch.setattr(passes.BackwardPass, "make_cache", slowly)
    # Both have saved it.
    x = torch.ones(2, 4)
    with torch.enable_grad():
        losses = [fast(x).sum() for _ in range(2)]

        def backward() -> None:
            made.wait(60)
            losses[1].backward()
            other.set()

        during(lambda: losses[0].backward(), backward)
        for _ in range(6):
            fast(x).sum().backward()
    assert made.is_set()


def test_plain_calls_that_compare_take_no_lock_of_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are the program's, and another thread may capture meanwhile."""
    seen, calls = [], 0

    def function(x: Any) -> Any:
        nonlocal calls
        calls += 1
        seen.append("capture._one" in noted.held())
        return x + 1, torch.full((4,), calls)

    with lock_order.watch(monkeypatch) as noted:
        wrapped = graphed(function, guards="none", warmup=1, verify=True, check=True)
        for _ in range(6):
            wrapped(torch.ones(4))
    # Verified, and checked: with two more plain calls each time.
    assert calls > 8
    assert not any(seen)


def test_random_numbers_after_a_check_that_calls_again() -> None:
    """The next call draws what follows the numbers of the checked one."""
    calls = 0

    def function(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return torch.nn.functional.dropout(x, 0.5, True), torch.full((4,), calls)

    wrapped = graphed(function, guards="none", warmup=1, verify=False, check=True)
    x = torch.ones(64)
    torch.manual_seed(3)
    got = [wrapped(x)[0] for _ in range(7)]
    torch.manual_seed(3)
    for one in got:
        assert torch.equal(one, torch.nn.functional.dropout(x, 0.5, True))
    assert wrapped.row["graphs"][0]["checks"] > 1


def test_something_compiles_while_a_call_is_captured() -> None:
    """What it has launched was that of the compile, too. Calls are observed again."""
    calls = 0
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=False)

    def function(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            # As another thread may do it at this moment.
            during(lambda: None, lambda: compiled(torch.ones(7)))
        return x + 1

    wrapped = graphed(function, guards="none", warmup=2, verify=False)
    for _ in range(6):
        assert wrapped(torch.ones(4)).tolist() == [2] * 4
    assert (wrapped.row["replays"], wrapped.row["refused"]) == (2, [])
