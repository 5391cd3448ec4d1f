"""The memory of graphs, and who still uses what they have written there.

Graphs that replay one after the other share memory: the allocator gives a capture whatever is free.
So a replay may overwrite all that was free when its graph was captured. Results of a graph that was
captured later may lie there, and those of an earlier one whose memory was free already. Copies of
results are safe. Results that are handed out without a copy are noted here, and each replay asks
first whether something still uses them.
"""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

#: What torch's allocator calls a memory.
Handle = tuple[int, int]
#: All that were ever made for graphs of ours, and for first calls.
KNOWN_HANDLES: set[Handle] = set()
_orders = itertools.count()
# How many calls of one function with the same weights may use memory of first calls until a
# capture. There are one or two in each step of training, and four until both graphs are captured.
_FIRST_CALLS = 12
# How many functions with other weights there may be until then.
_USERS = 512
# One thread can end what another one keeps.
_first_calls: weakref.WeakSet[FirstCallMemory] = weakref.WeakSet()
_lock = threading.RLock()


class LiveOutputs(Protocol):
    """Results of a graph that are handed out without a copy."""

    #: Captures with a larger number than this found their memory free; at first there is none.
    gone: float
    #: Whether a backward reads some of them.
    for_backward: bool

    def result_memories(self) -> list[int]:
        """What they lie in."""

    def only_shown_in_use(self) -> bool:
        """Whether all that is in use is what the program got, and nothing is saved for later."""

    def used_memories(self) -> list[int]:
        """Which of these memories something uses."""

    def used_of_gone(self) -> list[int]:
        """Which of them others may overwrite, and something uses."""

    def abandoned_outputs(self) -> LiveOutputs:
        """What of them has to be known when their graph is gone."""

    def why_held(self) -> str | None:
        """Why they must not be overwritten now; None if they may.

        What can be moved to other memory is moved first.
        """


class FirstCallMemory:
    """Memory of torch's allocator for calls before a capture, until the next one.

    Elsewhere, the program's own values (the state of an optimizer) would lie between theirs, and
    torch could not return them to the device.
    """

    def __init__(self) -> None:
        self._calls = Counter[Hashable]()
        # By device: the allocator's handle, and what ends it.
        self._handles: dict[torch.device, Handle] = {}
        self._held: dict[torch.device, weakref.finalize[[int, Handle], FirstCallMemory]] = {}
        # The devices on which a thread is about to use it, or does.
        self._used: set[torch.device] = set()
        with _lock:
            _first_calls.add(self)

    def count_call(self, user: Hashable = None) -> bool:
        """Count a call of *user*. Returns whether it may use this memory.

        If not, all is released. What such calls free here is there for nobody else.
        """
        self._calls[user] += 1
        over = self._calls[user] - _FIRST_CALLS, len(self._calls) - _USERS
        if max(over) > 0:
            self.release_handles()
        return max(over) < 1

    @contextmanager
    def handle_in_use(self, device: torch.device) -> Iterator[Handle]:
        """Keep it, whatever other threads do: this one uses its handle in the context.

        One thread at a time may use it on a device.
        """
        with _lock:
            self._used.add(device)
        try:
            if device not in self._held:
                self._handles[device] = torch.cuda.graph_pool_handle()
                KNOWN_HANDLES.add(self._handles[device])
            yield self._handles[device]
        finally:
            with _lock:
                self._used.discard(device)

    def keep_handle(self, device: torch.device, release: Callable[[int, Handle], None]) -> bool:
        """Keep it after its use, until *release* is called with device and handle.

        Returns False if it was kept before.
        """
        if device in self._held:
            return False
        with _lock:
            keeper = weakref.finalize(self, release, device.index, self._handles[device])
            keeper.atexit = False
            self._held[device] = keeper
        return True

    def release_handles(self) -> None:
        """Keep it no longer. Where a thread uses it now, it is kept until the next release."""
        with _lock:
            for one in self._held.keys() - self._used:
                # What goes with a memory may call what ends it, too.
                end = self._held.pop(one, None)
                if end is not None:
                    end()


def end_first_calls() -> None:
    """A capture begins, or was tried: release all memory of first calls, and count them anew."""
    with _lock:
        for one in [*_first_calls]:
            one._calls.clear()
            one.release_handles()


