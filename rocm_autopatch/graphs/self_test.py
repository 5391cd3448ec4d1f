"""Whether graphs work in this process: a few small ones of our own, of what breaks on ROCm.

The defects are public, most of them silent, and some strike one process of five: ROCm/clr#279. So
each process asks anew, before its first graph. A part is one known way to break, and has a graph of
whole numbers whose results are computed on the host, too.

Nothing of it stays: the kernels draw no random numbers, their memory is that of the current stream,
and what a reduction allocates inside a capture is given back by the next one, which begins with
that (``torch.cuda.graph``).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import torch

from rocm_autopatch.graphs import capture

# Of a buffer that was read stale after a copy from the host: 513 numbers of 4 bytes, ROCm/hip#3902.
_WIDTH = 513
# ROCm/hip#3887 is about graphs of some 200 kernels and more.
_NODES = 250
# So many numbers are summed up by several blocks of threads, which count in memory that a memset
# has cleared.
_SUMMED = 1 << 18
_REPLAYS = 6
#: A part that is wrong, and how.
Fault = str


class GraphRecorder:
    """How a graph of the self-test is captured and replayed. Tests put a stand-in in its place."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._side = torch.cuda.Stream(device)

    def record_graph(self, function: Callable[[], object]) -> Callable[[], None]:
        """Capture the kernels of a function, and return what replays them on the current stream."""
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            function()  # Loads the kernels, which is not always possible in a capture.
            try:
                with _without_collection():
                    # torch.cuda.graph would wait for the device, and empty torch's caches.
                    graph.capture_begin(pool, capture_error_mode=capture.CAPTURE_ERROR_MODE)
                    try:
                        function()
                    except BaseException:
                        with suppress(RuntimeError):
                            graph.capture_end()
                        raise
                    graph.capture_end()
            except BaseException:
                self._repair_generator(pool)
                raise
        # Some versions of torch write there, at the begin of a capture, what random numbers need.
        current.wait_stream(self._stream)
        replay: Callable[[], None] = graph.replay
        return replay

    def _repair_generator(self, pool: tuple[int, int]) -> None:
        """Tell the allocator and the generator that a broken capture is over.

        Some versions of torch don't: Pool._repair in capture.py has it for the graphs of a program.
        """
        name = "_cuda_endAllocateToPool"  # Until torch 2.8 it was called otherwise.
        end = getattr(torch._C, name, None) or torch._C._cuda_endAllocateCurrentStreamToPool
        with suppress(RuntimeError):
            end(self._device.index, pool)
        with suppress(RuntimeError):
            one = torch.zeros(1, device=self._device)
            another = torch.cuda.CUDAGraph()
            another.capture_begin(capture_error_mode=capture.CAPTURE_ERROR_MODE)
            one.add_(1)
            another.capture_end()

    @contextmanager
    def use_side_stream(self) -> Iterator[None]:
        """Work on another stream, after all work of the current one, and before what follows."""
        current = torch.cuda.current_stream(self._device)
        self._side.wait_stream(current)
        try:
            with torch.cuda.stream(self._side):
                yield
        finally:
            current.wait_stream(self._side)

    def pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host that the device can read by itself."""
        return tensor.pin_memory()

    def use_device(self) -> AbstractContextManager[object]:
        """A context in which the device is the current one."""
        used: AbstractContextManager[object] = torch.cuda.device(self._device)
        return used

    def wait_for_work(self) -> None:
        """Wait for all that was replayed, not for other streams: they may be captured."""
        torch.cuda.current_stream(self._device).synchronize()
        self._stream.synchronize()
        self._side.synchronize()


def find_faults(device: torch.device) -> list[Fault]:
    """The parts of graphs that are wrong in this process, [] if all are right.

    An exception counts as a fault of its part. The current stream must not be captured. A capture
    of another thread comes first: two at the same time may both be broken, ROCm/rocm-systems#6888.
    """
    found: list[Fault] = []
    # Torch's generator gets tensors of its own with the first graph. Those of inference mode could
    # not be changed outside of it.
    with capture._one, torch.inference_mode(False), torch.no_grad():
        try:
            if device.type == "cuda" and device.index is None:
                device = torch.device("cuda", torch.cuda.current_device())
            recorder = GraphRecorder(device)
        except Exception as error:
            return [f"streams: {_describe_error(error)}"]
        with recorder.use_device():
            for name, check in _PARTS.items():
                found += _check_part(name, check, device, recorder)
    return found


Check = Callable[[torch.device, GraphRecorder], "list[str]"]


def _check_part(
    name: str, check: Check, device: torch.device, recorder: GraphRecorder
) -> list[Fault]:
    try:
        found = check(device, recorder)
    except Exception as error:
        # The error still has the graph, which must not be dropped while it runs.
        with suppress(RuntimeError):
            recorder.wait_for_work()
        found = [_describe_error(error)]
    return [f"{name}: {one}" for one in found]


def _describe_error(error: Exception) -> str:
    first, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first}"


def _check_memset(device: torch.device, recorder: GraphRecorder) -> list[str]:
    """Memory that is written and then cleared inside: pytorch#197017, ROCm 7.0."""
    given, scratch, cleared, added = _zero_tensors(device, 4)
    many = torch.ones(_SUMMED, dtype=torch.int32, device=device)
    total = torch.zeros(1, dtype=torch.int64, device=device)

    def compute() -> None:
        torch.add(given, 1, out=scratch)
        scratch.zero_()
        cleared.copy_(scratch)
        scratch.add_(given)
        added.copy_(scratch)
        # Torch itself clears the counters of the blocks, whatever zero_ is made of.
        torch.sum(many, 0, keepdim=True, out=total)

    replay = recorder.record_graph(compute)
    found = _ReplayComparison("are stale")
    for number in range(_REPLAYS):
        wanted = _host_numbers(number)
        given.copy_(wanted)
        for one in (cleared, added, total):
            one.fill_(-1)
        many.fill_(number + 1)
        replay()
        found.add_result(cleared, torch.zeros_like(wanted))
        found.add_result(added, wanted)
        found.add_result(total, torch.tensor([_SUMMED * (number + 1)]))
    return found.list_faults()


