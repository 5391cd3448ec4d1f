"""What is special about the calls of a compiled forward, and of its backward.

The forward's graph hands out results where they are, and copies of those that the program was seen
to keep. The backward's graph is the last to read what was saved, and uses its memory for other
values then.
"""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

from rocm_autopatch.graphs import capture, readers, record, soundness
from rocm_autopatch.graphs.borrowed_outputs import (
    AliasedInput,
    BorrowedOutputs,
    DonatedInputs,
    are_hooked,
)
from rocm_autopatch.graphs.buffers import CopiedInputs, dense_part, overlaps_itself
from rocm_autopatch.graphs.calls import CallStrategy, GraphedCall, GraphOptions
from rocm_autopatch.graphs.graph_cache import GraphCache
from rocm_autopatch.graphs.layout import has_memory, place_of, storage_key
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.graphs.pytrees import TENSORS, SignatureLookup, signature_of
from rocm_autopatch.graphs.refusal import CaptureBusy, Refused
from rocm_autopatch.graphs.states import CapturedState, ObservedState, SignatureEntry, State

# Each forward keeps the memory of what it saves. Layers that share their code share these graphs.
_LIMIT = 64
_WARMUP = 2
# From so many bytes on, the copy of a backward's argument serves its graph as memory, once it is
# read.
_LARGE = 1 << 20
NO_FORWARD = "its forward ran without a graph"
HOOKED = "hooks get what it saves, and a number is on the device in a replay only"
# Forwards that were called, and whose graph has no backward yet.
_waiting: weakref.WeakSet[ForwardPass] = weakref.WeakSet()
_lock = threading.RLock()


class SharedRegion(Protocol):
    """What a forward and its backward share: ``training.Region``."""

    name: str
    origin: str
    pools: capture.CapturePools
    recompile: Callable[[Hashable], bool] | None
    cuts: Sequence[str]

    def find_memory(self) -> GraphMemory:
        """What its forwards write to."""

    def add_forward(self, captured: CapturedState) -> None:
        """A forward was captured."""

    def gradients(self) -> Iterator[torch.Tensor]:
        """The gradients that the region's weights have."""


