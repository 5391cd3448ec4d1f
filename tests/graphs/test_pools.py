"""Memory and streams that threads use at the same time, and devices that are not the current one.

Everything here is our own code; what is below it, torch's allocator and streams, is a stand-in,
also on a machine with a GPU. It counts who uses a memory as ``c10/cuda/CUDACachingAllocator.cpp``
does (beginAllocateToPool, endAllocateToPool and releasePool, torch 2.11), and raises its errors. It
waits where threads can meet. Its streams do nothing but know whose work they have waited for. As
torch's, there are 32 for a device. tests/graphs/test_graphs.py has real threads on a GPU.
"""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import types
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import lock_order

from rocm_autopatch import startup
from rocm_autopatch.graphs import capture
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.graphs.refusal import CaptureBusy

THREADS, ROUNDS = 4, 12
# Tensors of this device have no values, and torch lets it have any number.
DEVICES = [torch.device("meta", number) for number in range(2)]


class Allocator:
    """Who uses which memory, by device and handle."""

    def __init__(self) -> None:
        self.users: Counter[Any] = Counter()
        self.known: set[Any] = set()
        self.underway: list[Any] = []
        #: The streams that are captured.
        self.captures: list[Any] = []
        self.broken = ""
        #: What torch has of the device, what of it is in use, how often the rest was given back.
        self.reserved = self.allocated = self.returned = 0
        #: What it can't give back, and what the device has.
        self.between, self.free = 0, 80 << 30
        #: Memory that is no graph's of ours, how often torch has freed all workspaces, and whether
        #: the other device is in use.
        self.strange: list[Any] = []
        self.freed, self.is_elsewhere = 0, True
        #: The errors of graphs that were destroyed while a stream was captured.
        self.illegal: list[RuntimeError] = []
        #: What another thread does before the next call's memory is in use, once.
        self.meanwhile: Callable[[], Any] | None = None
        #: The work of each stream, and what of others' it waits for.
        self.work: Counter[int] = Counter()
        self.after: dict[int, Counter[int]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def launch(self) -> tuple[int, int]:
        """Some work on the current stream."""
        raw = torch.cuda.current_stream().cuda_stream
        self.work[raw] += 1
        return raw, self.work[raw]

    def is_after(self, stream: Any, work: tuple[int, int]) -> bool:
        """Whether what *stream* does from now on is after that work."""
        raw, number = work
        return raw == stream.cuda_stream or self.after[stream.cuda_stream][raw] >= number

    def begin(self, device: int, handle: Any) -> None:
        time.sleep(0.0005)
        one = device, handle
        with self._lock:
            if self.broken:
                raise RuntimeError(self.broken)
            if one in self.known and not self.users[one]:
                raise RuntimeError("it->second->use_count > 0 INTERNAL ASSERT FAILED")
            self.known.add(one)
            self.users[one] += 1
            if one in self.underway:
                raise RuntimeError("beginAllocateToPool: already recording to mempool_id")
            self.underway.append(one)
        time.sleep(0.0005)

    def begin_on_stream(self, device: int, handle: Any) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            in_threads(meanwhile, 1)
        self.begin(device, handle)

    def end(self, device: int, handle: Any) -> None:
        with self._lock:
            if (device, handle) not in self.underway:
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
            self.underway.remove((device, handle))

    def release(self, device: int, handle: Any) -> None:
        with self._lock:
            self.users[device, handle] -= 1
            if self.users[device, handle] < 0:
                raise RuntimeError("uc >= 0 INTERNAL ASSERT FAILED")


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    found, local = Allocator(), threading.local()
    handles, streams = ((7, number) for number in itertools.count()), itertools.count()

    @contextmanager
    def current(device: Any) -> Iterator[None]:
        before, local.device = here(), device.index
        try:
            yield
        finally:
            local.device = before

    def here() -> int:
        return getattr(local, "device", 0)

    class Stream:
        def __init__(self, device: Any, raw: int | None = None) -> None:
            self.device = device
            self.cuda_stream = next(streams) % 32 + 100 if raw is None else raw

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

        def __hash__(self) -> int:
            return self.cuda_stream

        def wait_stream(self, other: Any) -> None:
            mine = found.after[self.cuda_stream]
            mine |= found.after[other.cuda_stream]
            mine[other.cuda_stream] = found.work[other.cuda_stream]

    def current_stream(device: Any = None) -> Any:
        return getattr(local, "stream", Stream(DEVICES[here()], 0))

    @contextmanager
    def stream(one: Any) -> Iterator[None]:
        before, local.stream = current_stream(), one
        try:
            with current(one.device):
                yield
        finally:
            local.stream = before

    current_on = stream

    def synchronize(device: Any) -> None:
        if found.captures:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    class MemPool:
        def __init__(self) -> None:
            self.id = next(handles)
            found.known.add((here(), self.id))
            found.users[here(), self.id] += 1

    @contextmanager
    def use_mem_pool(pool: Any) -> Iterator[None]:
        device = here()
        found.begin(device, pool.id)
        try:
            yield
        finally:
            found.end(device, pool.id)
            found.release(device, pool.id)

    class Graph:
        device = 0

        def replay(self) -> None:
            pass

        def __del__(self) -> None:
            # As on ROCm, torch makes its device the current one, and waits for it.
            local.device = self.device
            try:
                synchronize(self.device)
            except RuntimeError as error:
                found.illegal.append(error)

    def empty_cache() -> None:
        found.returned += 1

    @contextmanager
    def graph(one: Any, handle: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
        handle, on = next(handles) if handle is None else handle, stream
        with current_on(on):
            found.begin_on_stream(on.device.index, handle)
            weakref.finalize(one, found.release, on.device.index, handle)
            found.captures.append(on)
            one.device = on.device.index
            try:
                yield
            finally:
                found.captures.remove(on)
            # Torch does not come here after an error.
            found.end(on.device.index, handle)

    def free_workspaces() -> None:
        found.freed += 1

    def memory_snapshot() -> list[dict[str, Any]]:
        # A tensor of the device "meta" has address 0. It lies in the outer pool.
        new: dict[str, Any] = {"device": 0, "address": 0, "total_size": 512, "allocated_size": 512}
        used = {**new, "address": 4096, "total_size": found.between + 512}
        ours = {**new, "address": 8192, "total_size": 60 << 30}
        other = {**used, "device": 1, "total_size": 60 << 30, "segment_pool_id": (0, 0)}
        used = {**used, "segment_pool_id": (0, 0)}
        outer = found.underway[0][1] if found.underway else (0, 0)
        known = [handle for _, handle in found.known]
        pools = [{**ours, "segment_pool_id": one} for one in [*known, *found.strange]]
        others = [other] if found.is_elsewhere else []
        return [*pools, *others, used, {**new, "segment_pool_id": outer}]

    for name, value in {
        "Stream": Stream,
        "MemPool": MemPool,
        "use_mem_pool": use_mem_pool,
        "CUDAGraph": Graph,
        "graph": graph,
        "device": current,
        "stream": stream,
        "current_stream": current_stream,
        "graph_pool_handle": lambda: next(handles),
        "synchronize": synchronize,
        "empty_cache": empty_cache,
        "memory_reserved": lambda device: found.reserved,
        "memory_allocated": lambda device: found.allocated,
        "memory_snapshot": memory_snapshot,
        "mem_get_info": lambda device: (found.free, 80 << 30),
        "current_device": here,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value, raising=False)
    for name, value in {
        "_cuda_beginAllocateCurrentStreamToPool": found.begin_on_stream,
        "_cuda_endAllocateToPool": found.end,
        "_cuda_releasePool": found.release,
        "_cuda_clearCublasWorkspaces": free_workspaces,
        "_CUDAGraph": Graph,
    }.items():
        monkeypatch.setattr(torch._C, name, value, raising=False)
    monkeypatch.setattr(capture, "_workspaces", {})
    monkeypatch.setattr(capture, "_can_free_workspaces", True)
    monkeypatch.setattr(capture, "_raw_stream", lambda index: current_stream().cuda_stream)
    # tests/graphs/test_graphs.py has replaced the class by its stand-in, in the same process.
    real = next(one for one in capture.CapturePool.__mro__ if one.__base__ is object)
    monkeypatch.setattr(capture, "CapturePool", real)
    return found


def in_threads(work: Callable[[], Any], count: int = THREADS) -> None:
    """Do it in threads that begin at the same time. Raises the first error of one."""
    failed: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run() -> None:
        try:
            barrier.wait()
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def captured(pool: Any, memory: GraphMemory) -> Any:
    try:
        return pool.capture(lambda leaves: leaves, list, memory)
    except CaptureBusy:
        return None


def test_threads_with_memory_of_their_own(allocator: Allocator) -> None:
    graphs: list[Any] = []

    def work() -> None:
        for _ in range(ROUNDS):
            pools = capture.CapturePools()
            pool = pools.of(DEVICES[0])
            for _ in range(2):
                assert pool.run_as_first_call(lambda: 1, pools.first_calls) == 1
            graphs.append(captured(pool, pools.memory))
            assert pool.run_beside_graphs(lambda: 1, pools.memory) == 1

    in_threads(work)
    assert (len(graphs), None in graphs) == (THREADS * ROUNDS, False)
    assert allocator.underway == []


def test_threads_that_share_memory(allocator: Allocator) -> None:
    def work() -> None:
        for number in range(ROUNDS):
            assert pool.run_as_first_call(lambda: 1, pools.first_calls) == 1
            if number == ROUNDS // 2:
                captured(pool, pools.memory)

    for _ in range(ROUNDS):
        pools = capture.CapturePools()
        pool = pools.of(DEVICES[0])
        in_threads(work)
    assert allocator.underway == []


def _other_capture() -> None:
    """A capture of another thread: it ends what others keep without a graph."""
    pools = capture.CapturePools()
    assert captured(pools.of(DEVICES[0]), pools.memory) is not None


@pytest.mark.parametrize("use", ["run_as_first_call", "run_beside_graphs", "capture"])
@pytest.mark.parametrize("ends", ["another capture", "later calls", "a refusal"])
def test_another_thread_ends_what_is_kept(allocator: Allocator, use: str, ends: str) -> None:
    pools = capture.CapturePools()
    pool, memory, first_calls = pools.of(DEVICES[0]), pools.memory, pools.first_calls
    pool.run_as_first_call(lambda: 1, first_calls)

    ended = []

    def end() -> None:
        ended.append(ends)
        if ends == "another capture":
            # Its begin, as there is one capture at a time.
            GraphMemory().begin_capture(DEVICES[0])
        for _ in range(20 if ends == "later calls" else 0):
            pool.run_as_first_call(lambda: 1, first_calls)
        if ends == "a refusal":
            first_calls.release_handles()

    allocator.meanwhile = end
    if use == "capture":
        assert captured(pool, memory) is not None
    else:
        its = first_calls if use == "run_as_first_call" else memory
        assert getattr(pool, use)(lambda: 1, its) == 1
    assert (ended, allocator.underway) == ([ends], [])


def test_what_is_kept_without_a_graph_is_given_back(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])
    # The other thread's capture finds the memory in use, so it is kept until the next one.
    allocator.meanwhile = _other_capture
    pool.run_as_first_call(lambda: 1, pools.first_calls)
    handle = pools.first_calls._handles[DEVICES[0]]
    assert allocator.users[DEVICES[0].index, handle] == 1
    _other_capture()
    assert allocator.users[DEVICES[0].index, handle] == 0


def test_memory_belongs_to_its_graphs(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])
    pool.run_as_first_call(lambda: 1, pools.first_calls)
    graph: Any = captured(pool, pools.memory)
    assert allocator.users[DEVICES[0].index, pools.first_calls._handles[DEVICES[0]]] == 0
    one = DEVICES[0].index, pools.memory._handles[DEVICES[0]]
    assert allocator.users[one] == 1
    del graph
    assert allocator.users[one] == 0


