"""The two steps by which calls with one signature get a graph: one is observed, one is captured.

Both are made of plain calls of the program, so nothing is called that the program has not called.
What a capture changes before it is certain is on an ``ExitStack`` from the moment it is changed.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from rocm_autopatch import failure
from rocm_autopatch.graphs import capture, host_backup, readers, soundness, write_back
from rocm_autopatch.graphs.buffers import CopiedInputs
from rocm_autopatch.graphs.calls import CallStrategy, GraphedCall, GraphOptions
from rocm_autopatch.graphs.captured_ops import CapturedOps, OpUse
from rocm_autopatch.graphs.host_backup import HostBackup
from rocm_autopatch.graphs.layout import has_memory, storage_key
from rocm_autopatch.graphs.memory import GraphMemory, end_first_calls
from rocm_autopatch.graphs.observation import ObservedCall
from rocm_autopatch.graphs.pytrees import CONSTANTS, TENSORS, describe_signature, tensors_of
from rocm_autopatch.graphs.refusal import CaptureBusy, CaptureDisturbed, Refused
from rocm_autopatch.graphs.states import (
    CapturedState,
    ObservedState,
    SignatureEntry,
    find_constants,
)
from rocm_autopatch.graphs.verification import ResultVerification
from rocm_autopatch.graphs.write_back import InPlaceWriteBack

# A result lies side by side with others if it has more than so many bytes, and less than such a
# part of all.
_LEAST, _PARTS = 1 << 20, 8
# If what a backward overwrites and gives has fewer bytes, it is called plainly before its capture.
_LITTLE = 10 << 20
UNSEEN = "its effects can't be observed: "
IN_POOL = "its graph would lie in a pool of torch.cuda.use_mem_pool: make the first calls outside"
_leaves = torch.utils._pytree.tree_leaves


class ObservationAttempt:
    """A plain call that is observed: :meth:`run` returns its result.

    Then there is *objection*, why no such call can be a graph, or *disturbance*, if that may have
    been another thread's doing, or *observed*. There is none of these if the call has compiled
    something: then the next call is observed.
    """

    def __init__(
        self,
        strategy: CallStrategy,
        options: GraphOptions,
        signature: SignatureEntry,
        call: GraphedCall,
    ):
        self._strategy, self._options = strategy, options
        self._signature, self._call = signature, call
        self.objection: str | None = None
        #: The op that the objection is to, if it is to one.
        self.blamed_op: OpUse | None = None
        self.disturbance: str | None = None
        self.observed: ObservedState | None = None

    def run(self, pools: capture.CapturePools) -> object:
        call, on_host = self._call, self._strategy.indices_on_host()
        self.objection, device = call.objection(on_host), call.device
        if self.objection or device is None:
            return self._strategy.call_plainly(call.structure, list(call.leaves))
        pool, real = pools.of(device), list(call.leaves)
        stay = {*self._signature.indices, *on_host}
        # By their number: the arguments, and what is at a fixed place, as they are called below.
        self._free = [
            index for index, leaf in enumerate(real) if type(leaf) in TENSORS and index not in stay
        ]
        self._observable = self._strategy.find_observable(self._signature.indices)
        fixed = [call.leaves[index] for index in self._observable]
        given = [real[index] for index in self._free]
        try:
            with capture.no_other():
                observation = ObservedCall(pool, fixed, given, self._options.verify)
            ops = CapturedOps()
        except RuntimeError as error:
            self.objection = f"{UNSEEN}{error}"
            return self._strategy.call_plainly(call.structure, real)
        compiled = capture.count_compiles()
        with ops:
            result = self._strategy.call_before_capture(call, real)
        try:
            with capture.no_other():
                self._conclude_attempt(
                    pool, observation, ops, result, capture.count_compiles() != compiled
                )
        except RuntimeError as error:
            self.objection = f"{UNSEEN}{error}"
        return result

    def _conclude_attempt(
        self,
        pool: capture.CapturePool,
        observation: ObservedCall,
        ops: CapturedOps,
        result: object,
        compiled: bool,
    ) -> None:
        changed = observation.changed_tensors()
        self.objection = (
            observation.find_objection() or ops.objection or _objection_to_constants(result)
        )
        if self.objection:
            self.blamed_op = ops.blamed_op if self.objection == ops.objection else None
            return
        changes = [self._free[number] for number in observation.written_arguments()]
        self.objection = _objection_to_changes(self._strategy, self._signature, changes, self._call)
        if self.objection:
            return
        self.disturbance = observation.find_objection_beside()
        if compiled or self.disturbance:
            return
        owned = set(map(storage_key, tensors_of([*self._call.leaves, *_leaves(result)])))
        others = (one.cdata for one, _ in ops.borrowed(owned, pool.kind))
        self.observed = ObservedState(
            pool,
            is_pure=not changed and ops.written.isdisjoint(others),
            has_drawn=observation.has_drawn(),
            written=[self._observable[number] for number in changed],
            changes=changes,
            constants=find_constants(result),
            hosted=_numbers_elsewhere(result, pool.device),
            result_bytes=sum(_sizes_of(_leaves(result)).values()),
            side_by_side=_size_side_by_side(result, self._call.leaves),
        )


class CaptureAttempt:
    """A call that is captured. :meth:`run` returns its graph.

    *memory* is what the graph writes to, if it does not overwrite what another one has handed out.
    """

    def __init__(
        self,
        strategy: CallStrategy,
        options: GraphOptions,
        memory: GraphMemory,
        signature: SignatureEntry,
        observed: ObservedState,
        call: GraphedCall,
    ) -> None:
        self._strategy, self._options, self._memory = strategy, options, memory
        self._signature, self._call = signature, call
        #: What is known now: the capture may have shown more.
        self.observed = observed
        #: Whether the first replay was the call itself.
        self.is_replayed = False
        self._pool = observed.pool
        self._changes = [call.leaves[index] for index in observed.changes]
        self._verification: ResultVerification | None = None
        self._raised: list[Exception] = []
        self._blamed: list[OpUse | None] = []

    def run(self) -> CapturedState:
        """Raises what stands in the way; then nothing is changed."""
        try:
            with ExitStack() as undo:
                verify = self._prepare_places(undo)
                captured = self._verify_replay(self._record_graph(), verify, undo)
                undo.pop_all()
        finally:
            # It holds memory, and this object.
            verified, self._verification = self._verification is not None, None
            end_first_calls()
        return self._finished_capture(captured, verified)

    @property
    def blamed_op(self) -> OpUse | None:
        """The op that has raised an exception in the capture, if one has."""
        return self._blamed[0] if self._blamed else None

    def find_error_of_program(self, error: Exception) -> Exception | None:
        """The error to raise if it is the program's own, and not that of a capture."""
        # Torch and the runtimes raise a RuntimeError where a function can't be captured.
        own = [one for one in self._raised if not isinstance(one, RuntimeError)]
        # Their tracebacks have frames that have this object.
        self._raised.clear()
        return own[0] if own else error if failure.programs_own(error) else None

    def _prepare_places(self, undo: ExitStack) -> bool:
        """Find where everything lies. Returns whether the graph is compared with a plain call."""
        call, strategy, pool = self._call, self._strategy, self._pool
        if not pool.has_own_memory():
            raise CaptureBusy(IN_POOL)
        if self._changes and self._shares_memory():
            raise CaptureBusy(write_back.SHARED)
        self._started, self._before = time.perf_counter(), pool.memory()
        self._choose_memory()
        pool.wait_for_previous_replay()
        copies = self._signature.copies_arguments
        self._aliased = [] if copies else strategy.find_aliased(call.leaves)
        stay = self._fixed_indices()
        inside = strategy.find_inside(call.leaves) if self._donated else None
        self._inputs = CopiedInputs(call.leaves, stay, inside)
        self._extents = _memory_extents(call.leaves[index] for index in self.observed.written)
        overlap = self._inputs.within(call.leaves, self._extents)
        if overlap:
            raise CaptureBusy(overlap)
        # Such a call writes to no weight or buffer. So it does nothing that the call itself does
        # not do again, if it also draws the same random numbers.
        verify = self._options.verify and self.observed.is_pure
        spoilt = [call.leaves[index] for index in strategy.find_spoilt(call.leaves, self._donated)]
        verify = verify and host_backup.fits_on_host(spoilt)
        size = sum(_sizes_of(spoilt).values()) + self.observed.result_bytes
        if verify and (self._donated is None or size < _LITTLE):
            self._call_before(undo)
        self._inputs.copy(call.leaves)
        return verify

    def _choose_memory(self) -> None:
        """Choose what the graph writes to. Raises CaptureBusy if what it overwrites is in use."""
        signature, strategy = self._signature, self._strategy
        self._donated = donated = strategy.find_donated(self._call.leaves)
        self._memory = donated.results.memory if donated else self._memory
        try:
            self._take_order()
        except CaptureBusy:
            # A backward needs much more memory if it overwrites nothing, so it is tried twice.
            if not (strategy.goes_beside or (strategy.trains and signature.busy)):
                raise
            self._donated, self._memory = None, strategy.find_other_memory(self._memory)
            self._take_order()

    def _take_order(self) -> None:
        """Be the next capture in the memory. Raises CaptureBusy if what it overwrites is in use."""
        self._order = self._memory.order()
        held = self._memory.busy(self._order)
        if held:
            raise CaptureBusy(held)

    def _fixed_indices(self) -> list[int]:
        return [*self._signature.indices, *(index for index, _ in self._aliased)]

    def _shares_memory(self) -> bool:
        leaves = self._call.leaves
        fixed = tensors_of(leaves[index] for index in self._signature.indices)
        return write_back.shares_memory(self.observed.changes, leaves, map(storage_key, fixed))

    def _call_before(self, undo: ExitStack) -> None:
        """Make the plain call that the graph is compared with, while there is none."""
        changed = self._changes + find_uncounted(self._signature, self.observed, self._call)
        leaves = self._call.leaves
        kept = HostBackup(leaves, self._strategy.find_spoilt(leaves, self._donated))
        self._compare_with(self._call_again, remember_contents(changed, kept), undo)
        # The capture can't use what the call has needed. So the device gets it back.
        end_first_calls()
        capture.give_back()

    def _call_again(self, prepare: Callable[[], None]) -> list[object]:
        run = functools.partial(self._strategy.call_again, self._call, prepare)
        return [self._strategy.run_as_first_call(self._call, run), self._changes]

    def _compare_with(
        self,
        call: Callable[[Callable[[], None]], object],
        put_back: Callable[[], None],
        undo: ExitStack,
    ) -> None:
        has_drawn = self.observed.has_drawn
        self._verification = ResultVerification(self._pool, has_drawn, call, put_back)
        undo.callback(self._verification.draw_again)

    def _record_graph(self) -> CapturedState:
        """Capture the call, which executes nothing."""
        call, inputs, donated = self._call, self._inputs, self._donated
        compiled = capture.count_compiles()
        ops = CapturedOps(stops=True)
        enter = functools.partial(inputs.enter, self._pool.unowned)
        versions = inputs.versions()
        # Another thread may have captured here since the plain call began.
        self._take_order()
        if donated:
            donated.let_go(call.leaves, self._pool, self._order)
        owned = set(map(storage_key, [*inputs.tensors, *tensors_of(call.leaves)]))
        with capture.own_casts():
            # What it overwrites is room enough for its results.
            size = 0 if donated else self.observed.side_by_side
            function = self._noting_function(ops)
            graph, result = self._pool.capture(function, enter, self._memory, size)
        if self._memory.last_order != self._order:
            raise CaptureBusy("another thread captures in the same memory")
        if capture.count_compiles() != compiled:
            raise CaptureDisturbed(
                "something was compiled in the capture: more calls are needed before it"
            )
        self._check_changes(inputs.written(versions))
        self._check_result(result)
        owned.update(storage_key(one) for one in _leaves(result) if type(one) in TENSORS)
        borrowed = [reference for reference, _ in ops.borrowed(owned, self._pool.kind)]
        places = {index: call.leaves[index] for index in self._fixed_indices()}
        outputs = self._strategy.make_outputs(
            *(result, inputs, places, self._options.clone, self._pool.device),
            seen=self._signature,
        )
        del result
        back = None
        if self._changes:
            back = InPlaceWriteBack(self.observed.changes, inputs, tensors_of([*places.values()]))
        inputs.captured()
        captured = CapturedState(
            observed=self.observed,
            graph=graph,
            inputs=inputs,
            outputs=outputs,
            memory=self._memory,
            order=self._order,
            write_back=back,
            extents=self._extents,
            aliased=self._aliased,
            donated=donated,
            borrowed=borrowed,
        )
        self._strategy.own_outputs(captured)
        return captured

    def _noting_function(self, ops: CapturedOps) -> Callable[[list[object]], object]:
        """The function; *ops* notes what it executes, and this attempt what it raises."""
        # Not this attempt itself, which holds the leaves.
        function, structure = self._strategy.function, self._call.structure
        raised, blamed = self._raised, self._blamed

        def run(leaves: list[object]) -> object:
            with ops:
                try:
                    return function(structure, leaves)
                except Exception as error:
                    raised.append(error)
                    blamed.append(ops.blamed_op)
                    raise

        return run

    def _check_changes(self, written: set[int]) -> None:
        """Raise Refused, or CaptureBusy, if the call has changed more arguments than before."""
        more = written.difference(self.observed.changes) if self._strategy.copies_back else set()
        if not more:
            return
        changes = sorted(more.union(self.observed.changes))
        self.observed = replace(self.observed, changes=changes)
        why = _objection_to_changes(self._strategy, self._signature, changes, self._call)
        raise Refused(why) if why else CaptureBusy("it changes an argument, and did not before")

    def _check_result(self, result: object) -> None:
        """Raise Refused for a result that replays can't give."""
        if find_constants(result) != self.observed.constants:
            raise Refused("the result has a constant that differs from call to call")
        elsewhere = _numbers_elsewhere(result, self._pool.device)
        moved = set(self.observed.hosted).difference(elsewhere)
        if not all(map(self._strategy.may_move_result, moved)):
            raise Refused("a number of the result is not on the device, except in a capture")

    def _verify_replay(
        self, captured: CapturedState, verify: bool, undo: ExitStack
    ) -> CapturedState:
        """Compare a replay with a plain call. Raises Refused if they differ.

        Returns the graph. It is a new one where the memory was needed for further plain calls.
        """
        call, donated = self._call, captured.donated
        if donated:
            if verify and self._verification is None:
                kept = HostBackup(call.leaves, self._strategy.find_spoilt(call.leaves, donated))
                again = functools.partial(self._call_beside, kept)
                self._compare_with(again, kept.restore, undo)
            captured.inputs.copy(call.leaves)
        verification = self._verification
        if verification is None:
            return captured
        # Not before: until a replay, each plain call puts back what it changes. What was let go for
        # a capture that fails may be another thread's then.
        undo.callback(verification.restore)
        called_again = False
        while verification.needs_calls(self._replayed_result(captured)):
            if donated:
                # A graph that overwrites what it reads can't be captured again.
                verification.call_again()
                called_again = True
                break
            captured = self._capture_again(captured, verification)
        verification.conclude()
        # What a replay overwrites is not there for another one: it is the call itself. Torch's own
        # backward may write over what was saved, too.
        self.is_replayed = bool(self._strategy.find_spoilt(call.leaves, donated))
        if not self.is_replayed or called_again:
            verification.draw_again()
        if self.is_replayed and called_again:
            captured.inputs.copy(call.leaves)
            captured.graph()
        return captured

    def _replayed_result(self, captured: CapturedState) -> list[object]:
        """What a replay gives: what the caller is handed, and not only what the graph writes."""
        captured.graph()
        back = captured.write_back.targets if captured.write_back else []
        return [captured.outputs.take(self._call.leaves), back]

    def _capture_again(
        self, captured: CapturedState, verification: ResultVerification
    ) -> CapturedState:
        """The same graph anew, after further plain calls. There may be no room for both at once."""
        with self._pool.idle():
            captured.release()
        capture.give_back()
        verification.call_again()
        verification.draw_again()
        end_first_calls()
        capture.give_back()
        leaves = self._call.leaves
        self._inputs = CopiedInputs(leaves, self._fixed_indices())
        self._inputs.copy(leaves)
        return self._record_graph()

    def _call_beside(self, kept: HostBackup, prepare: Callable[[], None]) -> list[object]:
        """A plain call of a backward whose graph overwrites what it reads.

        It lies in the graph's memory, where that is free, so it needs less than a call before the
        capture, when all that was saved is in use. But what it adds to this memory stays in it.
        """

        def run() -> object:
            prepare()
            return self._strategy.call_plainly(self._call.structure, kept.copy_leaves())

        return [self._pool.run_beside_graphs(run, self._memory), []]

    def _finished_capture(self, captured: CapturedState, verified: bool) -> CapturedState:
        """The graph, with its row of the report."""
        captured.outputs.count_owners(captured.inputs.own_tensors())
        if captured.outputs.lends:
            self._pool.lends = True
            readers.watch_readers(captured.outputs, self._pool)
        fixed = frozenset(self._signature.indices)
        shown = [leaf for index, leaf in enumerate(self._call.leaves) if index not in fixed]
        captured.row = {
            "signature": describe_signature(shown),
            "replays": 0,
            "capture_seconds": round(time.perf_counter() - self._started, 4),
            "memory_before": self._before,
            "memory_after": self._pool.memory(),
            "verified": verified,
            "checks": 0,
        }
        # A plain call must have no effect but its result.
        spoilt = self._strategy.find_spoilt(self._call.leaves, captured.donated)
        if self._options.check and self.observed.is_pure and not spoilt:
            captured.next_check = soundness.next_check(1)
            captured.structure = self._call.structure
        return captured


