"""Graphs for training in the mode: forward and backward of each compiled region.

AOTAutograd divides what ``torch.compile`` compiles into a forward and a backward, and Inductor
compiles each of them to a function of a list of tensors. We put graphs in the place of these two
functions. All else stays torch's own: which values are saved, the checks whether they were changed,
hooks, how gradients are added up, errors of a second backward.

The forward's graph hands out the values that it saves where they are. So the backward's graph finds
them at the same addresses at each step. Small results that the program gets are copied. Large ones
and gradients are handed out where they are, too, and the graphs of the next region read them there.
When saved values are still in use at the next forward (two forwards before a backward, a retained
graph), this forward is a plain call, and so is its backward. The backward's graph is the last to
read them, and uses their memory for other values then.

torch calls ``CompiledFxGraph.post_compile`` for each compiled graph, also for one from a cache,
from 2.6 on. There we take the compiled function.
"""

from __future__ import annotations

import functools
import importlib
import math
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from rocm_autopatch import failure, startup
from rocm_autopatch.graphs import capture, record, soundness
from rocm_autopatch.graphs.buffers import Inputs, dense, overlaps
from rocm_autopatch.graphs.handed import Consumed, Found, Handed
from rocm_autopatch.graphs.leaves import TENSORS, signature
from rocm_autopatch.graphs.memory import Memory
from rocm_autopatch.graphs.places import place, storage
from rocm_autopatch.graphs.refusal import Busy, Refused
from rocm_autopatch.graphs.store import Call, Entry, Graphs, Options

# Each forward keeps the memory of what it saves.
_LIMIT = 16
_WARMUP = 2
# From so many bytes on, results are handed out without a copy.
_LARGE = 1 << 20
# How often in a row the program may keep gradients over the next forward, which needs their memory.
_KEPT = 8
HOOKED = "hooks get what it saves, and a number is on the device in a replay only"
# What returns the innermost hooks of saved tensors in this thread, from torch 2.8 on.
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
_MODULE = "torch._inductor.output_code"
_OURS = "_rocm_autopatch"
# Forwards that were called, and whose graph has no backward yet.
_waiting: weakref.WeakSet[Any] = weakref.WeakSet()
_lock = threading.RLock()
# What this thread compiles at present.
_local = threading.local()
_installing = threading.Lock()