def test_a_device_that_is_not_current(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    for device in DEVICES[::-1]:
        for _ in range(3):
            assert pools.of(device).run_as_first_call(lambda: 1, pools.first_calls) == 1
        graph = captured(pools.of(device), pools.memory)
        assert graph is not None
        # Their workspaces stay in use for good, on their device.
        assert allocator.users[device.index, capture._workspaces[device].id] == 1


def test_a_call_whose_memory_is_refused_runs_all_the_same(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(startup, "fail", lambda kind, text: said.append(text))
    allocator.broken, calls = "no memory for you\nat some place", []
    pools = capture.CapturePools()
    pool, first_calls = pools.of(DEVICES[0]), pools.first_calls
    assert pool.run_as_first_call(lambda: calls.append(1), first_calls) is None
    assert calls == [1]
    assert said == ["a first call did not use memory of its own: no memory for you"]
    # What the program itself raises stays the program's.
    allocator.broken = ""

    def wrong() -> None:
        calls.append(2)
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        pool.run_as_first_call(wrong, first_calls)
    assert (calls, len(said), allocator.underway) == ([1, 2], 1, [])


def _sleep_until(over: list[bool]) -> None:
    while not over:
        time.sleep(0.001)


def _sleeping_in(module: str, name: str) -> Any:
    """That function, with other names."""
    code = _sleep_until.__code__.replace(co_name=name)
    return types.FunctionType(code, {"__name__": module, "time": time})


# As the program's thread waits for a backward: its ops run in threads without a frame.
_wait_for_backward = _sleeping_in("torch.autograd.graph", "_engine_run_backward")
_THREADS: dict[str, Callable[[list[bool]], Any]] = {
    "a thread that works": _sleep_until,
    "a thread of Inductor": _sleeping_in("torch._inductor.compile_worker.timer", "check"),
    "a thread in a backward": _wait_for_backward,
    "the thread whose backward this is": _wait_for_backward,
}


@contextmanager
def _others(kind: str, allocator: Allocator) -> Iterator[None]:
    """What may use workspaces, or may not."""

    class Unhashable(torch.cuda.CUDAGraph):
        def __eq__(self, other: object) -> bool:
            return self is other

    graphs: dict[str, Any] = {"a graph": torch.cuda.CUDAGraph, "a graph without hash": Unhashable}
    graph, ended = graphs.get(kind, object)(), threading.Event()
    over: list[bool] = []
    allocator.strange += [(8, 1)] if kind == "memory of a graph" else []
    allocator.is_elsewhere = kind == "another device"
    if kind in _THREADS:
        thread = threading.Thread(target=_THREADS[kind], args=(over,))
    elif kind == "a thread in C":
        # As one that calls an op itself: there is no frame but that of threading.
        thread = threading.Thread(target=time.sleep, args=(0.5,))
    else:
        thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        over.append(True)
        thread.join()
        del graph


@pytest.mark.parametrize(
    ("others", "frees"),
    [
        ("a thread that waits", True),
        ("the thread whose backward this is", True),
        ("a thread of Inductor", True),
        ("a thread in a backward", False),
        ("a thread that works", False),
        ("a thread in C", False),
        ("a graph", False),
        ("a graph without hash", False),
        ("memory of a graph", False),
        ("frozen objects", False),
        ("another device", False),
    ],
)
def test_workspaces_of_two_threads(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch, others: str, frees: bool
) -> None:
    """They get the same memory, unless others may use what torch would free."""
    # Those that run the tests do not count.
    frames = sys._current_frames
    runners = {*frames()} - {threading.get_ident()}
    monkeypatch.setattr(
        sys,
        "_current_frames",
        lambda: {one: frame for one, frame in frames().items() if one not in runners},
    )
    task = 0 if others == "the thread whose backward this is" else -1
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: task)
    # Python's own at its start, and what a program has that has imported torch.
    frozen = 150_000 if others == "frozen objects" else 375
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen)
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])
    graphs = [captured(pool, pools.memory)]
    with _others(others, allocator):
        graphs.append(captured(pool, pools.memory))
        assert allocator.freed == 0
        in_threads(lambda: graphs.append(captured(pool, pools.memory)), 1)
        assert allocator.freed == int(frees)
        graphs.append(captured(pool, pools.memory))
        assert allocator.freed == 2 * int(frees)
    assert allocator.underway == []