class GraphMemory:
    """Memory of torch's allocator that only graphs use."""

    def __init__(self) -> None:
        # By device: the allocator's handle, and the graphs that use it.
        self._handles: dict[torch.device, Handle] = {}
        self._graphs: dict[torch.device, weakref.WeakSet[object]] = {}
        #: The number of the last capture that has begun, or is about to.
        self.last_order = -1
        #: By the order of their captures: what was in use when it was last looked at.
        self.lent: dict[int, LiveOutputs] = {}
        # No larger number is lent, and what is lent and overwritten by others' graphs, first to
        # last: the number of the first such graph, and its own. Some may be lent no more.
        self._last_lent = -1
        self._overwritten: list[tuple[float, int]] = []

    def begin_capture(self, device: torch.device) -> tuple[Handle, list[object]]:
        """The handle for a capture on *device*, and what must live until it has begun.

        Torch frees memory after its last graph, and then its handle can't be used again.
        """
        end_first_calls()
        alive = list(self._graphs.setdefault(device, weakref.WeakSet()))
        if not alive:
            self._handles[device] = torch.cuda.graph_pool_handle()
            KNOWN_HANDLES.add(self._handles[device])
        return self._handles[device], alive

    def add(self, device: torch.device, graph: object) -> None:
        """A graph was captured here."""
        self._graphs[device].add(graph)

    def order(self) -> int:
        """A number for a capture that begins now. Later captures have larger ones."""
        self.sweep()
        self.last_order = next(_orders)
        return self.last_order

    def lend(self, order: int, results: LiveOutputs) -> None:
        """A replay of the graph with this number has handed out results."""
        self.lent[order] = results
        self._last_lent = max(order, self._last_lent)
        self.note_overwritten(order, results)

    def note_overwritten(self, order: int, results: LiveOutputs) -> None:
        """Others' graphs may overwrite the results of the graph with this number, or they may not.

        They are those with larger numbers than ``results.gone``.
        """
        entry = results.gone, order
        at = bisect_left(self._overwritten, entry)
        if results.gone < math.inf and self._overwritten[at : at + 1] != [entry]:
            self._overwritten.insert(at, entry)

    def busy(self, order: int, but: LiveOutputs | None = None) -> str | None:
        """Why what the graph with this number writes must not be written now; None if it may.

        With *but*, only the memory of its results is to be written, and they do not count. Of a
        step's replays, all but the first find nothing to ask, or what the one before has read last.
        """
        before = bisect_left(self._overwritten, (order,))
        if order > self._last_lent and not before:
            return None
        # What is owned was free for no later capture.
        is_owned = but is not None and but.gone == math.inf
        later = [one for one in [*self.lent.items()] if one[0] >= order and not is_owned]
        for number, results in later:
            held = None if results is but else results.why_held()
            if held:
                return held
            # A sweep of another thread may have been here before.
            if results is not but:
                self.lent.pop(number, None)
        for _, number in self._overwritten[:before]:
            held = self._ask_overwritten(number, but)
            if held:
                return held
        if but is None:
            del self._overwritten[:before]
            self._last_lent = max(self.lent, default=-1)
        return None

    def _ask_overwritten(self, number: int, but: LiveOutputs | None) -> str | None:
        results = self.lent.get(number)
        if results is None or results is but:
            return None
        if not results.used_memories():
            # The next step need not ask again.
            self.lent.pop(number, None)
            return None
        held = results.why_held() if results.used_of_gone() else None
        return held if held and results.used_of_gone() else None

    def awaits_backwards(self, but: LiveOutputs) -> bool:
        """Whether forwards that write here await their backward, others than that of *but*."""
        return any(
            one.for_backward and one is not but and one.gone == math.inf and one.used_memories()
            for one in [*self.lent.values()]
        )

    def only_shown_in_use(self, order: int) -> bool:
        """Whether all because of which the graph with this number is busy is what programs got."""
        return all(results.only_shown_in_use() for results, _ in self._in_the_way(order))

    def used_over(self, order: int) -> set[int]:
        """The memories because of which the graph with this number is busy."""
        return {memory for _, used in self._in_the_way(order) for memory in used}

    def _in_the_way(self, order: int) -> Iterator[tuple[LiveOutputs, list[int]]]:
        """Results that the graph with this number overwrites, with their memory that is in use."""
        for number, results in [*self.lent.items()]:
            if number >= order:
                yield results, results.used_memories()
            elif results.gone < order:
                used = results.used_of_gone()
                if used:
                    yield results, used

    def abandon_outputs(self, order: int, outputs: LiveOutputs) -> None:
        """The graph with this number is gone, and leaves *outputs* of its results."""
        if order in self.lent:
            self.lent[order] = outputs
        self.sweep()

    def sweep(self) -> None:
        """Forget results that nothing uses any more, also those of graphs that are gone."""
        for number, results in list(self.lent.items()):
            if not results.used_memories():
                self.lent.pop(number, None)