class _RegionPass(CallStrategy):
    """Calls of a compiled function that takes one list and empties it."""

    # What its graphs read may be in memory that they share.
    copies_back = False
    trains = True

    def __init__(
        self,
        region: SharedRegion,
        name: str,
        compiled: Callable[[list[object]], object],
        fixed: Sequence[int],
    ) -> None:
        super().__init__(lambda _, leaves: compiled(leaves))
        self.region, self._compiled = region, compiled
        #: Of its results, those that the program was seen to keep. No new graph lends them.
        self.kept: set[int] = set()
        self.recompile = region.recompile
        self._name = name
        self._signatures = SignatureLookup()
        self.fixed = frozenset(fixed)
        # For which of these the indices of the others are known, among how many, and they.
        self._free: tuple[frozenset[int], int, list[int]] = (frozenset(), -1, [])
        self._is_alone = readers.are_counted()
        # The cache refers to this object, and has to go by its count of references: results that
        # lie in the memory of its graphs are looked at then.
        self._cache: weakref.ref[GraphCache] | None = None

    def make_cache(self) -> GraphCache:
        """The graphs of these calls. The caller keeps them."""
        # A graph is verified by one more plain call. Options.clone is about other results.
        check = soundness.checks_by_default()
        options = GraphOptions(limit=_LIMIT, warmup=_WARMUP, clone=False, verify=True, check=check)
        cache = GraphCache(
            *(self, self._name, self.region.origin, options, self.region.pools),
            indices=sorted(self.fixed),
        )
        record.record_cuts(cache.row, self.region.cuts)
        self._cache = weakref.ref(cache)
        return cache

    @property
    def cache(self) -> GraphCache:
        """What :meth:`make_cache` has returned, as long as somebody keeps it."""
        cache = None if self._cache is None else self._cache()
        assert cache is not None
        return cache

    def states(self) -> list[State]:
        """What is known of the signatures."""
        cache = None if self._cache is None else self._cache()
        return cache.states() if cache is not None else []

    def run_list(self, inputs: list[object], unfit: str | None = None) -> Any:
        """The result for *inputs*, without a graph if they are *unfit*. The list is empty then."""
        try:
            if unfit:
                raise Refused(unfit)
            if capture.is_capturing():
                raise Refused("another capture is under way and records these kernels")
            free = self._free_indices(len(inputs))
            key = self._signatures.find_signature([inputs[index] for index in free])
        except Refused as refused:
            record.count_plain_call(self.cache.row, str(refused))
            run = functools.partial(self.call_plainly, None, inputs)
            return self.run_without_graph(GraphedCall(None, inputs), run)
        if self._is_alone and not readers.are_counted():
            self._is_alone = False
            self.cache.clear()
        leaves = list(inputs)
        inputs.clear()
        return self.cache.run_call(key, None, leaves)

    def _free_indices(self, count: int) -> list[int]:
        """The indices of what is not fixed, among so many."""
        fixed, known, found = self._free
        if fixed is not self.fixed or known != count:
            found = [index for index in range(count) if index not in self.fixed]
            self._free = self.fixed, count, found
        return found

    def run_as_first_call(self, call: GraphedCall, run: Callable[[], object]) -> object:
        pools = self.region.pools
        return pools.run_as_first_call(call.device, run, self.user_of_memory(call))

    def find_aliased(self, leaves: list[Any]) -> list[tuple[int, AliasedInput]]:
        owners = self.region.pools.owners
        return [
            (index, AliasedInput(leaf, owner))
            for index, leaf in enumerate(leaves)
            if type(leaf) in TENSORS and index not in self.fixed
            if (owner := owners.get(storage_key(leaf))) is not None
        ]

    def own_outputs(self, captured: CapturedState) -> None:
        outputs = captured.outputs
        assert isinstance(outputs, BorrowedOutputs)
        outputs.count_owners(captured.inputs.own_tensors())
        outputs.own(self.region.pools.owners, captured.memory, captured.order, captured.graph)
        if captured.donated and not captured.memory.awaits_backwards(captured.donated.results):
            # A plain call that verifies the graph can have this memory, too.
            memories = outputs.passing_memories()
            outputs.let_go(memories, [], captured.observed.pool, captured.order)