def _check_host_copy(device: torch.device, recorder: GraphRecorder) -> list[str]:
    """A copy from the host just before a replay, on the same stream: ROCm/hip#3902."""
    pinned, pageable, sums = _zero_tensors(device, 3)
    replay = recorder.record_graph(lambda: torch.add(pinned, pageable, out=sums))
    found = _ReplayComparison("are stale")
    rows = [(_host_numbers(number), _host_numbers(number + 100)) for number in range(_REPLAYS)]
    for number, (one, other) in enumerate([(recorder.pin_memory(one), two) for one, two in rows]):
        copies = [(pageable, other), (pinned, one)]
        # Each of them is the last one by turns.
        for to, values in copies if number % 2 else reversed(copies):
            to.copy_(values, non_blocking=True)
        replay()
        found.add_result(sums, one + other)
    return found.list_faults()


def _check_many_nodes(device: torch.device, recorder: GraphRecorder) -> list[str]:
    """More kernels than some graphs can have, each with a pointer of its own: ROCm/hip#3887."""
    state, other = _zero_tensors(device, 2)
    rows = torch.zeros(_NODES, _WIDTH, dtype=torch.int32, device=device)

    def compute() -> None:
        places = state, other
        for number in range(_NODES):
            torch.add(places[number % 2], rows[number], out=places[1 - number % 2])

    replay = recorder.record_graph(compute)
    found = _ReplayComparison("are wrong")
    for number in range(2):
        given = torch.stack([_host_numbers(number + row) for row in range(_NODES)])
        rows.copy_(given)
        state.copy_(_host_numbers(number))
        replay()
        found.add_result(state, _host_numbers(number) + given.sum(0, dtype=torch.int32))
    return found.list_faults()