class Region:
    """The training graphs of one compiled region, with the name and the mode of its record."""

    def __init__(self, name: str, origin: str, pools: capture.Pools) -> None:
        self.name, self.origin, self.pools = name, origin, pools
        # What other regions' graphs do between a forward and its backward overwrites nothing here.
        self.memory = Memory()
        self.forward: Forward | None = None
        self._weights: list[weakref.ref[Any]] = []
        self._replaced = True

    def first(self, device: Any, function: Callable[[], Any]) -> Any:
        """Call a forward or its backward before the first capture."""
        return self.pools.first(device, function, self.memory)

    def gradients(self) -> Iterator[Any]:
        """The gradients that the region's weights have."""
        for reference in self._weights:
            weight = reference()
            if weight is None:
                self._replaced = True
            elif weight.grad is not None:
                yield weight.grad

    def compiling(self) -> AbstractContextManager[None]:
        """What this thread compiles in the context belongs to the region.

        Raises Refused if this torch has no place to take it from.
        """
        _install()
        return self._current()

    @contextmanager
    def _current(self) -> Iterator[None]:
        before = getattr(_local, "region", None)
        _local.region = self
        try:
            yield
        finally:
            _local.region = before

    def run(self, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """What to call instead of *compiled*, the result of the compile."""
        forward = self.forward
        if forward is None:
            startup.fail("graphs", f"{self.name} trains without graphs: torch offered no forward")
            return compiled

        def call(*args: Any) -> Any:
            result = compiled(*args)
            if not forward.graphs.row["graphs"]:
                forward.returned(result, args)
                self._replaced = True
            if self._replaced:
                weights = [one for one in args if isinstance(one, torch.nn.Parameter)]
                self._weights = [weakref.ref(one) for one in weights]
                self._replaced = False
            return result

        return call

    def take(self, graph: Any) -> None:
        """Put graphs in the place of what a ``CompiledFxGraph`` of a forward calls."""
        for other in _those_waiting():
            # It is compiled anew, and nobody might call the old one any more. Other threads compile
            # the same function for themselves.
            if other.region.name == self.name and other.region.pools is self.pools:
                other.region.memory.release()
                capture.give_back()
        fixed = [int(index) for index in graph.fx_kwargs.get("static_input_idxs") or ()]
        self.forward = Forward(self, graph.current_callable, fixed)
        graph.current_callable = self.forward


class _Graphs(Graphs):
    """Graphs of a compiled function that takes one list and empties it."""

    # What its graphs read may be in memory that they share.
    carries = False

    def __init__(
        self,
        region: Region,
        name: str,
        compiled: Callable[[list[Any]], Any],
        fixed: Sequence[int],
        memory: Memory,
    ) -> None:
        # A graph is verified by one more plain call. Options.clone is about other results.
        check = soundness.checks_by_default()
        options = Options(limit=_LIMIT, warmup=_WARMUP, clone=False, verify=True, check=check)
        super().__init__(
            lambda _, leaves: compiled(leaves),
            name,
            region.origin,
            options,
            region.pools,
            fixed,
            memory=memory,
        )
        self.region, self._compiled = region, compiled
        self.fixed = frozenset(fixed)
        self.alone = _alone()

    def call(self, inputs: list[Any], unfit: str = "") -> Any:
        """The result for *inputs*, without a graph if they are *unfit*. The list is empty then."""
        try:
            if unfit:
                raise Refused(unfit)
            if capture.capturing():
                raise Refused("another capture is under way and records these kernels")
            free = [one for index, one in enumerate(inputs) if index not in self.fixed]
            key = signature(free)
        except Refused as refused:
            record.plain(self.row, str(refused))
            return self._now(None, inputs)
        if self.alone and not _alone():
            self.alone = False
            self.clear()
        leaves = list(inputs)
        inputs.clear()
        return self.run(key, None, leaves)

    def _now(self, structure: Any, leaves: list[Any]) -> Any:
        return self._compiled(leaves)

    def _first(self, call: Call, real: list[Any]) -> Any:
        return self.region.first(call.device, lambda: self._now(call.structure, real))

    def _found(self, leaves: list[Any]) -> list[tuple[int, Found]]:
        owners = self.region.pools.owners
        return [
            (index, Found(leaf, owner))
            for index, leaf in enumerate(leaves)
            if type(leaf) in TENSORS and index not in self.fixed
            if (owner := owners.get(storage(leaf))) is not None
        ]

    def _made(self, entry: Entry, inputs: Inputs, outputs: Any, graph: Callable[[], None]) -> None:
        outputs.count_owners(inputs.own_tensors())
        outputs.own(self.region.pools.owners, entry.memory, entry.order, graph)
        if entry.consumed:
            # A plain call that verifies the graph can have this memory, too.
            outputs.let_go(outputs.uncopied(), [], entry.pool, entry.order)


class _ForwardGraphs(_Graphs):
    def __init__(
        self, region: Region, compiled: Callable[[list[Any]], Any], fixed: Sequence[int]
    ) -> None:
        super().__init__(region, region.name, compiled, fixed, region.memory)
        self.has_backward = False
        # The results that the program gets.
        self.shown: set[int] = set()
        # The addresses of what replays save for the backward, and of all that stays where it is.
        # Before there is a graph, those of the last call.
        self.saved: set[int] = set()
        self.places: set[int] = set()

    def call(self, inputs: list[Any], unfit: str = "") -> Any:
        hooked = unfit == "" and _top_hooks is not None and _top_hooks(False) is not None
        if hooked and any(entry.hosted for entry in [*self._entries.values()]):
            # A checkpoint compares the device of what is saved with that of the recomputed value.
            unfit = HOOKED
        return super().call(inputs, unfit)

    def _may_move(self, index: int) -> bool:
        # A backward that is called without a graph gets it where it was.
        return index not in self.shown

    def save(self, addresses: set[int], fixed: set[int] | None = None) -> None:
        """Note where the last plain call has saved what it saves, unless there is a graph.

        *fixed* are the addresses of what stays where it is, if they are known. What others capture
        takes none of our locks.
        """
        if not self.row["graphs"] and not capture.capturing():
            with self._lock:
                # Another thread may have captured it meanwhile.
                if not self.row["graphs"]:
                    self.saved = addresses
                    self.places = self.places if fixed is None else addresses | fixed

    def places_of_numbers(self) -> dict[int, Any]:
        """The numbers that replays save on the device: where other calls save them, by address."""
        with self._lock:
            graphs = [entry for entry in self._entries.values() if entry.graph is not None]
            return {
                entry.outputs.leaves[index].data_ptr(): device
                for entry in graphs
                for index, device in entry.hosted.items()
            }

    def _results(self, result: Any, inputs: Inputs, places: dict[int, Any], device: Any) -> Handed:
        # What is an argument's memory stays that.
        taken = {storage(tensor) for tensor in places.values()}
        copied = {
            index
            for index in self.shown - (_large(result) if self.alone else set())
            if type(result[index]) not in TENSORS or storage(result[index]) not in taken
        }
        return Handed(result, copied, self.shown, places, tuple, device)

    def _captured(self, entry: Entry) -> None:
        if len(self.row["graphs"]) == 1:
            self.saved, self.places = set(), set()
        self.saved |= entry.outputs.places
        self.places |= entry.outputs.places.union(place for place in entry.places if place)
        if not self.has_backward:
            _wait(self)


class _BackwardGraphs(_Graphs):
    def __init__(
        self,
        forward: _ForwardGraphs,
        compiled: Callable[[list[Any]], Any],
        fixed: Sequence[int],
        saved: Sequence[int],
    ) -> None:
        region = forward.region
        name, memory = f"backward of {region.name}", region.pools.gradients
        super().__init__(region, name, compiled, fixed, memory)
        self._forward, self._of_weights = forward, forward.fixed
        # The indices of what the forward has saved, and whether graphs may overwrite it.
        self.saved, self._lean = list(saved), True
        # As long as the forward has no graph, what it saves is somewhere else in each call.
        self._ready = False
        # The signature of the last call until then, and of its leaves that are not fixed.
        self._last: tuple[Any, Any] = (None, None)
        # The numbers that a forward saves on the host if it is no replay, and where, by index.
        self._numbers: dict[int, Any] = {}

    def place(self, saved: Sequence[int], fixed: Sequence[int], inputs: list[Any]) -> None:
        """The forward of the next call, with *inputs*, has saved these, and these are fixed.

        What the last call has shown holds for this one, if it is like it.
        """
        with self._lock:
            self._ready = bool(self._forward.row["graphs"])
            self._numbers.update(self._saved_numbers(saved, inputs))
            there = [None if index in self._numbers else one for index, one in enumerate(inputs)]
            whole, key = self._last
            if self._ready or (self.saved, self.fixed) != (saved, frozenset(fixed)):
                known = self._latest.get(key)
                self.clear()
                self._known = known if whole == signature(there) else None
                self.saved, self.fixed = list(saved), frozenset(fixed)
                self._indices, self._fixed_leaves = list(fixed), self.fixed
            free = [one for index, one in enumerate(inputs) if index not in self.fixed]
            self._last = signature(there), signature(free)

    def _saved_numbers(self, saved: Sequence[int], inputs: list[Any]) -> dict[int, Any]:
        """Those that are elsewhere than the tensors, or would be without a graph, and where."""
        devices = {one.device for one in inputs if type(one) in TENSORS and one.dim()}
        numbers = {index: inputs[index] for index in saved if not inputs[index].dim()}
        moved = self._forward.places_of_numbers()
        where = {index: moved.get(one.data_ptr(), one.device) for index, one in numbers.items()}
        return {index: device for index, device in where.items() if {device} != devices}

    def _on_host(self) -> Collection[int]:
        return self._numbers

    def _now(self, structure: Any, leaves: list[Any]) -> Any:
        # In a capture they are on the device. Any other call reads them on the host.
        for index, device in [*self._numbers.items()]:
            leaves[index] = leaves[index].to(device)
        return super()._now(structure, leaves)

    def _first(self, call: Call, real: list[Any]) -> Any:
        device, given = call.device, list(real)
        # What was saved is freed as soon as it has been read.
        real.clear()
        for index in self.saved:
            call.leaves[index] = None
        return self.region.first(device, lambda: self._now(call.structure, given))

    def _again(self, call: Call) -> Any:
        return super()._first(call, list(call.leaves))

    def _observable(self, entry: Entry) -> list[int]:
        # A compiled backward may write to what is saved for it alone.
        return [index for index in entry.indices if index not in self.saved]

    def _spoilt(self, leaves: list[Any], consumed: Consumed | None) -> list[Any]:
        return [leaves[index] for index in {*self.saved, *(consumed.indices if consumed else ())}]

    def _consumed(self, leaves: list[Any]) -> Consumed | None:
        results = self.region.pools.owners.get(storage(leaves[self.saved[0]]))
        # Memory that is free already would serve this capture for other values from the beginning.
        if not self._lean or results is None or results.gone != math.inf:
            return None
        return Consumed(results, leaves)

    def _inside(self, leaves: list[Any]) -> set[int]:
        return {
            index
            for index, one in enumerate(leaves)
            if type(one) in TENSORS and one.is_floating_point() and not overlaps(dense(one))
            if one.untyped_storage().nbytes() >= _LARGE
        }

    def _failed(self, entry: Entry, call: Call, error: Exception) -> None:
        if self._lean and not isinstance(error, Busy):
            # It is tried once more, in other memory.
            self._lean = False
        else:
            super()._failed(entry, call, error)

    def _replay(self, entry: Entry, *args: Any) -> Any:
        result = super()._replay(entry, *args)
        if entry.consumed:
            entry.kept = entry.kept + 1 if entry.outputs.in_the_way else 0
            entry.outputs.in_the_way = False
            if entry.kept == _KEPT:
                self._lean = False
                self._leave(entry)
        return result

    def _results(self, result: Any, inputs: Inputs, places: dict[int, Any], device: Any) -> Handed:
        # Gradients are in the order of the forward's inputs. Those of weights stay where they are:
        # the next backward finds them as ``.grad``, or nobody has them any more. What the forward
        # has saved may serve as a result's memory, too: that result is copied.
        taken = {storage(tensor) for tensor in places.values()}
        kept = {
            index
            for index in self._of_weights | _large(result)
            if self.alone and index < len(result) and type(result[index]) in TENSORS
            if storage(result[index]) not in taken
        }
        all_ = set(range(len(result)))
        holders = functools.partial(_of, weakref.ref(self.region))
        shown = all_ - self._of_weights
        return Handed(result, all_ - kept, shown, places, holders, device)


class _Last(threading.local):
    """Of the last plain call of a forward in this thread."""

    def __init__(self) -> None:
        #: By index the memory and the address of each result that is no input.
        self.made: dict[int, tuple[int, int]] = {}
        #: The addresses of inputs that are results, and those of what stays where it is.
        self.passed: set[int] = set()
        self.fixed: set[int] = set()


class Forward:
    """What is called as the compiled forward of a region: with a list, which it empties."""

    def __init__(
        self, region: Region, compiled: Callable[[list[Any]], Any], fixed: Sequence[int]
    ) -> None:
        self.graphs = _ForwardGraphs(region, compiled, fixed)
        self._last = _Last()

    def __call__(self, inputs: list[Any]) -> Any:
        if self.graphs.row["graphs"]:
            return self.graphs.call(inputs)
        given = {storage(leaf) for leaf in inputs if type(leaf) in TENSORS}
        stay = [inputs[index] for index in self.graphs.fixed]
        last = self._last
        last.fixed = {one.data_ptr() for one in stay if type(one) in TENSORS}
        del stay
        result = self.graphs.call(inputs)
        last.made = {
            index: (storage(leaf), leaf.data_ptr())
            for index, leaf in enumerate(result)
            if type(leaf) in TENSORS and storage(leaf) not in given
        }
        tensors = {index: leaf for index, leaf in enumerate(result) if type(leaf) in TENSORS}
        passed = {leaf.data_ptr() for index, leaf in tensors.items() if index not in last.made}
        last.passed = passed - last.fixed
        return result

    def returned(self, result: Any, args: Sequence[Any]) -> None:
        """Note which results of the last plain call the program has got: it may keep them."""
        made, self._last.made = self._last.made, {}
        tensors = [
            one
            for one in (*torch.utils._pytree.tree_leaves(result), *args)
            if isinstance(one, torch.Tensor) and one.layout is torch.strided
        ]
        kept = {storage(one) for one in tensors}
        graphs = self.graphs
        graphs.shown |= {index for index, (memory, _) in made.items() if memory in kept}
        own = {address for memory, address in made.values() if memory not in kept}
        graphs.save(own | self._last.passed, self._last.fixed)
        _wait(graphs)


class Backward:
    """What is called as a compiled backward.

    It is compiled at its first call, or found in a cache. Which forward it belongs to, it sees at a
    call after this forward: by the addresses of the saved values. It looks again at its first call
    after a replay of the forward, which may hand out a copy of a value.
    """

    def __init__(self, compiled: Callable[[list[Any]], Any]) -> None:
        self._compiled = compiled
        self._graphs: _BackwardGraphs | None = None
        self._forward: _ForwardGraphs | None = None

    def __call__(self, inputs: list[Any]) -> Any:
        unknown = self._forward is None or not self._forward.has_backward
        # What others capture takes none of our locks.
        if unknown and _waiting and not capture.capturing():
            self._join(inputs)
        graphs, forward = self._graphs, self._forward
        if graphs is None or forward is None:
            return self._compiled(inputs)
        elsewhere = any(inputs[index].data_ptr() not in forward.saved for index in graphs.saved)
        # Other values may lie there when this call is over.
        forward.save(set())
        return graphs.call(inputs, "its forward ran without a graph" if elsewhere else "")

    def _join(self, inputs: list[Any]) -> None:
        """Find the forward that has saved these inputs."""
        # What has no element has no address.
        where = {
            index: one.data_ptr()
            for index, one in enumerate(inputs)
            if type(one) in TENSORS and one.numel()
        }

        def among(places: set[int]) -> list[int]:
            return [index for index, place in where.items() if place in places]

        # Two forwards may have saved an argument of both. Their weights differ.
        found = [
            (forward, among(forward.saved), among(forward.places)) for forward in _those_waiting()
        ]
        found = [one for one in found if one[1]]
        if not found:
            return
        forward, saved, fixed = max(found, key=lambda one: (len(one[1]), len(one[2])))
        if self._graphs is None or self._forward is not forward:
            self._graphs = _BackwardGraphs(forward, self._compiled, fixed, saved)
        self._forward = forward
        try:
            self._graphs.place(saved, fixed, inputs)
        except Refused:
            # The call itself says why.
            return
        if forward.row["graphs"]:
            forward.has_backward = True
            with _lock:
                _waiting.discard(forward)


def _wait(forward: _ForwardGraphs) -> None:
    """A forward has results now, and its backward is not known."""
    with _lock:
        _waiting.add(forward)


def _those_waiting() -> list[_ForwardGraphs]:
    with _lock:
        return [*_waiting]


def _alone() -> bool:
    """Whether nobody reads results on other streams, as collectives do.

    Such a reader does not count as a user of a result's memory.
    """
    return not (torch.distributed.is_available() and torch.distributed.is_initialized())


def _large(result: Sequence[Any]) -> set[int]:
    """The indices of large tensors that share their memory with no part or view of it."""
    tensors = {index: one for index, one in enumerate(result) if type(one) in TENSORS}
    views: dict[int, set[Any]] = {}
    for one in tensors.values():
        views.setdefault(storage(one), set()).add((one.dtype, *place(one)))
    return {
        index
        for index, one in tensors.items()
        if len(views[storage(one)]) == 1 and one.untyped_storage().nbytes() >= _LARGE
    }


def _of(region: weakref.ref[Region]) -> Iterable[Any]:
    """The gradients of a region that may be gone."""
    found = region()
    return found.gradients() if found else ()


def _install() -> None:
    """Have forwards offered to the region that this thread compiles, and all backwards taken."""
    with _installing:
        try:
            owner: Any = importlib.import_module(_MODULE).CompiledFxGraph
            original = owner.post_compile
        except (ImportError, AttributeError):
            raise Refused(
                f"gradients are needed, and torch {torch.__version__} has no place at which a "
                "forward and its backward can be captured (it has one from 2.6 on)"
            ) from None
        if hasattr(original, _OURS):
            return

        @functools.wraps(original)
        def post_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            region: Region | None = getattr(_local, "region", None)
            backward = self.fx_kwargs.get("is_backward")
            try:
                if backward:
                    self.current_callable = Backward(self.current_callable)
                elif region is not None:
                    region.take(self)
            except Exception as error:
                if failure.programs_own(error):
                    raise
                startup.fail(
                    "graphs", "a training step runs without graphs: " + failure.describe(error)
                )
            return result

        setattr(post_compile, _OURS, True)
        owner.post_compile = post_compile
