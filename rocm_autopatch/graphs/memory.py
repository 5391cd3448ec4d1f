"""The memory of graphs, and who still uses what they have written there.

Graphs that replay one after the other share memory: the allocator gives a capture whatever is free.
So a replay may overwrite all that was free when its graph was captured. Results of a graph that was
captured later may lie there, and those of an earlier one whose memory was free already. Copies of
results are safe. Results that are handed out without a copy are noted here, and each replay asks
first whether something still uses them.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import torch

_orders = itertools.count()


class Lent(Protocol):
    """Results of a graph that are handed out without a copy."""

    #: Captures with a larger number than this found their memory free; at first there is none.
    gone: float

    def in_use(self) -> bool:
        """Whether something uses them."""

    def held(self) -> str:
        """Why they must not be overwritten now; "" if they may.

        What can be moved to other memory is moved first.
        """


class Memory:
    """Memory of torch's allocator that only graphs use."""

    def __init__(self) -> None:
        # By device: the allocator's handle, and the graphs that use it.
        self._handles: dict[Any, Any] = {}
        self._graphs: dict[Any, weakref.WeakSet[Any]] = {}
        #: By the order of their captures: what was in use when it was last looked at.
        self.lent: dict[int, Lent] = {}

    def begin(self, device: Any) -> tuple[Any, list[Any]]:
        """The handle for a capture on *device*, and what must live until it has begun.

        Torch frees memory after its last graph, and then its handle can't be used again.
        """
        alive = list(self._graphs.setdefault(device, weakref.WeakSet()))
        if not alive:
            self._handles[device] = torch.cuda.graph_pool_handle()
        return self._handles[device], alive

    def add(self, device: Any, graph: Any) -> None:
        """A graph was captured here."""
        self._graphs[device].add(graph)

    def order(self) -> int:
        """A number for a capture that begins now. Later captures have larger ones."""
        self.sweep()
        return next(_orders)

    def lend(self, order: int, results: Lent) -> None:
        """A replay of the graph with this number has handed out results."""
        self.lent[order] = results

    def busy(self, order: int) -> str:
        """Why the graph with this number must not replay now; "" if it may."""
        for number, results in [*self.lent.items()]:
            if number >= order or results.gone < order:
                held = results.held()
                if held:
                    return held
                del self.lent[number]
        return ""

    def sweep(self) -> None:
        """Forget results that nothing uses any more, also those of graphs that are gone."""
        for number, results in list(self.lent.items()):
            if not results.in_use():
                self.lent.pop(number, None)