class ForwardPass(_RegionPass):
    """Calls of a compiled forward."""

    # What one call saves is in use until its backward.
    goes_beside = True

    def __init__(
        self, region: SharedRegion, compiled: Callable[[list[object]], object], fixed: Sequence[int]
    ) -> None:
        super().__init__(region, region.name, compiled, fixed)
        self.has_backward = False
        #: What torch calls the compile that has made it.
        self.compile_id: object = None
        #: The graphs of its backward, once that was called. It may be compiled more than once.
        self.backward_graphs: weakref.WeakSet[GraphCache] = weakref.WeakSet()
        #: The results that the program gets.
        self.shown: set[int] = set()
        #: Those that autograd keeps, and nobody else. None is a result of an autograd function.
        self.same: set[int] = set()
        #: Why neither it nor its backward may have graphs.
        self.unfit: str | None = None
        #: The addresses of what replays save for the backward, and of all that stays where it is.
        #: Before there is a graph, those of the last call.
        self.saved: set[int] = set()
        self.places: set[int] = set()

    def run_list(self, inputs: list[object], unfit: str | None = None) -> Any:
        unfit = unfit or self.unfit
        if not unfit and are_hooked() and any(map(_has_number_on_host, self.states())):
            # A checkpoint compares the device of what is saved with that of the recomputed value.
            unfit = HOOKED
        return super().run_list(inputs, unfit)

    def note_saved(self, addresses: set[int], fixed: set[int] | None = None) -> None:
        """Note where the last plain call has saved what it saves, unless there is a graph.

        *fixed* are the addresses of what stays where it is, if they are known. What others capture
        takes none of our locks.
        """
        if not self.has_graphs and not capture.is_capturing():
            with self.region.pools.lock:
                # Another thread may have captured it meanwhile.
                if not self.has_graphs:
                    self.saved = addresses
                    self.places = self.places if fixed is None else addresses | fixed

    def places_of_numbers(self) -> dict[int, torch.device]:
        """The numbers that replays save on the device: where other calls save them, by address."""
        with self.region.pools.lock:
            return {
                one.outputs.leaves[index].data_ptr(): device
                for one in self.states()
                if isinstance(one, CapturedState)
                for index, device in one.observed.hosted.items()
            }

    def may_move_result(self, index: int) -> bool:
        # A backward that is called without a graph gets it where it was.
        return index not in self.shown

    def make_outputs(
        self,
        result: Sequence[Any],
        inputs: CopiedInputs,
        places: dict[int, torch.Tensor],
        clone: bool,
        device: torch.device,
        seen: SignatureEntry,
    ) -> BorrowedOutputs:
        # What is an argument's memory stays that.
        taken = {storage_key(tensor) for tensor in places.values()}
        lent = _find_alone(result) - seen.kept - self.kept if self._is_alone else set()
        copied = {
            index
            for index in self.shown - lent
            if type(result[index]) not in TENSORS or storage_key(result[index]) not in taken
        }
        outputs = BorrowedOutputs(
            *(result, copied, self.shown, self.same, self.kept, places, tuple, device)
        )
        outputs.for_backward = True
        return outputs

    def find_memory(self, pools: capture.CapturePools) -> GraphMemory:
        return self.region.find_memory()

    def note_capture(self, signature: SignatureEntry, captured: CapturedState) -> None:
        if not self.has_graphs:
            self.saved, self.places = set(), set()
        super().note_capture(signature, captured)
        self.region.add_forward(captured)
        outputs = captured.outputs
        assert isinstance(outputs, BorrowedOutputs)
        # What other graphs have written may be saved where it is.
        outputs.places.update(place for index, place in outputs.passed if index not in self.fixed)
        self.saved |= outputs.places
        self.places |= outputs.places.union(one for one in signature.places if one)

    def note_drop(self, captured: CapturedState) -> None:
        self.region.pools.end_step(captured.memory)
        for backward in [*self.backward_graphs]:
            # Nobody saves anything there any more.
            assert isinstance(captured.outputs, BorrowedOutputs)
            backward.drop_readers(captured.outputs)

    def find_results(self, saved: set[int]) -> BorrowedOutputs | None:
        """The results of the graph that has *saved* what lies at these addresses, if it is here."""
        for state in self.states():
            outputs = state.outputs if isinstance(state, CapturedState) else None
            if isinstance(outputs, BorrowedOutputs) and saved <= outputs.places:
                return outputs
        return None