def test_streams_that_read_results_where_they_are(allocator: Allocator) -> None:
    pool = capture.CapturePools().of(DEVICES[0])
    one, other = torch.cuda.Stream(DEVICES[0]), torch.cuda.Stream(DEVICES[0])
    with torch.cuda.stream(one):
        pool.wait_for_previous_replay()
        # The first capture of such a graph says so.
        pool.lends = True
        allocator.launch()
    with torch.cuda.stream(other):
        pool.wait_for_previous_replay()
    with torch.cuda.stream(one):
        # It still reads a result of its replay, and drops it.
        read = allocator.launch()
    with torch.cuda.stream(other):
        pool.wait_for_previous_replay()
    assert allocator.is_after(other, read)


def test_streams_that_read_results_of_first_calls(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])
    one, other = torch.cuda.Stream(DEVICES[0]), torch.cuda.Stream(DEVICES[0])
    with torch.cuda.stream(one):
        pool.run_as_first_call(lambda: allocator.launch(), pools.first_calls)
        read = allocator.launch()
    after: list[bool] = []
    with torch.cuda.stream(other):
        # What it has dropped is free there.
        pool.run_as_first_call(
            lambda: after.append(allocator.is_after(pool.stream, read)), pools.first_calls
        )
    with torch.cuda.stream(one):
        read = allocator.launch()
    with torch.cuda.stream(other):
        assert captured(pool, pools.memory) is not None
        pool.wait_for_previous_replay()
        after.append(allocator.is_after(other, read))
    with torch.cuda.stream(one):
        late = allocator.launch()
    with torch.cuda.stream(other):
        pool.wait_for_previous_replay()
    assert after == [True, True]
    # From then on, results are copies: there is nothing to wait for.
    assert not allocator.is_after(other, late)


