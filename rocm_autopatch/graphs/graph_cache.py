"""The graphs of one callable: which calls have one, and when they are captured.

Each call executes the function exactly once, either the function itself or a replay. So state in
tensors, such as a cache, advances as it does without graphs, and there are no hidden calls for a
warm-up. The first calls of a signature are plain calls. The last of them is observed. The next call
is captured, which executes nothing, and then replayed. ``states.py`` has the states.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

import torch

from rocm_autopatch import startup
from rocm_autopatch.graphs import capture, captured_ops, readers, record, soundness, write_back
from rocm_autopatch.graphs.attempts import (
    CaptureAttempt,
    ObservationAttempt,
    find_uncounted,
    remember_contents,
)
from rocm_autopatch.graphs.borrowed_outputs import AliasedInput, BorrowedOutputs
from rocm_autopatch.graphs.buffers import RESIZED, SAVED
from rocm_autopatch.graphs.calls import CallStrategy, GraphedCall, GraphOptions
from rocm_autopatch.graphs.eviction import choose_evicted, choose_forgotten
from rocm_autopatch.graphs.layout import same_places, storage_key
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.graphs.pytrees import describe_signature, tensors_of
from rocm_autopatch.graphs.refusal import (
    CaptureBusy,
    Refused,
    explain_failure,
    is_illegal,
    may_pass,
)
from rocm_autopatch.graphs.states import (
    CapturedState,
    ObservedState,
    RejectedState,
    SignatureEntry,
    State,
    WarmingState,
    has_graph,
)
from rocm_autopatch.graphs.verification import ResultVerification

# How often a capture is tried if something compiles in it, and how often a call is observed, if
# what stands in the way may be another thread's. After that it would always be so.
_TRIES = 3
# How many graphs may be left behind before no more are captured.
_LEFT = 8
# At so many other places an argument was changed before it is copied there and back.
_MOVES = 2
# How many calls in a row may find a graph's results in use, before it is captured elsewhere.
CALLS_IN_USE = 32
# So many calls that find a graph's own results in use are plain ones. Then there is one more graph.
CALLS_BEFORE_BESIDE = 1
# How many graphs one signature may have beside its first one.
_BESIDE = 7
MOVING = "its weights, or what it changes in place, are at new addresses in nearly each call"
ELSEWHERE = "an argument is not where a graph before it writes it, and that place is in use"
BORROWED = "a tensor is gone that its graph reads, and that no argument or module has"
WARMING = "the first calls of a signature run without a graph"


class BesideKey(NamedTuple):
    """The key of calls that find the results of another graph of their signature in use."""

    key: Hashable
    number: int


# What a cache knows a signature by: its key, and the places of its leaves.
_Whole = tuple[Hashable, tuple[Optional[int], ...]]


def _one_by_one(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)


# Make autograd count a write to each tensor of a list. Torch 2.4 takes one tensor at a time.
_count_writes: Callable[[list[torch.Tensor]], None] = (
    torch.autograd.graph.increment_version
    if startup.release(torch.__version__) >= (2, 5)
    else _one_by_one
)


class GraphCache:
    """The graphs of one callable, which *strategy* knows.

    *indices* are the indices of leaves at a fixed place, such as a compiled model's weights.
    *changed* are those of the indices that calls change in place, and that are no weights. *row* is
    their row of the record, if they share one.
    """

    def __init__(
        self,
        strategy: CallStrategy,
        name: str,
        origin: str,
        options: GraphOptions,
        pools: capture.CapturePools,
        indices: Sequence[int] = (),
        changed: Iterable[int] = (),
        row: record.CallableRow | None = None,
    ) -> None:
        self.strategy, self.options = strategy, options
        self.row = record.new_row(name, origin) if row is None else row
        self._pools, self.lock = pools, pools.lock
        # The memory of each capture, and its number there.
        self._orders: list[tuple[GraphMemory, int]] = []
        # Its results may be free when it is gone, and nobody would look at them any more.
        weakref.finalize(self, _abandon_results, self._orders).atexit = False
        self._indices = list(indices)
        self._changed = frozenset(changed)
        #: Whether captures may begin.
        self.may_capture = True
        # What was observed before other leaves became fixed.
        self._known: SignatureEntry | None = None
        # The last call's, by key.
        self._latest: dict[Hashable, SignatureEntry] = {}
        #: All of them, by key and places.
        self.signatures: dict[_Whole, SignatureEntry] = {}
        # The key and the signature of the last call with a graph.
        self._recent: tuple[Hashable, SignatureEntry | None] = (None, None)
        # By a signature that with the same key whose call has followed: layers that share their
        # code are called in turn.
        self._following: dict[SignatureEntry | None, SignatureEntry] = {}
        self._clock = 0
        # Whether the program was seen to keep results. Then all new graphs copy: each one that
        # lends may have all older ones captured anew.
        self._keeps = False
        # How many graphs were dropped because the program seemed to keep results for good.
        self._given_up = 0

    def run_call(self, key: Hashable, structure: Hashable, leaves: list[object]) -> object:
        """The result of the function for the leaves of a call whose signature has this *key*."""
        while True:
            signature = self._signature_of(key, leaves)
            held = None
            if signature is not None and has_graph(signature) and not soundness.distrusted:
                with self.lock:
                    state = signature.state
                    if type(state) is CapturedState:
                        if self._recent[1] is not signature:
                            self._recent = key, signature
                        held = self._find_obstacle(signature, state, leaves)
                        if not held:
                            return self._replay_captured(signature, state, leaves)
            call = GraphedCall(structure, leaves, self.strategy.device)
            if signature is None:
                return self._run_plainly(call, self.strategy.misplaced)
            if held:
                another = self._find_another(key, signature, state, held, leaves)
                if another is None:
                    return self._run_plainly(call, held)
                key = another
            elif self._is_without_graph(key, signature):
                return self._run_without(key, signature, call)

    def _signature_of(self, key: Hashable, leaves: list[object]) -> SignatureEntry | None:
        """The signature of a call; None for one that has no graph because of where its leaves lie.

        Mostly it is the last call's, or the one that has followed that before.
        """
        known = last = self._last_with_key(key)
        if last is not None and not same_places(leaves, last.places, last.indices):
            known = self._following.get(last)
            if known is not None and not same_places(leaves, known.places, known.indices):
                known = None
        if known is not None and has_graph(known):
            return known
        if not self.strategy.are_placed(leaves):
            return None
        return known or self._find_signature(key, leaves)

    def _last_with_key(self, key: Hashable) -> SignatureEntry | None:
        # To compare keys takes less than to hash one.
        recent, signature = self._recent
        return signature if signature is not None and key == recent else self._latest.get(key)

    def _is_without_graph(self, key: Hashable, signature: SignatureEntry) -> bool:
        """Whether it is known and has no graph: another thread may have captured or dropped it."""
        with self.lock:
            known = self._is_known(key, signature)
            return bool(soundness.distrusted) or (known and not has_graph(signature))

    def _find_obstacle(
        self, signature: SignatureEntry, state: CapturedState, leaves: list[Any]
    ) -> str | None:
        """Why a call can't be a replay, or None: then its arguments are where they belong."""
        # Each call comes here, and most have none of these.
        if state.borrowed and any(one.expired() for one in state.borrowed):
            self._leave_signature(signature)
            return BORROWED
        if state.donated is not None and self.strategy.is_in_the_way(state):
            # It is captured anew, and overwrites nothing.
            self._free_graph(signature)
            self.row["dropped"] += 1
            return SAVED
        held = None
        if state.outputs.lends:
            held = state.outputs.resized()
        if state.memory.lent and not held:
            held = state.memory.busy(state.order)
        if state.write_back is not None and not held:
            held = state.write_back.shared(leaves)
        if state.extents and not held:
            held = state.inputs.within(leaves, state.extents)
        if state.donated is not None and not held:
            held = state.donated.held(leaves)
        if state.aliased and not held:
            held = _put_aliased(state.aliased, leaves)
        return held

    def _replay_captured(
        self, signature: SignatureEntry, state: CapturedState, leaves: list[Any], done: bool = False
    ) -> object:
        """The result of a replay for these leaves. *done* says that it was the last one."""
        if state.row["replays"] + 1 == state.next_check:
            return self._check_replay(signature, state, leaves)
        self._clock += 1
        signature.used = self._clock
        state.calls_in_use = 0
        if not done:
            state.observed.pool.wait_for_previous_replay()
            state.inputs.copy(leaves)
            state.graph()
            if state.write_back is not None:
                state.write_back.copy_back(leaves)
            if state.donated is not None:
                state.donated.note_replay()
        state.row["replays"] += 1
        if state.row["replays"] == 2:
            # Captures of the step before have left memory in pieces, and that step is over.
            state.observed.pool.give_back_once()
            self._pools.end_step(state.memory)
        if state.observed.written:
            # A tensor of inference mode does not count the writes to it.
            written = [leaves[index] for index in state.observed.written]
            _count_writes([one for one in written if not one.is_inference()])
        if state.outputs.lends:
            state.memory.lend(state.order, state.outputs)
        return state.outputs.take(leaves)

    def _check_replay(
        self, signature: SignatureEntry, state: CapturedState, leaves: list[Any]
    ) -> object:
        """The result of a replay that is compared with a plain call first, if there is time."""
        observed, number = state.observed, state.next_check
        state.next_check = soundness.next_check(number)
        needed = state.row["memory_after"] - state.row["memory_before"]
        if not (
            soundness.budget.allows_check(id(state), number) and observed.pool.has_room(2 * needed)
        ):
            return self._replay_captured(signature, state, leaves)
        started = time.perf_counter()
        call = GraphedCall(state.structure, leaves, self.strategy.device)
        changes = [leaves[index] for index in observed.changes]
        put_back = remember_contents(changes + find_uncounted(signature, observed, call))
        verification: ResultVerification | None
        try:
            verification = ResultVerification(
                *(observed.pool, observed.has_drawn),
                lambda prepare: [self.strategy.call_again(call, prepare), changes],
                put_back,
            )
        except torch.OutOfMemoryError:
            state.next_check = 0
            verification = None
        if signature.state is not state:
            # The function that was just called has dropped its graph.
            return self._run_plainly(call, WARMING)
        result = self._replay_captured(signature, state, leaves)
        if verification is None:
            return result
        back, row = state.write_back, state.row
        try:
            called_again = verification.compare([result, changes])
        except Refused as refused:
            del result
            put_back()
            verification.draw_again()
            self._distrust_signature(signature, row, call, f"replay {number}", str(refused))
            return self.strategy.call_plainly(call.structure, list(call.leaves))
        if called_again and back is not None:
            # The further plain calls have taken back what the replay has changed. They have drawn
            # as many random numbers as it has.
            back.copy_back(leaves)
        soundness.budget.add_check(id(state), number, time.perf_counter() - started)
        row["checks"] += 1
        return result

    def _distrust_signature(
        self,
        signature: SignatureEntry,
        row: record.GraphRow,
        call: GraphedCall,
        replay: str,
        why: str,
    ) -> None:
        """A replay was wrong. If it was right before, no graph of the process is believed."""
        if row["verified"] or row["checks"]:
            soundness.distrust_graphs(f"{replay} of {self.row['name']}: {why}")
            return
        # Nobody has compared it before: it may be right, with another rounding.
        self._free_graph(signature)
        self._reject_signature(signature, call, why)

    def _find_another(
        self,
        key: Hashable,
        signature: SignatureEntry,
        state: State,
        held: str,
        leaves: list[object],
    ) -> Hashable | None:
        """The key of a graph for a call that has found results in use; None for a plain call.

        The signature was in this *state* then. If these are results of other graphs, it is captured
        anew. If they are its own, as where a step calls the same code twice,
        there is one more graph.
        """
        with self.lock:
            if signature.state is not state:
                # What a graph reads is gone, or another thread was quicker.
                return None if held == BORROWED else key
            assert isinstance(state, CapturedState)
            if held == SAVED and not state.memory.used_over(state.order):
                # Another thread has let go of it since.
                return key
            state.calls_in_use += 1
            state.calls_held += 1
            if self._plan_another(signature, state, held, leaves):
                self._free_graph(signature)
                self.row["dropped"] += 1
                return key
            if held == SAVED and self.strategy.goes_beside and _is_lent_now(state):
                of, number = key if isinstance(key, BesideKey) else (key, 0)
                if state.calls_held > CALLS_BEFORE_BESIDE and number < _BESIDE:
                    return BesideKey(of, number + 1)
            # Maybe they are kept for good.
            if state.calls_in_use >= CALLS_IN_USE and self._given_up < self.options.limit:
                self._given_up += 1
                self._leave_signature(signature)
            return None

    def _plan_another(
        self, signature: SignatureEntry, state: CapturedState, held: str, leaves: list[object]
    ) -> bool:
        """Have a signature captured in another way, if one helps. Returns whether one does."""
        is_lost = held == RESIZED and self.options.clone
        may_drop = self._given_up < self.options.limit
        if self.strategy.captures_again and (held == SAVED or is_lost):
            # What is in use stays where it is: no later capture writes there.
            self._keeps = self._keeps or _has_to_copy(signature, state, leaves)
            signature.keeps = self._keeps
            signature.recaptured = True
        elif not isinstance(state.outputs, BorrowedOutputs):
            return False
        elif held == RESIZED:
            return state.outputs.note_resized()
        elif held == SAVED and state.memory.only_shown_in_use(state.order):
            # All new graphs copy what was found in use.
            return state.calls_in_use > 1
        elif not state.is_met_again() or not may_drop:
            return False
        elif held == ELSEWHERE:
            signature.copies_arguments = True
        elif held == SAVED and not _is_lent_now(state):
            # Other graphs' results are in use: the program does not call in the order of captures.
            self._given_up += 1
        else:
            return False
        return True

    def _leave_signature(self, signature: SignatureEntry) -> None:
        """Drop a signature. Calls like it are captured again."""
        for whole in [one for one, other in self.signatures.items() if other is signature]:
            self._drop_bucket(whole)
            self.row["dropped"] += 1

    def _run_plainly(self, call: GraphedCall, why: str) -> object:
        record.count_plain_call(self.row, why)
        return self.strategy.call_plainly(call.structure, list(call.leaves))

    def _run_without(self, key: Hashable, signature: SignatureEntry, call: GraphedCall) -> object:
        """A call of a signature that has no graph, or does not have one yet."""
        with self.lock:
            self._clock += 1
            signature.used = self._clock
            signature.calls += 1
            signature.note_kept(self.strategy.find_movable())
            state, calls = signature.state, signature.calls
        is_due = isinstance(state, ObservedState) and calls > self.options.warmup
        if self.strategy.goes_beside and not self._orders and calls <= self.options.limit:
            # Layers that share their code are captured together, in the step in which those with
            # code of their own are: from then on each graph's memory lies where it is in order.
            is_due = is_due and calls - signature.learned > self.options.warmup
        if is_due or soundness.distrusted:
            pool = state.pool if isinstance(state, ObservedState) else None
            why = soundness.objection_to_capture(pool.device if pool else None)
            if why:
                return self._run_plainly(call, why)
        if isinstance(state, RejectedState):
            return self._run_plainly(call, state.why)
        if is_due and self.may_capture:
            return self._run_captured(key, signature, call)
        record.count_plain_call(self.row, WARMING)
        if isinstance(state, WarmingState) and calls >= self.options.warmup:
            result = self._observe_call(signature, call)
        else:
            result = self.strategy.call_before_capture(call, list(call.leaves))
        signature.note_results(result)
        return result

    def _run_captured(self, key: Hashable, signature: SignatureEntry, call: GraphedCall) -> object:
        """A call that is captured and replayed, or a plain one if it can't be captured."""
        if not self._make_room(signature):
            limit = self.options.limit
            why = f"the limit of {limit} graphs is reached, and all were used recently"
            return self._run_plainly(call, why)
        with self.lock:
            state = signature.state
            if isinstance(state, CapturedState):  # Another thread was quicker.
                return self.run_call(key, call.structure, call.leaves)
            why = state.why if isinstance(state, RejectedState) else WARMING
            if isinstance(state, ObservedState):
                memory = self.strategy.find_memory(self._pools)
                attempt = CaptureAttempt(
                    self.strategy, self.options, memory, signature, state, call
                )
                found = self._capture_call(key, attempt, signature, call)
                if isinstance(found, CapturedState):
                    return self._replay_captured(signature, found, call.leaves, attempt.is_replayed)
                why = found
        return self._run_plainly(call, why)

    def _is_known(self, key: Hashable, signature: SignatureEntry) -> bool:
        return self.signatures.get((key, tuple(signature.places))) is signature

    def _capture_call(
        self, key: Hashable, attempt: CaptureAttempt, signature: SignatureEntry, call: GraphedCall
    ) -> CapturedState | str:
        """What was captured, or why nothing was. Raises the program's own errors."""
        before = attempt.observed
        try:
            captured = attempt.run()
        except Exception as error:
            own = attempt.find_error_of_program(error)
            # The function may have called itself, or have dropped its graphs.
            is_same = signature.state is before
            if is_same:
                signature.move_to(attempt.observed if own is None else WarmingState())
            if own is not None:
                try:
                    raise own from None
                finally:
                    # Its traceback has this frame, and with it the arguments.
                    del own
            return (
                self._note_failure(signature, call, error, attempt.blamed_op)
                if is_same
                else WARMING
            )
        if signature.state is not before or not self._is_known(key, signature):
            with before.pool.idle():
                captured.release()
            return WARMING
        self.row["graphs"].append(captured.row)
        self._orders.append((captured.memory, captured.order))
        # From now on other threads replay it.
        signature.move_to(captured)
        self.strategy.note_capture(signature, captured)
        return captured

    def _note_failure(
        self,
        signature: SignatureEntry,
        call: GraphedCall,
        error: Exception,
        blamed_op: captured_ops.OpUse | None,
    ) -> str:
        """Why this call is a plain one. *blamed_op* is the op in the capture that has failed."""
        if isinstance(error, CaptureBusy):
            signature.busy += 1
            return str(error)
        if self.strategy.retries(error):
            return WARMING
        signature.tries += 1
        if may_pass(error) and signature.tries < _TRIES:
            signature.move_to(WarmingState())  # The next call is observed again.
            return WARMING
        why = explain_failure(error)
        if not (blamed_op and is_illegal(error) and self._cut_around(blamed_op)):
            self._reject_signature(signature, call, why)
        return why

    def _observe_call(self, signature: SignatureEntry, call: GraphedCall) -> object:
        """The last call before a capture. It shows whether a capture is possible."""
        attempt = ObservationAttempt(self.strategy, self.options, signature, call)
        result = attempt.run(self._pools)
        why = attempt.objection
        if attempt.disturbance:
            signature.disturbed += 1
            if signature.disturbed >= _TRIES:
                why = attempt.disturbance
        with self.lock:
            if not isinstance(signature.state, WarmingState):
                return result  # Another thread was quicker.
            blamed_op = attempt.blamed_op
            if blamed_op and not blamed_op.is_torchs and self._cut_around(blamed_op):
                return result
            if why:
                self._reject_signature(signature, call, why)
            elif attempt.observed is not None:
                signature.move_to(attempt.observed)
        return result

    def _cut_around(self, use: captured_ops.OpUse) -> bool:
        """Have what is called compiled anew, with a cut around an op. False if that can't help."""
        recompile = self.strategy.recompile
        return recompile is not None and use.forbid_capture() and recompile(use)

    def _find_signature(self, key: Hashable, leaves: list[object]) -> SignatureEntry:
        """The signature with this key and its leaves where they are, a new one if there is none."""
        with self.lock:
            before = self._latest.get(key)
            if before is None and isinstance(key, BesideKey):
                before = self._latest.get(key.key)
            indices = self._indices if before is None else before.indices
            places = _places_of_leaves(leaves, indices)
            if self._changed and (key, tuple(places)) not in self.signatures:
                moving = self._find_moving(key, indices, places, leaves)
                if moving:
                    # From now on they are copied, and signatures are known by their places.
                    for one in [one for one in self.signatures if one[0] == key]:
                        self._drop_bucket(one)
                    indices = [index for index in indices if index not in moving]
                    before, places = None, _places_of_leaves(leaves, indices)
            whole = (key, tuple(places))
            signature = self.signatures.get(whole)
            if signature is None:
                self._forget_rejected()
                signature = self.signatures[whole] = SignatureEntry(indices, places, self._clock)
                if before is not None:
                    signature.learn_places(before)
                    if not isinstance(signature.state, RejectedState) and self._is_moving_on(key):
                        self._reject_signature(signature, None, MOVING)
                elif self._known is not None:
                    signature.learn(self._known)
                    self._known = None
                signature.keeps = signature.keeps or self._keeps
            self._following[self._last_with_key(key)] = signature
            self._latest[key] = signature
            return signature

    def _find_moving(
        self, key: Hashable, indices: list[int], places: list[int | None], leaves: list[object]
    ) -> set[int]:
        """What calls change in place that is at another place again, if it can be copied back."""
        moved = []
        for (other, _), signature in self.signatures.items():
            if other == key:
                apart = {index for index in indices if signature.places[index] != places[index]}
                # A layer with other weights has a cache of its own.
                if apart <= self._changed:
                    moved.append(apart)
        found = set().union(*moved) if len(moved) >= _MOVES else set()
        return set() if write_back.find_objection(sorted(found), leaves, ()) else found

    def _is_moving_on(self, key: Hashable) -> bool:
        """Whether weights or caches are somewhere else again and again, and never return.

        Then each call would be a capture. The graphs that nobody needs any more are dropped. Layers
        that share their code return after as many calls as there are layers, at most the limit.
        """
        left = [
            whole
            for whole, one in self.signatures.items()
            if whole[0] == key
            and isinstance(one.state, CapturedState)
            and one.state.row["replays"] <= 2
            and self._clock - one.used > self.options.limit // 2
        ]
        if len(left) < _LEFT:
            return False
        for whole in left:
            self._drop_bucket(whole)
            self.row["dropped"] += 1
        return True

    def fix_indices(self, indices: Sequence[int], like: Hashable = None) -> None:
        """Other leaves are at a fixed place from now on.

        All graphs are dropped. What was observed of calls with the key *like* holds for the next
        call; None if there are none.
        """
        with self.lock:
            known = self._latest.get(like)
            self.clear()
            self._known, self._indices = known, list(indices)

    def _reject_signature(
        self, signature: SignatureEntry, call: GraphedCall | None, why: str
    ) -> None:
        signature.move_to(RejectedState(why))
        self._pools.first_calls.release_handles()
        self.refuse(why, call.leaves if call else [])

    def refuse(self, why: str, leaves: Sequence[object]) -> None:
        """Put on the record, and write once to stderr, that calls like this have no graph."""
        fixed = frozenset(self._indices)
        shown = (one for index, one in enumerate(leaves) if index not in fixed)
        record.record_refusal(self.row, describe_signature(shown), why)

    def _make_room(self, signature: SignatureEntry) -> bool:
        """Make room for one more graph, if there is none. Returns whether that was possible."""
        with self.lock:
            evicted = choose_evicted(self.signatures, signature, self.options.limit, has_graph)
            for whole in evicted or ():
                self._drop_bucket(whole)
                self.row["dropped"] += 1
            return evicted is not None

    def _forget_rejected(self) -> None:
        """Limit the number of signatures without a graph."""
        for whole in choose_forgotten(self.signatures, self.options.limit, has_graph):
            self._drop_bucket(whole)

    def _drop_bucket(self, whole: _Whole) -> None:
        signature = self.signatures.pop(whole)
        if self._latest.get(whole[0]) is signature:
            del self._latest[whole[0]]
        if self._recent[1] is signature:
            self._recent = (None, None)
        self._following.clear()
        self._free_graph(signature)

    def _free_graph(self, signature: SignatureEntry) -> None:
        """Drop the graph of a signature, if it has one."""
        state = signature.state
        if isinstance(state, CapturedState):
            soundness.budget.forget_graph(id(state))
            memory, row, pool, order = state.memory, state.row, state.observed.pool, state.order
            left = state.outputs.abandoned_outputs()
            self.strategy.note_drop(state)
            with pool.idle():
                signature.drop_graph(state)
            readers.watch_readers(left, pool)
            memory.abandon_outputs(order, left)
            self._orders.remove((memory, order))
            record.drop_graph(self.row, row)

    def note_kept(self) -> None:
        """Note which results without a graph the program keeps, before their next call does."""
        with self.lock:
            movable = self.strategy.find_movable()
            for signature in self.signatures.values():
                signature.note_kept(movable)

    def drop_readers(self, outputs: BorrowedOutputs) -> None:
        """Drop the graphs that read what a graph has saved, or overwrite it."""
        with self.lock:
            for signature in self.signatures.values():
                state = signature.state
                if isinstance(state, CapturedState) and (
                    (state.donated is not None and state.donated.results is outputs)
                    or not outputs.places.isdisjoint(signature.places)
                ):
                    self._free_graph(signature)
                    self.row["dropped"] += 1

    def clear(self) -> None:
        """Drop all graphs and everything known about signatures."""
        with self.lock:
            for whole in list(self.signatures):
                self._drop_bucket(whole)

    def states(self) -> list[State]:
        """What is known now, a state for each signature. Takes no lock: a capture may call it."""
        return [one.state for one in [*self.signatures.values()]]