class BackwardPass(_RegionPass):
    """Calls of the compiled backward of *forward*, which has saved the leaves at *saved*.

    *slots* are the indices of all that any forward gives it, in new torches but of arguments: a
    hook of saved tensors may give others there.
    """

    misplaced = NO_FORWARD

    def __init__(
        self,
        forward: ForwardPass,
        compiled: Callable[[list[object]], object],
        fixed: Sequence[int],
        saved: Sequence[int],
        slots: Sequence[int],
    ) -> None:
        region = forward.region
        super().__init__(region, f"backward of {region.name}", compiled, fixed)
        self.forward, self._of_weights = forward, forward.fixed
        #: The indices of what the forward has saved.
        self.saved = list(saved)
        self._slots = slots
        # Whether graphs may overwrite it.
        self._overwrites = True
        # The signature of the last call until then, and of its leaves that are not fixed.
        self._last: tuple[Hashable, Hashable] = (None, None)
        # The numbers that a forward saves on the host if it is no replay, and where, by index.
        self._numbers: dict[int, torch.device] = {}

    def make_cache(self) -> GraphCache:
        cache = super().make_cache()
        # As long as the forward has no graph, what it saves is somewhere else in each call.
        cache.may_capture = False
        self.forward.backward_graphs.add(cache)
        return cache

    def note_forward(
        self, saved: Sequence[int], fixed: Sequence[int], inputs: list[object]
    ) -> None:
        """The forward of the next call, with *inputs*, has saved these, and these are fixed.

        What the last call has shown holds for this one, if it is like it.
        """
        with self.region.pools.lock:
            ready = self.cache.may_capture = self.forward.has_graphs
            self._numbers.update(self._find_saved_numbers(saved, inputs))
            there = [None if index in self._numbers else one for index, one in enumerate(inputs)]
            whole, key = self._last
            if ready or (self.saved, self.fixed) != (saved, frozenset(fixed)):
                self.cache.fix_indices(fixed, key if whole == signature_of(there) else None)
                self.saved, self.fixed = list(saved), frozenset(fixed)
            free = [one for index, one in enumerate(inputs) if index not in self.fixed]
            self._last = signature_of(there), signature_of(free)

    def _find_saved_numbers(
        self, saved: Sequence[int], inputs: list[Any]
    ) -> dict[int, torch.device]:
        """Those that are elsewhere than the tensors, or would be without a graph, and where."""
        devices = {one.device for one in inputs if type(one) in TENSORS and one.dim()}
        numbers: dict[int, torch.Tensor] = {
            index: inputs[index] for index in saved if not inputs[index].dim()
        }
        moved = self.forward.places_of_numbers()
        where = {index: moved.get(one.data_ptr(), one.device) for index, one in numbers.items()}
        return {index: device for index, device in where.items() if {device} != devices}

    def are_placed(self, leaves: list[object]) -> bool:
        # Who calls it has looked, as long as there is no graph that saves values.
        return not self.forward.has_graphs or self.are_saved(leaves)

    def are_saved(self, leaves: list[object]) -> bool:
        """Whether the values that it reads are where the forward's graphs save them."""
        # There may be hundreds: all loops are in C.
        saved: Any = map(leaves.__getitem__, self.saved)
        return self.forward.saved.issuperset(map(torch.Tensor.data_ptr, saved))

    def find_memory(self, pools: capture.CapturePools) -> GraphMemory:
        return pools.gradients

    def find_other_memory(self, memory: GraphMemory) -> GraphMemory:
        # All that overwrite nothing a forward has saved share it, if they can.
        gradients = self.region.pools.gradients
        return GraphMemory() if memory is gradients else gradients

    def note_capture(self, signature: SignatureEntry, captured: CapturedState) -> None:
        super().note_capture(signature, captured)
        self.region.pools.end_step()

    def find_movable(self) -> set[int]:
        return {storage_key(one) for one in self.region.gradients() if has_memory(one)}

    def indices_on_host(self) -> Collection[int]:
        return self._numbers

    def call_plainly(self, structure: Hashable, leaves: list[Any]) -> object:
        # In a capture they are on the device. Any other call reads them on the host.
        for index, device in [*self._numbers.items()]:
            leaves[index] = leaves[index].to(device)
        return self._compiled(leaves)

    def call_before_capture(self, call: GraphedCall, leaves: list[object]) -> object:
        given = list(leaves)
        # What was saved is freed as soon as it has been read.
        leaves.clear()
        for index in self.saved:
            call.leaves[index] = None
        return super().call_before_capture(call, given)

    def find_observable(self, indices: list[int]) -> list[int]:
        # A compiled backward may write to what is saved for it alone.
        return [index for index in indices if index not in self.saved]

    def find_donated(self, leaves: list[Any]) -> DonatedInputs | None:
        results = self.forward.find_results({leaves[index].data_ptr() for index in self.saved})
        # Memory that is free already would serve this capture for other values from the beginning.
        if not self._overwrites or results is None or results.gone != math.inf:
            return None
        # What the program has resized is its own, and others may lie there now.
        if results.resized():
            return None
        return DonatedInputs(results, leaves)

    def find_spoilt(self, leaves: list[Any], donated: DonatedInputs | None) -> set[int]:
        # A call without a graph may write to what was given to it to be read last, but to nothing
        # that the program has got. A hook may give that for another value.
        given = {
            index: leaves[index].data_ptr()
            for index in self._slots
            if index not in self.fixed and type(leaves[index]) in TENSORS
        }
        number = Counter(given.values())
        shown = donated.results.saved_and_shown() if donated else ()
        indices = {at for at, place in given.items() if place not in shown or number[place] > 1}
        indices.update(self.saved, donated.indices if donated else ())
        # What the forward was given, and has saved, no backward with a graph overwrites.
        passed = {address for _, address in donated.results.passed} if donated else set()
        return {index for index in indices if leaves[index].data_ptr() not in passed}

    def find_inside(self, leaves: list[Any]) -> set[int]:
        return {
            index
            for index, one in enumerate(leaves)
            if type(one) in TENSORS
            and one.is_floating_point()
            and not overlaps_itself(dense_part(one))
            if one.untyped_storage().nbytes() >= _LARGE
        }

    def make_outputs(
        self,
        result: Sequence[Any],
        inputs: CopiedInputs,
        places: dict[int, torch.Tensor],
        clone: bool,
        device: torch.device,
        seen: SignatureEntry,
    ) -> BorrowedOutputs:
        # Gradients are in the order of the forward's inputs. Those of weights stay where they are:
        # the next backward finds them as ``.grad``, or nobody has them any more. What the forward
        # has saved may serve as a result's memory, too: that result is copied.
        taken = {storage_key(tensor) for tensor in places.values()}
        kept = {
            index
            for index in (self._of_weights | _find_alone(result)) - seen.kept - self.kept
            if self._is_alone and index < len(result) and type(result[index]) in TENSORS
            if storage_key(result[index]) not in taken
        }
        all_ = set(range(len(result)))
        holders = functools.partial(_find_gradients, weakref.ref(self.region))
        return BorrowedOutputs(result, all_ - kept, all_, set(), self.kept, places, holders, device)

    def retries(self, error: Exception) -> bool:
        # It is tried once more, in other memory.
        retried = self._overwrites and not isinstance(error, CaptureBusy)
        self._overwrites = self._overwrites and not retried
        return retried

    def is_in_the_way(self, captured: CapturedState) -> bool:
        # The program keeps gradients over the next forward, which needs their memory.
        outputs = captured.outputs
        assert isinstance(outputs, BorrowedOutputs)
        if not outputs.in_the_way:
            return False
        self._overwrites = False
        return True


