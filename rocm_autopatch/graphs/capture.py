"""The device: the stream, the memory and the order of graphs, and the capture itself.

All that the other files ask of a GPU is here, so that tests can put a stand-in in its place.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from rocm_autopatch.graphs.leaves import TENSORS

# Only what this thread does may break a capture: others go on allocating and compiling.
CAPTURE_ERROR_MODE = "thread_local"


# One capture at a time: beginning one waits for the device, which is illegal in another. What is
# captured takes no lock of ours, so nobody who has this one waits for another.
_one = threading.Lock()
_started = torch.cuda.is_initialized
_is_capturing = torch._C._cuda_isCurrentStreamCapturing


def capturing() -> Any:
    """Whether this thread's stream is being captured. Never starts the device up."""
    return _started() and _is_capturing()


def compiles() -> int:
    """How many graphs Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils.counters["stats"]["unique_graphs"] if utils else 0


class Pool:
    """The memory of graphs that replay one after the other, and the stream they are captured on.

    Graphs of one pool use each other's memory for what is between their arguments and results, so
    two of them must never run at once: :meth:`turn` sees to that.
    """

    kind = "cuda"  # torch's name for HIP devices, too

    def __init__(self, device: Any) -> None:
        self.device = device
        self.index = device.index
        self.handle = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)
        self._last: tuple[int, Any] = (-1, None)

    def turn(self) -> None:
        """Have what the current stream does next wait for the last replay, on whatever stream."""
        raw = torch._C._cuda_getCurrentRawStream(self.index)
        if raw != self._last[0]:
            current = torch.cuda.current_stream(self.device)
            if self._last[1] is not None:
                current.wait_stream(self._last[1])
            self._last = (raw, current)

    def warm(self, function: Callable[[], Any]) -> Any:
        """Call a function on the stream of captures: libraries set themselves up by stream."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = function()
        current.wait_stream(self.stream)
        for leaf in torch.utils._pytree.tree_leaves(result):
            if type(leaf) in TENSORS and leaf.device == self.device:
                leaf.record_stream(current)
        return result

    def capture(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Capture a function's kernels: how to replay them, and the result that a replay fills.

        Nothing of it is executed. Raises whatever the function or the runtime does; the stream is
        then as before.
        """
        graph = torch.cuda.CUDAGraph()
        capture = torch.cuda.graph(
            graph, self.handle, self.stream, capture_error_mode=CAPTURE_ERROR_MODE
        )
        with _one:
            try:
                with torch.cuda.device(self.device), _no_collection(), capture:
                    result = function()
            except BaseException:
                self._repair()
                raise
        return graph.replay, result

    def _repair(self) -> None:
        """Undo what torch leaves undone when a capture breaks.

        Its end raises before it has told the allocator, which then frees nothing that other streams
        have used, and the generator, which then draws no number (torch 2.11).
        """
        with suppress(RuntimeError):
            torch.cuda.synchronize(self.device)
        for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"):
            end = getattr(torch._C, name, None)
            if end is not None:
                with suppress(RuntimeError):  # it was told
                    end(self.index, self.handle)
                break
        # A capture that ends well takes the generator along.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=CAPTURE_ERROR_MODE):
            torch.zeros(1, device=self.device)

    def wait(self) -> None:
        """Wait for the device: a graph must not be destroyed while it runs."""
        torch.cuda.synchronize(self.device)

    def memory(self) -> int:
        """Bytes that torch has reserved on the device, without those that nobody uses."""
        torch.cuda.empty_cache()
        reserved: int = torch.cuda.memory_reserved(self.device)
        return reserved

    def random(self) -> Any:
        """The state of the device's generator, which moves where random numbers are drawn."""
        return torch.cuda.get_rng_state(self.device).numpy().tobytes()


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection: what it frees may be another graph, which is illegal in a capture."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class Pools:
    """The pools of one callable, one for each device, and the lock that its graphs share."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._pools: dict[Any, Pool] = {}

    def of(self, device: Any) -> Pool:
        """The pool of a device."""
        with self.lock:
            if device not in self._pools:
                self._pools[device] = Pool(device)
            return self._pools[device]

    def __reduce__(self) -> tuple[type[Pools], tuple[()]]:
        return Pools, ()  # A copy has graphs of its own.
