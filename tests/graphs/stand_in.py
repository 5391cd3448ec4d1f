"""A stand-in for the GPU, so that bookkeeping can be tested on a CPU.

A "capture" on it runs the function and then undoes its writes to tensors. A "replay" runs the
function again and copies into the results of the capture. This shows which calls are captured,
replayed, refused and dropped, and that arguments are copied in and results are copied out. It shows
nothing about CUDA or HIP: no streams, no illegal operations, no memory pool.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rocm_autopatch.graphs import capture
from rocm_autopatch.graphs.buffers import dense


class StandIn(capture.Pool):
    kind = "cpu"
    broken: BaseException | None = None
    wrong = False

    def __init__(self, device: Any) -> None:
        self.device = device
        self.turns = 0
        self._guard = threading.Lock()
        self._warming, self._capturing = 0, False

    def turn(self) -> None:
        self.turns += 1

    def _on_stream(self, function: Callable[[], Any]) -> Any:
        return function()

    def _record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        if StandIn.broken:
            raise StandIn.broken
        with undone():
            result = function()
        leaves = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

        def replay() -> None:
            with torch.inference_mode(modes[1]), torch.set_grad_enabled(modes[0]):
                values = [one for one in pytree.tree_leaves(function()) if torch.is_tensor(one)]
                for leaf, value in zip(leaves, values):
                    dense(leaf).copy_(dense(value + 1 if StandIn.wrong else value))

        return replay, result

    def wait(self) -> None:
        pass

    def memory(self) -> int:
        return 0

    def random(self) -> Any:
        return None  # the CPU's own generator is watched in any case


def _plain(tensor: Any) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


@contextmanager
def undone() -> Iterator[None]:
    """Undo all writes to tensors that exist now."""
    alive = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    kept = [(one, one.detach().clone()) for one in alive if _plain(one)]
    yield
    with torch.no_grad():
        for one, was in kept:
            if not torch.equal(one, was):
                one.detach().copy_(was)


def install() -> None:
    """Replace the GPU by the stand-in, in this process."""
    capture.Pool = StandIn  # type: ignore[misc]
