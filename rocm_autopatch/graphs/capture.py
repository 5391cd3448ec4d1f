"""The device: the stream, the memory and the order of graphs, and the capture itself.

The other files use a GPU only through this one, so tests can replace it by a stand-in.
"""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from rocm_autopatch import startup
from rocm_autopatch.graphs.layout import place_of, view_at
from rocm_autopatch.graphs.memory import KNOWN_HANDLES, FirstCallMemory, GraphMemory, Handle
from rocm_autopatch.graphs.refusal import CaptureBusy

if TYPE_CHECKING:
    from rocm_autopatch.graphs.borrowed_outputs import BorrowedOutputs

# Other threads can allocate and compile during a capture. If they wait for the device, they break
# it nevertheless (ROCm/rocm-systems#4508, #11698).
CAPTURE_ERROR_MODE = "thread_local"

Result = TypeVar("Result")


# There is one capture at a time: to begin one, torch waits for the device, which is illegal during
# another. What is captured takes none of our locks, so this lock can't cause a deadlock.
_one = threading.RLock()
# By device and stream: torch has 32 streams for each device, and deals them out in turn.
_users: dict[tuple[int, int], threading.Lock] = {}
# By device: the memory that workspaces of streams of ours lie in. One thread at a time may tell the
# allocator that it uses this memory.
_workspaces: dict[torch.device, torch.cuda.MemPool] = {}
_working = threading.RLock()
# Python 3.12 itself freezes hundreds of objects at its start, and a program that has imported torch
# a hundred thousand and more.
_FROZEN_BY_PYTHON = 10_000
_own_graphs: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
_started = torch.cuda.is_initialized
_is_capturing = torch._C._cuda_isCurrentStreamCapturing
# Graphs that nobody uses any more, and that are destroyed when no graph is captured.
_gone: list[tuple[torch.cuda.CUDAGraph, torch.device]] = []
# If torch's allocator has more that nothing uses, all of it is given back before a call in other
# memory. A benchmark of Inductor leaves 60 MiB.
_IDLE = 16 << 20
# What the allocator's list of memory calls what is in no pool.
_COMMON = (0, 0)
# The innermost frames of threads that run no op: module and function. The ops of a backward run in
# threads without a frame.
_OF_BACKWARD = "torch.autograd.graph._engine_run_backward"
_WAITING = (
    _OF_BACKWARD,
    "concurrent.futures.thread._worker",
    "selectors.select",
    "threading._wait_for_tstate_lock",
    "threading.join",
    "threading.wait",
    "torch._inductor.compile_worker.",
)
_outer_pool_wins = startup.release(torch.__version__) < (2, 11)
# Before, torch frees workspaces without a lock.
_can_free_workspaces = not _outer_pool_wins
# Builds of torch without a GPU don't have it.
_raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def is_capturing() -> bool:
    """Whether this thread's stream is being captured. Never initializes the device."""
    return _started() and _is_capturing()


def give_back() -> None:
    """Give the device back what torch's allocator has, and nothing uses."""
    # Before torch 2.8 it raises as long as another thread puts values into the memory of graphs.
    with suppress(RuntimeError):
        torch.cuda.empty_cache()


def _segments() -> list[dict[str, Any]]:
    """The memory that torch's allocator has. Other allocators than its own have no such list."""
    try:
        return torch.cuda.memory_snapshot()
    except RuntimeError:
        return []


def _may_have_graphs_of_others(device: int) -> bool:
    """Whether this process may have graphs that we have not captured, or uses another device.

    What has been captured in C++ shows by its memory only. What is frozen, nothing lists.
    """
    segments = _segments()
    pools = {tuple(one["segment_pool_id"]) for one in segments}
    known = {_COMMON, *KNOWN_HANDLES, *(tuple(one.id) for one in [*_workspaces.values()])}
    kinds: list[type] = [torch._C._CUDAGraph]
    for kind in kinds:
        kinds += type.__subclasses__(kind)
    # An object refers to its class. A list of all objects would hold tensors of other threads.
    found = [one for one in gc.get_referrers(*kinds) if issubclass(type(one), kinds[0])]
    return (
        not pools <= known
        # Where there is no list of segments, nothing is known.
        or {one["device"] for one in segments} != {device}
        or gc.get_freeze_count() > _FROZEN_BY_PYTHON
        or any(one not in _own_graphs for one in found)
    )


