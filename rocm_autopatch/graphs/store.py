"""The graphs of one callable: which calls have one, and when they are captured.

Each call executes the function exactly once, either the function itself or a replay. So state in
tensors, such as a cache, advances as it does without graphs, and there are no hidden calls for a
warm-up. The first calls of a signature are plain calls. The last of them is observed. The next call
is captured, which executes nothing, and then replayed.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rocm_autopatch import failure, startup
from rocm_autopatch.graphs import aside, capture, carried, record, soundness
from rocm_autopatch.graphs.aside import Aside
from rocm_autopatch.graphs.buffers import Inputs, Outputs
from rocm_autopatch.graphs.captured_ops import CapturedOps
from rocm_autopatch.graphs.carried import Carried
from rocm_autopatch.graphs.eviction import choose_evicted, choose_forgotten
from rocm_autopatch.graphs.handed import Consumed, Found, Handed
from rocm_autopatch.graphs.leaves import CONSTANTS, TENSORS, describe, tensors_of
from rocm_autopatch.graphs.memory import Memory
from rocm_autopatch.graphs.observation import ObservedCall
from rocm_autopatch.graphs.places import same_places, storage
from rocm_autopatch.graphs.refusal import Busy, Disturbed, Refused, explain, passes
from rocm_autopatch.graphs.verification import Verification

# How often a capture is tried if something compiles in it, and how often a call is observed, if
# what stands in the way may be another thread's. After that it would always be so.
_TRIES = 3
# How many graphs may be left behind before no more are captured.
_LEFT = 8
# At so many other places an argument was changed before it is copied there and back.
_MOVES = 2
# How many calls in a row may find a graph's results in use, before it is captured elsewhere.
_STUCK = 32
MOVING = "its weights, or what it changes in place, are at new addresses in nearly each call"
ELSEWHERE = "an argument is not where a graph before it writes it, and that place is in use"
BORROWED = "a tensor is gone that its graph reads, and that no argument or module has"
WARMING = "the first calls of a signature run without a graph"


def _one_by_one(tensors: list[Any]) -> None:
    for tensor in tensors:
        torch.autograd.graph.increment_version(tensor)


# Make autograd count a write to each tensor of a list. Torch 2.4 takes one tensor at a time.
_count_writes: Callable[[list[Any]], None] = (
    torch.autograd.graph.increment_version
    if startup.release(torch.__version__) >= (2, 5)
    else _one_by_one
)
_leaves = torch.utils._pytree.tree_leaves
# A call without a graph: a function of its structure and its leaves.
Function = Callable[[Any, list[Any]], Any]


@dataclass
class Options:
    """How graphs are made. ``wrapper.graphed`` describes each field."""

    limit: int
    warmup: int
    clone: bool
    verify: bool
    check: bool = False


@dataclass(frozen=True)
class Call:
    """One call: its structure and leaves."""

    structure: Any
    leaves: list[Any]

    @functools.cached_property
    def device(self) -> Any:
        """The device of its tensors; None if it has none. A number may be on the host."""
        tensors = sorted(tensors_of(self.leaves), key=lambda one: not one.dim())
        return tensors[0].device if tensors else None

    def unfit(self, but: Container[int] = ()) -> str:
        """Why no call with these leaves can be a graph; "" if one may.

        Where those with the indices *but* are does not matter.
        """
        if self.device is None:
            return "no argument is a tensor, so the device is unknown"
        given = (leaf for index, leaf in enumerate(self.leaves) if index not in but)
        for device in {tensor.device for tensor in tensors_of(given)}:
            # A kernel may take the value of a CPU scalar at the capture, for all replays.
            if device.type != capture.Pool.kind:
                return f"an argument is on {device}, and a graph can only read the GPU's memory"
            if device != self.device:
                return f"an argument is on {device}, but another tensor is on {self.device}"
        return ""


class Entry:
    """A signature, and its graph if it has one."""

    __slots__ = (
        "borrowed",
        "carried",
        "changes",
        "checked",
        "constants",
        "consumed",
        "disturbed",
        "draws",
        "extents",
        "first",
        "found",
        "graph",
        "held",
        "hosted",
        "indices",
        "inputs",
        "kept",
        "memory",
        "order",
        "outputs",
        "places",
        "pool",
        "pure",
        "refused",
        "row",
        "seen",
        "structure",
        "tries",
        "used",
        "written",
    )

    def __init__(self, indices: list[int], places: list[int | None], first: int) -> None:
        # The indices of what is at a fixed place, and the addresses that the graph uses; None for
        # what is copied.
        self.indices, self.places = indices, places
        self.first = self.used = first
        self.seen = self.tries = self.disturbed = self.held = self.kept = 0
        self.refused = ""
        self.pure = self.draws = False
        # The indices of what is at a fixed place and the observed call wrote to, and what in its
        # result was not a tensor. The tensors themselves would stay alive here: a cache for each
        # prompt that a program has made one for.
        self.written: list[int] = []
        # Where the memories lie that its graph writes to, and that are at a fixed place.
        self.extents: list[tuple[int, int]] = []
        # The indices of arguments that it wrote to, which are copied back.
        self.changes: list[int] = []
        self.carried: Carried | None = None
        self.constants: list[Any] = []
        # The numbers in the result that were on another device than the graph's, by their index.
        self.hosted: dict[int, Any] = {}
        self.graph: Callable[[], None] | None = None
        self.row: dict[str, Any] = {}
        # The number of the next replay that is compared with a plain call; 0 if none is.
        self.checked = 0
        self.structure: Any = None
        # Memory that it reads and that nothing of the above owns, as weak references.
        self.borrowed: list[Any] = []
        # What it writes to, the place of its capture in the order of all, arguments that other
        # graphs have made, and those that it overwrites.
        self.memory: Any = None
        self.order = -1
        self.found: list[tuple[int, Found]] = []
        self.consumed: Consumed | None = None
        self.pool: Any = None
        self.inputs: Any = None
        self.outputs: Any = None

    def learn(self, other: Entry) -> None:
        """Take over what was observed of the same compiled code with weights at other places."""
        if _repeated(self.places) == _repeated(other.places):
            self.take(other)

    def take(self, other: Entry) -> None:
        """Take over what was observed of the same compiled code."""
        self.refused, self.seen = other.refused, other.seen
        if other.pool is not None:
            self.pool, self.pure, self.draws = other.pool, other.pure, other.draws
            self.written, self.changes = other.written, other.changes
            self.constants, self.hosted = other.constants, other.hosted


class Graphs:
    """The graphs of one callable, *function*.

    *indices* are the indices of leaves at a fixed place, such as a compiled model's weights.
    *memory* is what they write to, if that is not the memory of all *pools*. *changed* are those of
    the indices that calls change in place, and that are no weights. *row* is their row of the
    record, if they share one.
    """

    # Whether arguments that a call changes in place may be copied back.
    carries = True

    def __init__(
        self,
        function: Function,
        name: str,
        origin: str,
        options: Options,
        pools: capture.Pools,
        indices: Sequence[int] = (),
        memory: Memory | None = None,
        changed: Iterable[int] = (),
        row: dict[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.options = options
        self.row = record.row(name, origin) if row is None else row
        self._pools, self._lock = pools, pools.lock
        self._memory = memory or pools.memory
        # Its results may be free when it is gone, and nobody would look at them any more.
        weakref.finalize(self, self._memory.sweep).atexit = False
        self._indices = list(indices)
        self._fixed_leaves = frozenset(indices)
        self._changed = frozenset(changed)
        # Whether captures may begin.
        self._ready = True
        # What was observed before other leaves became fixed.
        self._known: Entry | None = None
        # The entry of the last call, by signature; all entries, by signature and places.
        self._latest: dict[Any, Entry] = {}
        self._entries: dict[Any, Entry] = {}
        # The signature and the entry of the last call with a graph.
        self._recent: tuple[Any, Entry | None] = (None, None)
        self._clock = 0

    def run(self, key: Any, structure: Any, leaves: list[Any]) -> Any:
        """The result of the function for the leaves of a call with signature *key*."""
        # Mostly it is the last call's signature. To compare them takes less than to hash one.
        recent, entry = self._recent
        if entry is None or entry.graph is None or key != recent:
            entry = self._latest.get(key)
        if entry is None or not same_places(leaves, entry.places, entry.indices):
            entry = self._find(key, leaves)
        held = ""
        if entry.graph is not None and not soundness.distrusted:
            with self._lock:
                if entry.graph is not None:
                    if self._recent[1] is not entry:
                        self._recent = key, entry
                    # Each call comes here, and most have none of these.
                    if entry.borrowed and any(one.expired() for one in entry.borrowed):
                        held = BORROWED
                        self._leave(entry)
                    elif entry.outputs.lends:
                        held = entry.outputs.resized()
                    if entry.memory.lent and not held:
                        held = entry.memory.busy(entry.order)
                    if entry.carried is not None and not held:
                        held = entry.carried.shared(leaves)
                    if entry.extents and not held:
                        held = entry.inputs.within(leaves, entry.extents)
                    if entry.consumed is not None and not held:
                        held = entry.consumed.held(leaves)
                    if entry.found and not held:
                        held = _put(entry.found, leaves)
                    if not held:
                        if entry.row["replays"] + 1 == entry.checked:
                            return self._checked(entry, leaves)
                        return self._replay(entry, leaves)
        call = Call(structure, leaves)
        if held:
            self._held(entry)
            record.plain(self.row, held)
            return self._execute(call)
        return self._without(entry, key, call)

    def _replay(self, entry: Entry, leaves: list[Any], done: bool = False) -> Any:
        """The result of a replay for these leaves. *done* says that it was the last one."""
        self._clock += 1
        entry.used = self._clock
        entry.held = 0
        if not done:
            entry.pool.turn()
            entry.inputs.copy(leaves)
            entry.graph()  # type: ignore[misc]
            if entry.carried is not None:
                entry.carried.back(leaves)
        entry.row["replays"] += 1
        if entry.written:
            # A tensor of inference mode does not count the writes to it.
            _count_writes(
                [leaves[index] for index in entry.written if not leaves[index].is_inference()]
            )
        if entry.outputs.lends:
            entry.memory.lend(entry.order, entry.outputs)
        return entry.outputs.take(leaves)

    def _checked(self, entry: Entry, leaves: list[Any]) -> Any:
        """The result of a replay that is compared with a plain call first, if there is time."""
        pool, number = entry.pool, entry.checked
        entry.checked = soundness.next_check(number)
        needed = entry.row["memory_after"] - entry.row["memory_before"]
        if not soundness.budget.allows_check(id(entry), number) or not pool.has_room(2 * needed):
            return self._replay(entry, leaves)
        started = time.perf_counter()
        call = Call(entry.structure, leaves)
        changes = [leaves[index] for index in entry.changes]
        restored = changes + self._uncounted(entry, call)
        put_back = functools.partial(_put_back, restored, [one.clone() for one in restored], None)
        try:
            verification = Verification(
                pool,
                entry.draws,
                lambda: [self._again(call), changes],
                put_back,
            )
        except torch.OutOfMemoryError:
            entry.checked = 0
            return self._replay(entry, leaves)
        result = self._replay(entry, leaves)
        try:
            if verification.compare([result, changes]):
                # The further plain calls have taken back what the replay has changed.
                if entry.carried is not None:
                    entry.carried.back(leaves)
                verification.draw_as_called()
        except Refused as refused:
            put_back()
            verification.draw_again()
            if entry.row["verified"] or entry.row["checks"]:
                soundness.distrust(f"replay {number} of {self.row['name']}: {refused}")
            else:
                # Nobody has compared it before: it may be right, with another rounding.
                del result
                self._refuse(entry, call, str(refused))
                self._free(entry)
            return self._execute(call)
        soundness.budget.add_check(id(entry), number, time.perf_counter() - started)
        entry.row["checks"] += 1
        return result

    def _held(self, entry: Entry) -> None:
        """A call has found an entry's results in use. Maybe they are kept for good."""
        with self._lock:
            entry.held += 1
            if entry.held >= _STUCK and self.row["dropped"] < self.options.limit:
                self._leave(entry)

    def _leave(self, entry: Entry) -> None:
        """Drop an entry. Calls like it are captured again."""
        for whole in [one for one, other in self._entries.items() if other is entry]:
            self._drop(whole)
            self.row["dropped"] += 1

    def _places(self, leaves: list[Any], indices: list[int]) -> list[int | None]:
        places: list[int | None] = [None] * len(leaves)
        for index in indices:
            places[index] = leaves[index].data_ptr()
        return places

    def _find(self, key: Any, leaves: list[Any]) -> Entry:
        with self._lock:
            before = self._latest.get(key)
            indices = self._indices if before is None else before.indices
            places = self._places(leaves, indices)
            if self._changed and (key, tuple(places)) not in self._entries:
                moving = self._moving(key, indices, places, leaves)
                if moving:
                    # From now on they are copied, and the entries know them by their places.
                    for one in [one for one in self._entries if one[0] == key]:
                        self._drop(one)
                    indices = [index for index in indices if index not in moving]
                    before, places = None, self._places(leaves, indices)
            whole = (key, tuple(places))
            entry = self._entries.get(whole)
            if entry is None:
                self._forget()
                entry = self._entries[whole] = Entry(indices, places, self._clock)
                if before is not None:
                    entry.learn(before)
                    if not entry.refused and self._move_on(key):
                        self._refuse(entry, None, MOVING)
                elif self._known is not None:
                    entry.take(self._known)
                    self._known = None
            self._latest[key] = entry
            return entry

    def _moving(
        self, key: Any, indices: list[int], places: list[int | None], leaves: list[Any]
    ) -> set[int]:
        """What calls change in place that is at another place again, if it can be copied back."""
        moved = []
        for (other, _), entry in self._entries.items():
            if other == key:
                apart = {index for index in indices if entry.places[index] != places[index]}
                # A layer with other weights has a cache of its own.
                if apart <= self._changed:
                    moved.append(apart)
        found = set().union(*moved) if len(moved) >= _MOVES else set()
        return set() if carried.unfit(sorted(found), leaves, ()) else found

    def _move_on(self, key: Any) -> bool:
        """Whether weights or caches are somewhere else again and again, and never return.

        Then each call would be a capture. The graphs that nobody needs any more are dropped. Layers
        that share their code return after as many calls as there are layers, at most the limit.
        """
        left = [
            whole
            for whole, one in self._entries.items()
            if whole[0] == key
            and one.graph is not None
            and one.row["replays"] <= 2
            and self._clock - one.used > self.options.limit // 2
        ]
        if len(left) < _LEFT:
            return False
        for whole in left:
            self._drop(whole)
            self.row["dropped"] += 1
        return True

    def _without(self, entry: Entry, key: Any, call: Call) -> Any:
        """A call of a signature that has no graph, or does not have one yet."""
        with self._lock:
            known = self._entries.get((key, tuple(entry.places))) is entry
            # Another thread has just captured it, or dropped it.
            if not soundness.distrusted and (entry.graph is not None or not known):
                return self.run(key, call.structure, call.leaves)
            self._clock += 1
            entry.used = self._clock
            entry.seen += 1
            seen, refused = entry.seen, entry.refused
        observed = not refused and seen > self.options.warmup and entry.pool is not None
        if observed or soundness.distrusted:
            refused = soundness.objection_to_capture(entry.pool.device if entry.pool else None)
            observed = observed and not refused
        ready = observed and self._ready
        if ready and self._room(entry):
            with self._lock:
                if entry.graph is not None:
                    return self.run(key, call.structure, call.leaves)
                done, value = self._capture(entry, call)
            if done:
                return value
            refused = entry.refused or WARMING
        elif ready:
            refused = (
                f"the limit of {self.options.limit} graphs is reached, and all were used recently"
            )
        record.plain(self.row, refused or WARMING)
        if refused or entry.pool is not None or seen < self.options.warmup:
            return self._execute(call) if refused else self._first(call, list(call.leaves))
        return self._observed(entry, call)

    def _first(self, call: Call, real: list[Any]) -> Any:
        """A call before the capture. *real* are its leaves; nobody needs the list any more."""
        return self._now(call.structure, real)

    def _again(self, call: Call) -> Any:
        """A call before the capture that is not the last one with these leaves."""
        return self._first(call, list(call.leaves))

    def _execute(self, call: Call) -> Any:
        return self._now(call.structure, list(call.leaves))

    def _now(self, structure: Any, leaves: list[Any]) -> Any:
        """Call the function, not in a capture."""
        return self.function(structure, leaves)

    def _observed(self, entry: Entry, call: Call) -> Any:
        """The last call before a capture. It shows whether a capture is possible."""
        on_host = self._on_host()
        refused = call.unfit(on_host)
        if refused:
            self._refuse(entry, call, refused)
            return self._execute(call)
        pool, real = self._pools.of(call.device), list(call.leaves)
        observable = self._observable(entry)
        places = [call.leaves[index] for index in observable]
        stay = {*entry.indices, *on_host}
        free = [
            index for index, leaf in enumerate(real) if type(leaf) in TENSORS and index not in stay
        ]
        given = [real[index] for index in free]
        try:
            observation = ObservedCall(pool, places, given, self.options.verify)
            ops = CapturedOps()
        except RuntimeError as error:
            self._refuse(entry, call, f"its effects can't be observed: {error}")
            return self._execute(call)
        compiled = capture.compiles()
        with ops:
            result = self._first(call, real)
        try:
            refused, changed = observation.find_objection(), observation.changed_tensors()
            refused = refused or ops.objection or _objection_to_constants(result)
            changes = (
                [] if refused else [free[number] for number in observation.written_arguments()]
            )
            refused = refused or self._unfit(entry, changes, call)
            beside = "" if refused else observation.find_objection_beside()
            entry.disturbed += bool(beside)
            if beside and entry.disturbed < _TRIES:
                # Another thread may have done it. The next call is observed.
                return result
            refused = refused or beside
        except RuntimeError as error:
            refused, changed, changes = f"its effects can't be observed: {error}", [], []
        if refused:
            self._refuse(entry, call, refused)
        elif capture.compiles() == compiled:
            owned = set(map(storage, tensors_of([*call.leaves, *_leaves(result)])))
            others = (one.cdata for one, _ in ops.borrowed(owned, pool.kind))
            entry.pure = not changed and ops.written.isdisjoint(others)
            entry.draws = observation.has_drawn()
            entry.written = [observable[number] for number in changed]
            entry.changes = changes
            entry.constants = _constants(result)
            entry.hosted = _numbers_elsewhere(result, pool.device)
            entry.pool = pool
        # Otherwise the call has compiled something, and the next call is observed.
        return result

    def _on_host(self) -> Collection[int]:
        """The arguments that are numbers on the host, and on the device if there are graphs."""
        return ()

    def _may_move(self, index: int) -> bool:
        """Whether a number of the result may be on the device in a replay, and is on the host now.

        Attention gives the seed and the offset of its dropout like this (pytorch#102038).
        """
        return False

    def _observable(self, entry: Entry) -> list[int]:
        """What of it is at a fixed place and might be written to by a call."""
        return entry.indices

    def _unfit(self, entry: Entry, changes: list[int], call: Call) -> str:
        """Why what a call has changed of its arguments can't be copied back; "" if it can."""
        if not changes:
            return ""
        fixed = [call.leaves[index] for index in entry.indices]
        why = carried.unfit(changes, call.leaves, tensors_of(fixed)) if self.carries else ""
        if not self.carries:
            why = "graphs of training steps don't copy it back"
        shape = list(call.leaves[changes[0]].shape)
        text = "it changes an argument in place (shape %s), and %s: make this tensor a buffer of "
        return (text + "the module, or return the new one") % (shape, why) if why else ""

    def _uncounted(self, entry: Entry, call: Call) -> list[Any]:
        """The arguments whose writes torch does not count: a write may not have been seen."""
        if not torch.is_inference_mode_enabled():
            return []
        stay = {*entry.indices, *entry.changes}
        return [
            leaf
            for index, leaf in enumerate(call.leaves)
            if type(leaf) in TENSORS and index not in stay and leaf.is_inference()
        ]

    def _shared(self, entry: Entry, call: Call) -> bool:
        fixed = tensors_of(call.leaves[index] for index in entry.indices)
        return carried.shares(entry.changes, call.leaves, map(storage, fixed))

    def _capture(self, entry: Entry, call: Call) -> tuple[bool, Any]:
        """Capture and replay. Returns whether there is a result, and the result."""
        pool = entry.pool
        verification: Verification | None = None
        kept: Aside | None = None
        changes = [call.leaves[index] for index in entry.changes]
        # What a plain call changes before the replay, and what it was.
        restored: list[Any] = []
        were: list[Any] = []
        raised: list[Exception] = []
        try:
            if changes and self._shared(entry, call):
                raise Busy(carried.SHARED)
            started, before = time.perf_counter(), pool.memory()
            consumed = self._consumed(call.leaves)
            memory = consumed.results.memory if consumed else self._memory
            order = memory.order()
            held = memory.busy(order)
            if held:
                raise Busy(held)
            pool.turn()
            found = self._found(call.leaves)
            stay = {*entry.indices, *(index for index, _ in found)}
            inside = self._inside(call.leaves) if consumed else None
            inputs = Inputs(call.leaves, stay, inside)
            extents = _extents(call.leaves[index] for index in entry.written)
            overlap = inputs.within(call.leaves, extents)
            if overlap:
                raise Busy(overlap)
            # Such a call writes to no weight or buffer. So it does nothing that the call itself
            # does not do again, if it also draws the same random numbers.
            verify = self.options.verify and entry.pure
            verify = verify and aside.room(self._spoilt(call.leaves, consumed))
            if verify and not consumed:
                restored = changes + self._uncounted(entry, call)
                were = [one.clone() for one in restored]
                kept = Aside(self._spoilt(call.leaves, consumed))
                verification = Verification(
                    pool,
                    entry.draws,
                    lambda: [self._again(call), changes],
                    functools.partial(_put_back, restored, were, kept),
                )
                # The capture can't use what the call has needed. So the device gets it back.
                capture.give_back()
            inputs.copy(call.leaves)
            compiled = capture.compiles()
            if consumed:
                consumed.let_go(call.leaves, pool, order)
            ops = CapturedOps(stops=True)
            owned = set(map(storage, [*inputs.tensors, *tensors_of(call.leaves)]))
            enter = functools.partial(inputs.enter, pool.unowned)
            versions = inputs.versions()
            with capture.own_casts():
                noting = self._noting(ops, call.structure, raised)
                graph, result = pool.capture(noting, enter, memory)
            if capture.compiles() != compiled:
                raise Disturbed(
                    "something was compiled in the capture: more calls are needed before it"
                )
            more = inputs.written(versions).difference(entry.changes) if self.carries else set()
            if more:
                entry.changes = sorted(more.union(entry.changes))
                why = self._unfit(entry, entry.changes, call)
                raise Refused(why) if why else Busy("it changes an argument, and did not before")
            if _constants(result) != entry.constants:
                raise Refused("the result has a constant that differs from call to call")
            moved = set(entry.hosted).difference(_numbers_elsewhere(result, pool.device))
            if not all(map(self._may_move, moved)):
                raise Refused("a number of the result is not on the device, except in a capture")
            owned.update(storage(one) for one in _leaves(result) if type(one) in TENSORS)
            borrowed = [reference for reference, _ in ops.borrowed(owned, pool.kind)]
            places = {index: call.leaves[index] for index in entry.indices}
            places.update((index, call.leaves[index]) for index, _ in found)
            outputs = self._results(result, inputs, places, pool.device)
            del result
            back = (
                Carried(entry.changes, inputs, tensors_of([*places.values()])) if changes else None
            )
            inputs.captured()
            entry.memory, entry.order, entry.consumed = memory, order, consumed
            self._made(entry, inputs, outputs, graph)
            if consumed:
                if verify:
                    kept = Aside(self._spoilt(call.leaves, consumed))
                    again = functools.partial(self._beside, kept, pool, memory, call)
                    verification = Verification(pool, entry.draws, again, kept.restore)
                inputs.copy(call.leaves)
            if verification is not None:
                graph()
                # What the caller is handed is compared, and not only what the graph has written.
                taken = [outputs.take(call.leaves), back.targets if back else []]
                called_again = verification.compare(taken)
                del taken
                # What a replay overwrites is not there for another one: it is the call itself.
                if not consumed or called_again:
                    verification.draw_again()
                if consumed and called_again:
                    inputs.copy(call.leaves)
                    graph()
        except Exception as error:
            entry.consumed = None
            _put_back(restored, were, kept)
            # Torch and the runtimes raise a RuntimeError where a function can't be captured.
            programs = [one for one in raised if not isinstance(one, RuntimeError)]
            if programs or failure.programs_own(error):
                entry.pool = None  # The next call is observed again.
                raise programs[0] if programs else error from None
            if verification is not None:
                verification.draw_again()
            self._failed(entry, call, error)
            return False, None
        verified = verification is not None
        del verification, kept
        outputs.count_owners(inputs.own_tensors())
        pool.lends = pool.lends or outputs.lends
        entry.row = {
            "signature": self._describe(call.leaves),
            "replays": 0,
            "capture_seconds": round(time.perf_counter() - started, 4),
            "memory_before": before,
            "memory_after": pool.memory(),
            "verified": verified,
            "checks": 0,
        }
        # From now on other threads replay it.
        entry.inputs, entry.outputs, entry.graph = inputs, outputs, graph
        entry.carried, entry.extents = back, extents
        entry.found, entry.borrowed = found, borrowed
        # A plain call must have no effect but its result.
        if self.options.check and entry.pure and not self._spoilt(call.leaves, consumed):
            entry.checked, entry.structure = soundness.next_check(1), call.structure
        self.row["graphs"].append(entry.row)
        self._captured(entry)
        done = verified and consumed is not None
        return True, self._replay(entry, call.leaves, done)

    def _noting(
        self, ops: CapturedOps, structure: Any, raised: list[Exception]
    ) -> Callable[[list[Any]], Any]:
        """The function; *ops* notes what it executes, and *raised* what it raises."""
        function = self.function

        def run(leaves: list[Any]) -> Any:
            with ops:
                try:
                    return function(structure, leaves)
                except Exception as error:
                    raised.append(error)
                    raise

        return run

    def _beside(self, kept: Aside, pool: Any, memory: Memory, call: Call) -> Any:
        """A plain call in the memory of the graph that was just captured for it."""

        def run() -> Any:
            return self._now(call.structure, kept.again(call.leaves))

        return [pool.beside(run, memory), []]

    def _made(self, entry: Entry, inputs: Inputs, outputs: Any, graph: Callable[[], None]) -> None:
        """A graph was captured for an entry, and not replayed yet; for a subclass."""

    def _captured(self, entry: Entry) -> None:
        """An entry has a graph now, for a subclass."""

    def _consumed(self, leaves: list[Any]) -> Consumed | None:
        """What the graph for these leaves may overwrite, for a subclass."""
        return None

    def _spoilt(self, leaves: list[Any], consumed: Consumed | None) -> list[Any]:
        """The leaves that a plain call may overwrite without a trace, for a subclass."""
        return []

    def _inside(self, leaves: list[Any]) -> set[int]:
        """The leaves whose copies may serve the graph as memory, if it may overwrite what it reads.

        In the capture their content is undefined.
        """
        return set()

    def _found(self, leaves: list[Any]) -> list[tuple[int, Found]]:
        """The arguments that lie where another graph has written them, by index."""
        return []

    def _results(
        self, result: Any, inputs: Inputs, places: dict[int, Any], device: Any
    ) -> Outputs | Handed:
        """How the graph's results get to the caller.

        *places* has by the index of a leaf what is not copied for the graph.
        """
        return Outputs(result, self.options.clone, [*inputs.tensors, *places.values()], device)

    def _failed(self, entry: Entry, call: Call, error: Exception) -> None:
        if isinstance(error, Busy):
            return
        entry.tries += 1
        if passes(error) and entry.tries < _TRIES:
            entry.pool = None  # The next call is observed again.
            return
        self._refuse(entry, call, explain(error))

    def _refuse(self, entry: Entry, call: Call | None, why: str) -> None:
        entry.refused = why
        if call and call.device is not None:
            self._memory.release(call.device)
        self.refuse(why, call.leaves if call else [])

    def refuse(self, why: str, leaves: Sequence[Any]) -> None:
        """Put on the record, and write once to stderr, that calls like this have no graph."""
        record.record_refusal(self.row, self._describe(leaves), why)

    def _describe(self, leaves: Sequence[Any]) -> str:
        """The signature of a call as text, without what is at a fixed place."""
        shown = (one for index, one in enumerate(leaves) if index not in self._fixed_leaves)
        return describe(shown)

    def _room(self, entry: Entry) -> bool:
        """Make room for one more graph, if there is none. Returns whether that was possible."""
        with self._lock:
            evicted = choose_evicted(self._entries, entry, self.options.limit, _has_graph)
            for key in evicted or ():
                self._drop(key)
                self.row["dropped"] += 1
            return evicted is not None

    def _forget(self) -> None:
        """Limit the number of signatures without a graph."""
        for key in choose_forgotten(self._entries, self.options.limit, _has_graph):
            self._drop(key)

    def _drop(self, key: Any) -> None:
        entry = self._entries.pop(key)
        if self._latest.get(key[0]) is entry:
            del self._latest[key[0]]
        self._free(entry)

    def _free(self, entry: Entry) -> None:
        """Drop the graph of an entry, if it has one."""
        soundness.budget.forget_graph(id(entry))
        if entry.graph is not None:
            with entry.pool.idle():
                entry.graph = entry.inputs = entry.outputs = entry.consumed = entry.carried = None
                entry.found, entry.borrowed = [], []
            entry.memory.sweep()

    def clear(self) -> None:
        """Drop all graphs and everything known about signatures."""
        with self._lock:
            for key in list(self._entries):
                self._drop(key)