def remember_contents(
    tensors: list[torch.Tensor], kept: HostBackup | None = None
) -> Callable[[], None]:
    """What undoes all that a plain call changes of *tensors*, and of what was *kept*."""
    contents = [one.clone() for one in tensors]

    def put_back() -> None:
        for tensor, content in zip(tensors, contents):
            tensor.copy_(content)
        if kept is not None:
            kept.restore()

    return put_back


def find_uncounted(
    signature: SignatureEntry, observed: ObservedState, call: GraphedCall
) -> list[torch.Tensor]:
    """The arguments whose writes torch does not count: a write may not have been seen."""
    if not torch.is_inference_mode_enabled():
        return []
    stay = {*signature.indices, *observed.changes}
    return [
        leaf
        for index, leaf in enumerate(call.leaves)
        if type(leaf) in TENSORS and index not in stay and leaf.is_inference()
    ]


def _objection_to_changes(
    strategy: CallStrategy, signature: SignatureEntry, changes: Sequence[int], call: GraphedCall
) -> str | None:
    """Why what a call has changed of its arguments can't be copied back; None if it can."""
    if not changes:
        return None
    fixed = [call.leaves[index] for index in signature.indices]
    why: str | None = "graphs of training steps don't copy it back"
    if strategy.copies_back:
        why = write_back.find_objection(changes, call.leaves, tensors_of(fixed))
    shape = list(call.leaves[changes[0]].shape)
    text = "it changes an argument in place (shape %s), and %s: make this tensor a buffer of "
    return (text + "the module, or return the new one") % (shape, why) if why else None