def _abandon_results(orders: list[tuple[GraphMemory, int]]) -> None:
    """The graphs with these numbers are gone: others' share their memory, and keep nothing unused.

    It takes no lock, because a garbage collection comes anywhere, and touches no other results:
    those of a graph that is just replayed are nobody's yet.
    """
    for memory, order in orders:
        results = memory.lent.get(order)
        left = None if results is None else results.abandoned_outputs()
        if left is not None and left.used_memories():
            memory.lent[order] = left
        else:
            memory.lent.pop(order, None)


def _is_lent_now(state: CapturedState) -> bool:
    """Whether somebody holds results of the last replay."""
    return state.outputs.lends and bool(state.outputs.used_memories())


def _has_to_copy(signature: SignatureEntry, state: CapturedState, leaves: Sequence[object]) -> bool:
    """Whether a graph that was in the way of results has to hand out copies from now on.

    It has, if these are its own, or if this is not the first time. If they are nothing but its
    arguments, it was captured before the graph that makes them. If it lent its own results again,
    the graph after it would find those in use, and so each one after that.
    """
    kept = signature.keeps or signature.kept
    if kept or signature.recaptured or state.outputs.used_memories():
        return True
    return state.memory.used_over(state.order) <= set(map(storage_key, tensors_of(leaves)))


def _places_of_leaves(leaves: list[Any], indices: list[int]) -> list[int | None]:
    places: list[int | None] = [None] * len(leaves)
    for index in indices:
        places[index] = leaves[index].data_ptr()
    return places


def _put_aliased(aliased: list[tuple[int, AliasedInput]], leaves: list[Any]) -> str | None:
    """Put the arguments where a graph reads them. Returns why that can't be, None if it can."""
    for index, one in aliased:
        there = one.put(leaves[index])
        if there is None:
            return ELSEWHERE
        leaves[index] = there
    return None