def _may_others_work() -> bool:
    """Whether another thread may be in the middle of an op.

    Its innermost frame is not one that waits. One may wait for this thread's backward.
    """
    mine = threading.get_ident()
    frames = [frame for thread, frame in sys._current_frames().items() if thread != mine]
    found = [f"{one.f_globals['__name__']}.{one.f_code.co_name}" for one in frames]
    in_backward = torch._C._current_graph_task_id() >= 0
    return found.count(_OF_BACKWARD) > in_backward or not all(
        one.startswith(_WAITING) for one in found
    )


@contextmanager
def no_other() -> Iterator[None]:
    """A context in which no other thread captures.

    What waits for the device is illegal in a capture, on ROCm also if another thread does it
    (ROCm/rocm-systems#4508, #11698).
    """
    with _one:
        yield


class _CarefulGraph:
    """A graph that is destroyed while no thread captures, whoever lets go of it last, and where.

    On ROCm, its destructor makes its device the current one and waits for it (torch
    aten/src/ATen/cuda/CUDAGraph.cpp), which is illegal in a capture.
    """

    def __init__(self, graph: torch.cuda.CUDAGraph, device: torch.device) -> None:
        self._graph, self._device = graph, device

    def replay(self) -> None:
        self._graph.replay()

    def __del__(self) -> None:
        if sys.is_finalizing():
            return
        _gone.append((self._graph, self._device))
        del self._graph
        _destroy_gone()


def _destroy_gone() -> None:
    """Destroy the graphs that nobody uses, if no graph is captured now. Else a later call does."""
    # This thread may have the lock, in its own capture.
    if not _gone or is_capturing() or not _one.acquire(blocking=False):
        return
    try:
        while _gone:
            graph, device = _gone.pop()
            with torch.cuda.device(device):
                torch.cuda.synchronize(device)
                del graph
    finally:
        _one.release()