def _has_graph(entry: Entry) -> bool:
    return entry.graph is not None


def _write(tensors: list[Any], contents: list[Any]) -> None:
    for tensor, content in zip(tensors, contents):
        tensor.copy_(content)


def _put_back(tensors: list[Any], contents: list[Any], kept: Aside | None) -> None:
    """Undo what a plain call has changed, for the replay of the same call."""
    _write(tensors, contents)
    if kept is not None:
        kept.restore()


def _put(found: list[tuple[int, Found]], leaves: list[Any]) -> str:
    """Put the arguments at the places where a graph reads them. Why that can't be; "" if it can."""
    for index, one in found:
        there = one.put(leaves[index])
        if there is None:
            return ELSEWHERE
        leaves[index] = there
    return ""


def _repeated(places: Sequence[int | None]) -> list[int]:
    """For each place the index of the first one that is equal: which tensors share their memory."""
    first: dict[int | None, int] = {}
    return [first.setdefault(place, index) for index, place in enumerate(places)]


def _constants(result: Any) -> list[Any]:
    """What in a result is not a tensor, in a form that can be compared with another call's."""
    leaves = _leaves(result)
    return [(type(leaf), repr(leaf)) for leaf in leaves if not isinstance(leaf, torch.Tensor)]


def _objection_to_constants(result: Any) -> str:
    """Why all replays can't return what in a result is not a tensor; "" if they can.

    That may be a container which pytree does not know, or something with a state.
    """
    for kind in map(type, _leaves(result)):
        if kind not in CONSTANTS and not issubclass(kind, torch.Tensor):
            name = f"{kind.__module__}.{kind.__qualname__}"
            return f"the result has a {name}, and each replay would return the same one"
    return ""


def _extents(tensors: Iterable[Any]) -> list[tuple[int, int]]:
    """Where the memories of tensors begin and end."""
    memories = (tensor.untyped_storage() for tensor in tensors)
    return sorted({(one.data_ptr(), one.data_ptr() + one.nbytes()) for one in memories})


def _numbers_elsewhere(result: Any, device: Any) -> dict[int, Any]:
    """The tensors of a result without a dimension that are on another device, by their index."""
    return {
        index: leaf.device
        for index, leaf in enumerate(_leaves(result))
        if type(leaf) in TENSORS and not leaf.dim() and leaf.device != device
    }