def _has_number_on_host(state: State) -> bool:
    observed = state.observed if isinstance(state, CapturedState) else state
    return isinstance(observed, ObservedState) and bool(observed.hosted)


def await_backward(forward: ForwardPass) -> None:
    """A forward has results now, and its backward is not known."""
    with _lock:
        _waiting.add(forward)


def end_waiting(forward: ForwardPass) -> None:
    """The backward of a forward is known."""
    forward.has_backward = True
    with _lock:
        _waiting.discard(forward)


def find_waiting() -> list[ForwardPass]:
    """The forwards whose backward is not known."""
    with _lock:
        return [*_waiting]


def are_waiting() -> bool:
    """Whether there are any. Takes no lock."""
    return bool(_waiting)


def _find_alone(result: Sequence[Any]) -> set[int]:
    """The indices of tensors that share their memory with no part or view of it."""
    tensors = {index: one for index, one in enumerate(result) if type(one) in TENSORS}
    views: dict[int, set[tuple[object, ...]]] = {}
    for one in tensors.values():
        views.setdefault(storage_key(one), set()).add((one.dtype, *place_of(one)))
    return {index for index, one in tensors.items() if len(views[storage_key(one)]) == 1}


def _find_gradients(region: weakref.ref[SharedRegion]) -> Iterable[torch.Tensor]:
    """The gradients of a region that may be gone."""
    found = region()
    return found.gradients() if found else ()