def test_two_pools_with_one_stream(allocator: Allocator) -> None:
    many = [capture.CapturePools() for _ in range(33)]
    pools = [one.of(DEVICES[0]) for one in many]
    one, other = pools[0], pools[32]
    assert one.stream == other.stream
    seen: list[Any] = []

    def meanwhile() -> None:
        # This must not be recorded.
        first_calls = many[32].first_calls
        other.run_as_first_call(lambda: seen.append(torch.cuda.current_stream()), first_calls)
        seen.append(captured(other, many[32].memory))

    def function(leaves: list[Any]) -> None:
        in_threads(meanwhile, 1)

    one.capture(function, list, many[0].memory)
    assert len(seen) == 2
    assert (seen[0] == one.stream, seen[1]) == (False, None)
    assert captured(other, many[32].memory) is not None


def test_the_order_of_locks(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    with lock_order.watch(monkeypatch) as noted:
        pools, others = capture.CapturePools(), capture.CapturePools()

        def work(its: capture.CapturePools) -> None:
            pool = its.of(DEVICES[0])
            pool.run_as_first_call(lambda: None, its.first_calls)
            with its.lock:
                captured(pool, its.memory)
                with pool.idle():
                    its.memory.sweep()

        def work_in_both() -> None:
            for its in (pools, others):
                work(its)

        in_threads(work_in_both, 2)
    assert ("CapturePools.lock", "capture._one") in noted.pairs
    assert lock_order.against_the_order(noted) == []


def test_the_allocator_after_a_broken_capture(allocator: Allocator) -> None:
    """It believed that the capture goes on, and would give nothing back."""
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])

    def function(leaves: list[Any]) -> None:
        raise ValueError("the program's own")

    with pytest.raises(ValueError, match="own"):
        pool.capture(function, list, pools.memory)
    assert allocator.underway == []
    assert captured(pool, pools.memory) is not None