def _size_side_by_side(result: object, leaves: Sequence[object]) -> int:
    """The bytes of new results, in no argument's memory, for which a capture takes one piece.

    torch's allocator takes a segment from the device for each value of 10 MiB or more, and what is
    free in two of them is never one. A backward frees what it has read, so it would find room for
    small values only. What is large finds a place by itself. What is at most 1 MiB lies in other
    segments.
    """
    given = _sizes_of(leaves)
    new = [size for memory, size in _sizes_of(_leaves(result)).items() if memory not in given]
    return sum(size for size in new if _LEAST < size < sum(new) / _PARTS)


def _sizes_of(leaves: Iterable[object]) -> dict[int, int]:
    """The bytes of each memory in which tensors among the leaves lie."""
    return {
        storage_key(one): one.untyped_storage().nbytes()
        for one in tensors_of(leaves)
        if has_memory(one)
    }


def _objection_to_constants(result: object) -> str | None:
    """Why all replays can't return what in a result is not a tensor; None if they can.

    That may be a container which pytree does not know, or something with a state.
    """
    for kind in map(type, _leaves(result)):
        if kind not in CONSTANTS and not issubclass(kind, torch.Tensor):
            name = f"{kind.__module__}.{kind.__qualname__}"
            return f"the result has a {name}, and each replay would return the same one"
    return None


def _memory_extents(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Where the memories of tensors begin and end."""
    memories = (tensor.untyped_storage() for tensor in tensors)
    return sorted({(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in memories})


def _numbers_elsewhere(result: object, device: torch.device) -> dict[int, torch.device]:
    """The tensors of a result without a dimension that are on another device, by their index."""
    return {
        index: leaf.device
        for index, leaf in enumerate(_leaves(result))
        if type(leaf) in TENSORS and not leaf.dim() and leaf.device != device
    }