def count_compiles() -> int:
    """How many graphs Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils.counters["stats"]["unique_graphs"] if utils else 0


class CapturePool:
    """The stream on which graphs of a device are captured, and the order of their replays.

    Graphs of one pool share memory for values between arguments and results. So two of them must
    never run at the same time: :meth:`wait_for_previous_replay` prevents it.
    """

    kind = "cuda"  # torch's name for HIP devices, too
    # Whether there was a capture since memory was last given back between steps.
    _leaves_pieces = False

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index = device.index
        self.stream = torch.cuda.Stream(device)
        self._last: tuple[int, Any] = (-1, None)
        # The thread that has used the stream last. Its workspaces belong to it.
        self._worker = 0
        # A capture records what any thread does on the stream, and executes none of it.
        self._using = _users.setdefault((self.index, self.stream.cuda_stream), threading.Lock())
        #: Whether results of graphs are read where they are.
        self.lends = False
        # The streams that may read what lies in the memory of graphs, and whether the next replay
        # has to wait for all of them.
        self._readers: dict[int, torch.cuda.Stream] = {}
        self._wait_for_all = False

    def wait_for_previous_replay(self) -> None:
        """Make the current stream wait for whatever a replay on it would overwrite.

        That is the last replay, whatever stream it was on. Copies of its results are made there, as
        well. Where results are not copied, it is each stream that has got some.
        """
        raw = _raw_stream(self.index)
        if raw != self._last[0]:
            current = torch.cuda.current_stream(self.device)
            if self._last[1] is not None:
                current.wait_stream(self._last[1])
            self._last = (raw, current)
            self._readers[raw] = current
        if self._wait_for_all or (self.lends and len(self._readers) > 1):
            self._wait_for_all = False
            self._wait_for_readers(self._last[1])

    def add_reader(self, stream: torch.Stream) -> None:
        """Have each replay wait for what the stream does at that time."""
        if not isinstance(stream, torch.cuda.Stream):
            made: Any = torch.cuda.Stream
            stream = made(
                stream_id=stream.stream_id,
                device_index=stream.device_index,
                device_type=stream.device_type,
            )
        self._readers[stream.cuda_stream] = stream
        self.lends = True

    def _wait_for_readers(self, stream: torch.cuda.Stream) -> None:
        for reader in [*self._readers.values()]:
            if reader != stream:
                stream.wait_stream(reader)

    def unowned(self, tensor: torch.Tensor) -> Callable[[object], torch.Tensor]:
        """What makes a tensor at the same place, which does not own the memory.

        It is called with what has to live as long as that tensor: a graph, whose memory torch then
        does not return to the device.
        """
        memory, dtype, where = tensor.untyped_storage(), tensor.dtype, place_of(tensor)
        address, size = memory.data_ptr(), memory.nbytes()

        def make(keeper: object) -> torch.Tensor:
            with torch.inference_mode(False):
                whole = torch.as_tensor(_DeviceBytes(address, size, keeper), device=self.device)
                return view_at(whole, dtype, where)

        return make

    def run_as_first_call(
        self, function: Callable[[], Result], memory: FirstCallMemory, user: Hashable = None
    ) -> Result:
        """Call a function whose values lie in *memory*, if *user* has not called too often.

        Libraries use the workspaces of the stream of captures then, and need no second ones.
        """
        started = False

        def run() -> Result:
            nonlocal started
            started = True
            return function()

        if memory.count_call(user) and self._using.acquire(blocking=False):
            try:
                with memory.handle_in_use(self.device) as handle:
                    if self._can_give_back_idle():
                        return self._in(handle, run, memory)
            except RuntimeError as error:
                if started:
                    raise
                why = str(error).partition("\n")[0]
                startup.fail("graphs", f"a first call did not use memory of its own: {why}")
            finally:
                self._using.release()
        return function()

    def _can_give_back_idle(self) -> bool:
        """Give back what torch's allocator has and nothing uses, before a call in other memory.

        During that call the allocator gives nothing back, and raises OutOfMemoryError instead.
        Returns False if much of it lies between values of the program, and is there for a plain
        call only.
        """
        reserved = torch.cuda.memory_reserved(self.device)
        if reserved - torch.cuda.memory_allocated(self.device) <= _IDLE:
            return True
        with no_other():
            give_back()
            free, _ = torch.cuda.mem_get_info(self.device)
        between = sum(
            one["total_size"] - one["allocated_size"]
            for one in _segments()
            if one["device"] == self.index and tuple(one["segment_pool_id"]) == _COMMON
        )
        return bool(between <= max(_IDLE, free // 8))

    def run_beside_graphs(self, function: Callable[[], Result], memory: GraphMemory) -> Result:
        """Call a function whose values lie in *memory* among those of its graphs.

        It may overwrite all that a graph captured now might. Its result is no longer there after
        the next replay. Raises Busy if another thread uses the stream.
        """
        if not self._using.acquire(blocking=False):
            raise CaptureBusy("another thread uses the stream of captures")
        try:
            handle, alive = memory.begin_capture(self.device)
            result = self._in(handle, function)
            del alive
            return result
        finally:
            self._using.release()

    def _in(
        self, handle: Handle, function: Callable[[], Result], holder: FirstCallMemory | None = None
    ) -> Result:
        """Call a function whose values lie in this memory, which *holder* then keeps."""
        self._own_workspaces()
        current = torch.cuda.current_stream(self.device)
        # Each use of the stream waits first for the current one, and for others that have used it.
        # So what the program frees there can be used at once.
        self._readers[current.cuda_stream] = current
        self._wait_for_readers(self.stream)
        with torch.cuda.stream(self.stream):
            torch._C._cuda_beginAllocateCurrentStreamToPool(self.index, handle)
            try:
                return function()
            finally:
                self._end(handle)
                release = torch._C._cuda_releasePool
                if holder is None or not holder.keep_handle(self.device, release):
                    release(self.index, handle)
                # The program may go on after an exception.
                current.wait_stream(self.stream)

    def _end(self, handle: Handle) -> None:
        """Tell the allocator that values on the stream do not lie in this memory from now on."""
        name = "_cuda_endAllocateToPool"  # Until torch 2.8 it was called otherwise.
        end = getattr(torch._C, name, None) or torch._C._cuda_endAllocateCurrentStreamToPool
        end(self.index, handle)

    def capture(
        self,
        function: Callable[[list[object]], Result],
        enter: Callable[[], list[object]],
        memory: GraphMemory,
        size: int = 0,
    ) -> tuple[Callable[[], None], Result]:
        """Capture the kernels of a function without executing them.

        Its argument is what *enter* returns, which is called in the capture. What it allocates lies
        in *memory*, as all that the kernels write, with *size* bytes in one piece if that is there.

        Returns what replays them, and the result that a replay fills. Raises what the function or
        the runtime raises, and Busy if another thread uses the stream. The stream is then as it was
        before.
        """
        if not self._using.acquire(blocking=False):
            raise CaptureBusy("another thread uses the stream of captures")
        try:
            return self._record(function, enter, memory, size)
        finally:
            self._using.release()

    def _record(
        self,
        function: Callable[[list[object]], Result],
        enter: Callable[[], list[object]],
        memory: GraphMemory,
        size: int,
    ) -> tuple[Callable[[], None], Result]:
        graph = torch.cuda.CUDAGraph()
        _own_graphs.add(graph)
        handle, alive = memory.begin_capture(self.device)
        with _one:
            try:
                with torch.cuda.device(self.device), _no_collection():
                    self._own_workspaces()
                    free, _ = torch.cuda.mem_get_info(self.device)
                    # A segment is rounded up.
                    fits = size and size + (2 << 20) < min(free, _largest_divided())
                    with torch.cuda.graph(
                        graph, handle, self.stream, capture_error_mode=CAPTURE_ERROR_MODE
                    ):
                        if fits:
                            self._take_piece(size)
                        result = function(enter())
                    del alive
                    # At its begin, torch has set the offset of random numbers to 0 on this stream
                    # (2.11 does, 2.13 no longer). A replay sets it on the current stream, which
                    # must not be earlier.
                    torch.cuda.current_stream(self.device).wait_stream(self.stream)
            except BaseException:
                self._repair_broken_capture(handle)
                raise
        memory.add(self.device, graph)
        _destroy_gone()
        # It overwrites what was free now, and what some streams may still read.
        self._wait_for_all = bool(self._readers)
        self._leaves_pieces = True
        return _CarefulGraph(graph, self.device).replay, result

    def _take_piece(self, size: int) -> None:
        """Let the allocator have so many bytes in one piece, if the process may take them."""
        with suppress(RuntimeError):
            torch.UntypedStorage(size, device=self.device)  # type: ignore[call-arg]

    def _own_workspaces(self) -> None:
        """Have what cuBLAS works in, in this thread and on the stream, in memory that stays ours.

        It belongs to the stream, and graphs use it where it is. Inductor's own graphs free it for
        all streams, and from torch 2.12 on the end of any graph that was captured on the stream
        does (pytorch#193402). A replay would then write to memory of others. Of what is freed here,
        nothing but the next workspace of a stream of ours is made.
        """
        if not hasattr(torch.cuda, "use_mem_pool"):  # It came with torch 2.6.
            return
        self._free_workspaces_of_others()
        # Matrices with a bias are multiplied by cuBLASLt, which has a workspace of its own. A
        # program can forbid both.
        with self._workspace_memory(), torch.inference_mode(), suppress(RuntimeError):
            for dtype in (torch.float32, torch.float16):
                one = torch.zeros(16, 16, dtype=dtype, device=self.device)
                torch.addmm(one[0], one, one)
                torch.mm(one, one)

    def _free_workspaces_of_others(self) -> None:
        """Free those of another thread, so that this one gets their memory.

        Each thread has its own for each stream, of 32 MiB on an H200, but no two calls or replays
        of one stream of ours run at the same time. torch can free those of all streams only: graphs
        of others may use theirs, and so may an op that is about to be launched.
        """
        before, worker = self._worker, threading.get_ident()
        if worker == before or not _can_free_workspaces or not _one.acquire(blocking=False):
            return
        try:
            # Graphs that are gone may still run. Objects of the program are asked: they may raise.
            with suppress(Exception):
                if before and not _may_have_graphs_of_others(self.index):
                    torch.cuda.synchronize(self.device)
                    if not _may_others_work():
                        torch._C._cuda_clearCublasWorkspaces()
            self._worker = worker
        finally:
            _one.release()

    @contextmanager
    def _workspace_memory(self) -> Iterator[torch.cuda.MemPool]:
        """A context in which what is allocated is that of workspaces, on the stream of captures."""
        # Such memory belongs to the device that is current when it is made.
        with _working, torch.cuda.device(self.device):
            if self.device not in _workspaces:
                _workspaces[self.device] = torch.cuda.MemPool()
            own = _workspaces[self.device]
            with torch.cuda.stream(self.stream), torch.cuda.use_mem_pool(own):
                yield own

    def _repair_broken_capture(self, handle: Handle) -> None:
        """Do what torch leaves out when a capture breaks.

        torch 2.11 raises before it tells the allocator and the generator that the capture is over.
        Then the allocator does not free memory that other streams have used, and the generator
        draws no number.
        """
        with suppress(RuntimeError):
            torch.cuda.synchronize(self.device)
        with suppress(RuntimeError):  # The allocator was told before.
            self._end(handle)
        # A capture that ends normally also resets the generator.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=CAPTURE_ERROR_MODE):
            torch.zeros(1, device=self.device)

    def has_own_memory(self) -> bool:
        """Whether what a graph allocates lies where it should, and in no pool of the program.

        Before torch 2.11, which was tried, the outer one of two ``torch.cuda.use_mem_pool`` gets
        all (pytorch#161193). Only the allocator's list of its memory shows where a tensor lies.
        """
        if not _outer_pool_wins or not hasattr(torch.cuda, "use_mem_pool"):
            return True
        with self._workspace_memory() as own:
            probe = torch.empty(1, device=self.device).data_ptr()
            for one in _segments():
                if 0 <= probe - one["address"] < one["total_size"]:
                    return tuple(one["segment_pool_id"]) == tuple(own.id)
        return True

    @contextmanager
    def idle(self) -> Iterator[None]:
        """A context in which a graph may be destroyed: none runs, and none is captured.

        To wait for the device is illegal while it is captured, also by another thread.
        """
        with _one, self.current():
            self.wait()
            yield
            _destroy_gone()

    def current(self) -> AbstractContextManager[None]:
        """A context with the device as the current one. A graph's destructor changes it."""
        return torch.cuda.device(self.device)

    def wait(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self.device)

    def memory(self) -> int:
        """The bytes that torch has reserved on the device, without unused ones."""
        with no_other():
            give_back()
        reserved: int = torch.cuda.memory_reserved(self.device)
        return reserved

    def has_room(self, size: int) -> bool:
        """Whether the device has so many bytes for a plain call beside what is there."""
        free, _ = torch.cuda.mem_get_info(self.device)
        idle = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return bool(size <= free + max(0, idle))

    def give_back_once(self) -> None:
        """Give back what captures have left in pieces between values of their step.

        Another thread's capture keeps it for later.
        """
        if self._leaves_pieces and _one.acquire(blocking=False):
            try:
                self._leaves_pieces = False
                give_back()
            finally:
                _one.release()

    def random(self) -> torch.Tensor:
        """The state of the device's generator, a tensor, which changes when it draws numbers.

        Torch registers this generator with each graph, so each replay draws anew.
        """
        return torch.cuda.get_rng_state(self.device)

    def draw_from(self, state: torch.Tensor) -> None:
        """Let the device's generator draw from a state that :meth:`random` has returned."""
        torch.cuda.set_rng_state(state, self.device)

    def elsewhere(self) -> tuple[object, ...]:
        """The states of generators whose numbers a replay would not draw anew."""
        # To read its bytes at once takes numpy, which torch does not require.
        return tuple(torch.get_rng_state().tolist()), *host_generators()


def host_generators() -> tuple[object, ...]:
    """The states of Python's own generator of random numbers and of numpy's, if it is there."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return (random.getstate(),)
    name, keys, *more = numpy.get_state()
    return random.getstate(), (name, keys.tobytes(), *more)


@contextmanager
def own_casts() -> Iterator[None]:
    """Have a capture cast the weights that autocast casts, in its own memory, and each replay anew.

    Autocast keeps a cast of each weight that needs a gradient until its outermost block ends. A
    graph must not read one of before, and nobody may read one that the capture has not executed.
    Other threads use the same casts, so none is kept meanwhile. Dynamo would compile anew for that.
    """
    torch.clear_autocast_cache()
    was = torch.is_autocast_cache_enabled()
    if not count_compiles():
        torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was)
        torch.clear_autocast_cache()


def _largest_divided() -> int:
    """Blocks of so many bytes or more are never divided; 0 if the allocator is not torch's own."""
    try:
        most = int(torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"])
    except (RuntimeError, LookupError):
        return 0
    # Without a limit it is -1.
    return most if most > 0 else sys.maxsize


class _DeviceBytes:
    """Memory of the device, in the form that torch takes over without a copy. It keeps *keeper*."""

    def __init__(self, address: int, size: int, keeper: object) -> None:
        self.keeper = keeper
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turn garbage collection off: it may free another graph, which is illegal in a capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class CapturePools:
    """One pool for each device, and the lock and the memory that all graphs in them share."""

    _local = threading.local()

    @classmethod
    def of_this_thread(cls) -> CapturePools:
        """The pools of what this thread compiles in the mode.

        Its results are copied at once, so memory between arguments and results, and what libraries
        work in (some 34 MiB for each stream of cuBLAS), is needed once for all of it. Functions of
        other threads may run at the same time, so they need their own.
        """
        found: CapturePools | None = getattr(cls._local, "pools", None)
        if found is None:
            found = cls._local.pools = cls()
        return found

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._pools: dict[torch.device, CapturePool] = {}
        self.first_calls, self.memory = FirstCallMemory(), GraphMemory()
        #: What backward graphs write to that overwrite nothing a forward has saved.
        self.gradients = GraphMemory()
        # What the forwards of a step save in, and those that were captured in the present one.
        self._step: tuple[GraphMemory, tuple[weakref.ref[object], ...]] = (GraphMemory(), ())
        #: By memory, the results of a graph that others may read where they are.
        self.owners: weakref.WeakValueDictionary[int, BorrowedOutputs] = (
            weakref.WeakValueDictionary()
        )

    def training_memory(self) -> GraphMemory:
        """What forwards write to that are captured in the present step.

        What each of them saves is in use until its backward, so it lies side by side. What one
        backward has read serves the others.
        """
        if any(one() is None for one in self._step[1]):
            self.end_step()
        return self._step[0]

    def add_forward(self, memory: GraphMemory, forward: object) -> bool:
        """A forward was captured. Returns whether its memory is that of the present step."""
        step, forwards = self._step
        if memory is step:
            self._step = step, (*forwards, weakref.ref(forward))
        return memory is step

    def end_step(self, memory: GraphMemory | None = None) -> None:
        """No later forward is captured in the memory of the present step, if that is *memory*.

        A backward was captured, or one of the forwards is called again. What is captured later may
        belong anywhere else in a step.
        """
        step, forwards = self._step
        if forwards and memory in (None, step):
            self._step = GraphMemory(), ()

    def of(self, device: torch.device) -> CapturePool:
        """The pool of a device."""
        with self.lock:
            if device not in self._pools:
                self._pools[device] = CapturePool(device)
            return self._pools[device]

    def run_as_first_call(
        self, device: torch.device | None, function: Callable[[], Result], user: Hashable = None
    ) -> Result:
        """As :meth:`Pool.run_as_first_call`, if *device* is one that graphs are captured on.

        Otherwise the function is just called.
        """
        if device is None or device.type != CapturePool.kind or is_capturing():
            return function()
        return self.of(device).run_as_first_call(function, self.first_calls, user)

    def __reduce__(self) -> tuple[type[CapturePools], tuple[()]]:
        return CapturePools, ()  # A copy has graphs of its own.