def _check_pointers(device: torch.device, recorder: GraphRecorder) -> list[str]:
    """What lies behind pointers that are written just before the launch: ROCm/hip#3887.

    Torch has no kernel that follows a pointer to pointers. Places in a table are the same to the
    runtime: numbers that the host has copied, and that a late kernel uses as addresses. Lists of
    pointers in one launch are those of _foreach_add_.
    """
    table = torch.stack([_host_numbers(row) for row in range(8)]).to(device)
    places = torch.zeros(4, dtype=torch.int64, device=device)
    read = torch.zeros(4, _WIDTH, dtype=torch.int32, device=device)
    parts = list(torch.zeros(4, _WIDTH, dtype=torch.int32, device=device).unbind())
    steps = torch.zeros(1, dtype=torch.int32, device=device)

    def compute() -> None:
        for _ in range(_NODES):
            steps.add_(1)
        torch.index_select(table, 0, places, out=read)
        torch._foreach_zero_(parts)
        torch._foreach_add_(parts, list(read.unbind()))

    replay = recorder.record_graph(compute)
    found = _ReplayComparison("are wrong")
    for number in range(_REPLAYS):
        chosen = [(number * 3 + one) % 8 for one in range(4)]
        steps.zero_()
        places.copy_(torch.tensor(chosen))
        replay()
        for part, row in zip(parts, chosen):
            found.add_result(part, _host_numbers(row))
        found.add_result(steps, torch.tensor([_NODES], dtype=torch.int32))
    return found.list_faults()


def _check_replays(device: torch.device, recorder: GraphRecorder) -> list[str]:
    """Replays with other inputs, and with the first ones again: pytorch#184265 breaks the second.

    Nobody waits in between, as in ROCm/clr#279.
    """
    given, tripled, sums = _zero_tensors(device, 3)
    largest = torch.zeros(3, dtype=torch.int32, device=device)

    def compute() -> None:
        torch.mul(given, 3, out=tripled)
        torch.add(tripled, given, out=sums)
        torch.amax(sums.view(3, -1), 1, out=largest)

    replay = recorder.record_graph(compute)
    found = _ReplayComparison("are wrong")
    for number in (0, 1, 2, 0, 3):
        wanted = _host_numbers(number)
        given.copy_(wanted)
        replay()
        found.add_result(sums, 4 * wanted)
        found.add_result(largest, (4 * wanted).view(3, -1).amax(1))
    return found.list_faults()


def _check_side_stream(device: torch.device, recorder: GraphRecorder) -> list[str]:
    """A replay on another stream than the one before."""
    given, doubled = _zero_tensors(device, 2)
    replay = recorder.record_graph(lambda: torch.add(given, given, out=doubled))
    found = _ReplayComparison("are wrong")
    for number in range(_REPLAYS):
        wanted = _host_numbers(number)
        given.copy_(wanted)
        if number % 2:
            with recorder.use_side_stream():
                replay()
        else:
            replay()
        found.add_result(doubled, 2 * wanted)
    return found.list_faults()


_PARTS: dict[str, Check] = {
    "memset": _check_memset,
    "host copy": _check_host_copy,
    "many nodes": _check_many_nodes,
    "pointers": _check_pointers,
    "replays": _check_replays,
    "side stream": _check_side_stream,
}


class _ReplayComparison:
    """Results of replays beside what they should be. They are compared in the end.

    To wait for each one would hide faults of replays that follow each other.
    """

    def __init__(self, word: str) -> None:
        self._word = word
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def add_result(self, result: torch.Tensor, wanted: torch.Tensor) -> None:
        self._pairs.append((result.clone(), wanted))

    def list_faults(self) -> list[str]:
        """How many numbers are wrong, [] if none is."""
        found = torch.cat([result for result, _ in self._pairs]).cpu()
        wanted = torch.cat([wanted for _, wanted in self._pairs]).to(found.dtype)
        wrong = int((found != wanted).sum())
        return [f"{wrong} of {wanted.numel()} values {self._word}"] if wrong else []


def _zero_tensors(device: torch.device, count: int) -> Iterator[torch.Tensor]:
    for _ in range(count):
        yield torch.zeros(_WIDTH, dtype=torch.int32, device=device)


def _host_numbers(number: int) -> torch.Tensor:
    """Whole numbers on the host, other ones for each *number*, none of them 0."""
    return torch.arange(1, _WIDTH + 1, dtype=torch.int32, device="cpu") * (number % 7 + 1) + number


@contextmanager
def _without_collection() -> Iterator[None]:
    """Turn garbage collection off: it may free another graph, which is illegal in a capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