def test_the_last_reference_to_a_graph(allocator: Allocator) -> None:
    pools, others = capture.CapturePools(), capture.CapturePools()
    one, other = pools.of(DEVICES[0]), others.of(DEVICES[1])
    held = [other.capture(lambda leaves: leaves, list, others.memory)[0]]
    graphs = others.memory._graphs[DEVICES[1]]

    def function(leaves: list[Any]) -> None:
        # To destroy it now, in this thread or another, would break the capture.
        in_threads(held.clear, 1)
        assert len(graphs) == 1

    one.capture(function, list, pools.memory)
    assert len(graphs) == 0
    assert allocator.illegal == []


def test_a_destroyed_graph_of_another_device(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    replay, _ = pools.of(DEVICES[1]).capture(lambda leaves: leaves, list, pools.memory)
    assert torch.cuda.current_device() == 0
    del replay
    assert len(pools.memory._graphs[DEVICES[1]]) == 0
    assert torch.cuda.current_device() == 0


def test_first_calls_find_what_nothing_uses(allocator: Allocator) -> None:
    """In the memory of graphs, torch does not give it back when there is no more: it raises."""
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])
    allocator.reserved, allocator.allocated = 20 << 30, 1 << 30
    assert pool.run_as_first_call(lambda: allocator.returned, pools.first_calls) == 1
    # Little of it is kept: other calls of the program need it soon.
    allocator.reserved = allocator.allocated + (1 << 20)
    assert pool.run_as_first_call(lambda: allocator.returned, pools.first_calls) == 1


def test_each_layer_has_first_calls(allocator: Allocator) -> None:
    """Many layers share the memory. One that is called too often has no more of it until a capture.

    A graph overwrites what was free at its capture, so what they give must not lie in its memory.
    """
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])

    def is_there(layer: int) -> bool:
        def stream() -> int:
            return int(torch.cuda.current_stream().cuda_stream)

        return pool.run_as_first_call(stream, pools.first_calls, layer) == pool.stream.cuda_stream

    for _ in range(4):
        assert all(is_there(layer) for layer in range(32))
    handles = pools.first_calls._handles
    before = DEVICES[0].index, handles[DEVICES[0]]
    assert [is_there(0) for _ in range(9)] == [True] * 8 + [False]
    # What is left there is given back.
    assert allocator.users[before] == 0
    assert is_there(1)
    before = DEVICES[0].index, handles[DEVICES[0]]
    assert not is_there(0)
    assert allocator.users[before] == 0
    assert is_there(1)
    before = DEVICES[0].index, handles[DEVICES[0]]
    graph = captured(pool, pools.memory)
    assert graph is not None
    assert allocator.users[before] == 0
    assert is_there(0)
    assert handles[DEVICES[0]] not in (before[1], pools.memory._handles[DEVICES[0]])


def test_first_calls_end_where_each_has_other_weights(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])

    def stream() -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    found = [pool.run_as_first_call(stream, pools.first_calls, number) for number in range(600)]
    assert 100 < found.count(pool.stream.cuda_stream) < 600
    assert found[-1] == 0


def test_first_calls_where_torch_can_give_little_back(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies between values of the program is there for a plain call alone."""
    pools = capture.CapturePools()
    pool = pools.of(DEVICES[0])
    allocator.reserved, allocator.allocated = 70 << 30, 1 << 30

    def stream() -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    allocator.between, allocator.free = 2 << 30, 40 << 30
    assert pool.run_as_first_call(stream, pools.first_calls) == pool.stream.cuda_stream
    allocator.free = 10 << 30
    assert pool.run_as_first_call(stream, pools.first_calls) == 0

    def other_allocator() -> None:
        raise RuntimeError("cudaMallocAsync does not yet support snapshot")

    monkeypatch.setattr(torch.cuda, "memory_snapshot", other_allocator)
    assert pool.run_as_first_call(stream, pools.first_calls) == pool.stream.cuda_stream


def test_a_capture_takes_one_piece(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that lie side by side find room in it, unless the device has none."""
    taken: list[tuple[int, Any, bool]] = []

    def take(size: int, device: Any) -> None:
        taken.append((size, device, bool(allocator.captures)))
        if size > 40 << 30:
            raise RuntimeError("it is forbidden")

    monkeypatch.setattr(torch, "UntypedStorage", take)
    settings = {"max_split_size": -1}
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"allocator_settings": settings})
    pools = capture.CapturePools()
    pool, memory = pools.of(DEVICES[0]), pools.memory

    def capture_with(size: int) -> list[tuple[int, Any, bool]]:
        taken.clear()
        pool.capture(lambda leaves: leaves, list, memory, size)
        return [*taken]

    allocator.free = 50 << 30
    assert capture_with(0) == []
    assert capture_with(2 << 30) == [(2 << 30, DEVICES[0], True)]
    assert capture_with(45 << 30) == [(45 << 30, DEVICES[0], True)]
    assert capture_with(60 << 30) == []
    # The allocator gives nothing of a larger block to a value.
    settings["max_split_size"] = 1 << 30
    assert capture_with(2 << 30) == []
    assert len(capture_with(1 << 29)) == 1
    # It would be rounded up.
    assert capture_with((1 << 30) - 512) == []
    settings.clear()
    assert capture_with(2 << 30) == []


def test_a_user_that_calls_too_often_meanwhile(allocator: Allocator) -> None:
    """The memory is in use then, and given back at a later call."""
    pools = capture.CapturePools()
    pool, first_calls = pools.of(DEVICES[0]), pools.first_calls

    def often() -> None:
        for _ in range(20):
            pool.run_as_first_call(lambda: None, first_calls, "often")

    pool.run_as_first_call(often, first_calls, "other")
    one = DEVICES[0].index, first_calls._handles[DEVICES[0]]
    assert allocator.users[one] == 1
    pool.run_as_first_call(lambda: None, first_calls, "often")
    assert allocator.users[one] == 0


def test_what_ends_first_calls_while_they_end(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    for device in DEVICES[:2]:
        pools.of(device).run_as_first_call(lambda: None, pools.first_calls)
    held, ends = pools.first_calls._held, [*pools.first_calls._held.values()]

    def end_again() -> None:
        # A destructor of the program may call what is compiled.
        ends.pop()()
        pools.first_calls.release_handles()

    held.update(dict.fromkeys(held, end_again))  # type: ignore[arg-type]
    pools.first_calls.release_handles()
    assert (ends, held) == ([], {})


def test_first_calls_count_anew_after_a_capture(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    pool, first_calls = pools.of(DEVICES[0]), pools.first_calls
    allocator.reserved, allocator.between = 70 << 30, 60 << 30
    for _ in range(20):
        assert pool.run_as_first_call(lambda: 1, first_calls) == 1
    assert not first_calls._held
    assert captured(pool, pools.memory) is not None
    assert not first_calls._calls


@pytest.mark.parametrize("wins", [True, False])
def test_a_pool_of_the_program(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch, wins: bool
) -> None:
    monkeypatch.setattr(capture, "_outer_pool_wins", wins)
    pool = capture.CapturePools().of(DEVICES[0])
    assert pool.has_own_memory()
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        assert pool.has_own_memory() is not wins
    assert pool.has_own_memory()


def test_an_exception_in_a_first_call(allocator: Allocator) -> None:
    pools = capture.CapturePools()
    pool, work = pools.of(DEVICES[0]), []

    def function() -> None:
        work.append(allocator.launch())
        raise ValueError("the program's own")

    with pytest.raises(ValueError, match="own"):
        pool.run_as_first_call(function, pools.first_calls)
    assert work[0][0] == pool.stream.cuda_stream
    assert allocator.is_after(torch.cuda.current_stream(), work[0])


def test_a_graph_is_destroyed_between_captures(allocator: Allocator) -> None:
    pools, others = capture.CapturePools(), capture.CapturePools()
    one, other = pools.of(DEVICES[0]), others.of(DEVICES[0])
    began, events = threading.Event(), list[str]()

    def function(leaves: list[Any]) -> None:
        began.set()
        time.sleep(0.1)
        events.append("captured")

    def destroy() -> None:
        began.wait()
        # It waits for the device, which would break the capture, and raise here.
        with other.idle():
            events.append("destroyed")

    thread = threading.Thread(target=destroy)
    thread.start()
    one.capture(function, list, pools.memory)
    thread.join()
    assert events == ["captured", "destroyed"]
