"""What a graph of a training step hands out, mostly without copies.

A forward saves values for its backward. They stay where the forward's graph has written them, so
the backward's graph finds them there. In the same way a gradient gets from one region's backward to
the next one's. The next replay would overwrite them. So it may only run when nothing uses their
memory any more: :meth:`BorrowedOutputs.why_held` says so, because each tensor that shares the
memory counts. If something does, a plain call takes the replay's place.
"""

from __future__ import annotations

import math
import operator
import sys
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
    Set,
)
from typing import TYPE_CHECKING, Any

import torch

from rocm_autopatch.graphs import readers
from rocm_autopatch.graphs.buffers import (
    RESIZED,
    SAVED,
    GraphOutputs,
    addresses_of,
    dense_part,
    find_twins,
    is_only_of_python,
    move_together,
    own_references,
    refuse_result,
    without_history,
)
from rocm_autopatch.graphs.layout import (
    Place,
    has_memory,
    place_of,
    storage_key,
    use_count,
    view_at,
)
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.graphs.pytrees import TENSORS

if TYPE_CHECKING:
    from rocm_autopatch.graphs.capture import CapturePool

# A result of fewer bytes stays in memory that it owns.
_SMALL = 1 << 20
#: What returns the innermost hooks of saved tensors in this thread, from torch 2.8 on.
TOP_HOOKS = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
NEEDED = "what its forward saved or returned is still needed after it"
# By memory: the results that lie in it.
Owners = MutableMapping[int, "BorrowedOutputs"]


def are_hooked() -> bool:
    """Whether hooks get what this thread's autograd saves now, as far as this torch tells."""
    return TOP_HOOKS is not None and TOP_HOOKS(False) is not None


class SameTensors:
    """Tensors of a graph that each caller gets themselves.

    If nobody else has one, it is as good as new, and to make a new one takes longer. Hooks of saved
    tensors get new ones: they may know a tensor again, or move it, also by a weak reference.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors, self.ids = tensors, frozenset(map(id, tensors))
        self._addresses = addresses_of(tensors)
        self._memories = frozenset(map(storage_key, tensors))

    def are_there(self) -> bool:
        """Whether they are where they were: a hook of saved tensors may give one other memory."""
        return [*map(torch.Tensor.data_ptr, self.tensors)] == self._addresses

    def used_among(self, memories: Collection[int]) -> list[int]:
        """Those of these memories in which one lies that somebody else has."""
        tensors = self.tensors
        if not tensors or self._memories.isdisjoint(memories):
            return []
        if _count_users(tensors) <= len(tensors) * _ALONE:
            return []
        users = map(
            operator.add, map(sys.getrefcount, tensors), map(torch.Tensor._use_count, tensors)
        )
        used = {one for one, number in zip(map(storage_key, tensors), users) if number > _ALONE}
        return [*used.intersection(memories)]


class BorrowedOutputs:
    """The results of a graph: *result*, a sequence of tensors and constants.

    *copied* are the indices of those that each caller gets a copy of, *shown* the indices of those
    that the program may get, *saved* the indices of those that autograd keeps and nobody else: each
    caller gets the same tensors. *fixed* has by the index of a leaf the tensor at a fixed place
    that the graph was captured with: a result that shares its memory is made anew of the tensor of
    each call, or is a copy of it. *holders* returns more tensors that may be results which the
    program still holds, such as the gradient to which the next one is added. They are moved to
    memory of their own at the next replay, unless something else shares their memory.

    Other results are not moved: autograd may have saved the tensor, or a view of it. If the program
    still holds one at the next replay, it gets copies from then on. Their indices are added to
    *kept*, which all graphs of the same code share.
    """

    lends = True

    def __init__(
        self,
        result: Sequence[object],
        copied: Container[int],
        shown: Container[int],
        saved: Set[int],
        kept: set[int],
        fixed: Mapping[int, torch.Tensor],
        holders: Callable[[], Iterable[torch.Tensor]],
        device: torch.device,
    ) -> None:
        self.leaves = without_history(result)
        self._holders, self._device = holders, device
        #: Whether a backward reads some of them.
        self.for_backward = False
        self.gone = math.inf
        # What is no longer owned, and others may overwrite.
        self._let_go: set[int] = set()
        #: Whether a replay that would overwrite them found them in use since this was set to False.
        self.in_the_way = False
        owners = {storage_key(tensor): index for index, tensor in fixed.items()}
        # By index: the leaf whose memory it shares, dtype, where in it, and whether it is copied.
        self._through: list[tuple[int, int, torch.dtype, Place, bool]] = []
        # Of those that are that leaf: its index.
        self._passed_on: list[tuple[int, int]] = []
        #: Of those that the program does not get: that leaf, and the address.
        self.passed: list[tuple[int, int]] = []
        for index, leaf in enumerate(self.leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            refuse_result(leaf, device)
            owner = owners.get(storage_key(leaf))
            if owner is not None and leaf.numel():
                there, place = fixed[owner], place_of(leaf)
                is_same = leaf.dtype == there.dtype and place == place_of(there)
                if is_same and index not in copied:
                    self._passed_on.append((index, owner))
                else:
                    self._through.append((index, owner, leaf.dtype, place, index in copied))
                if index not in shown:
                    self.passed.append((owner, leaf.data_ptr()))
                # A graph keeps no weight alive, and is no user of what another one has saved.
                self.leaves[index] = None
        own = [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self._shown = [index for index in own if index in shown]
        # Where torch does not tell whether there are hooks, each caller gets others.
        self._saved = saved - {*self._shown} if TOP_HOOKS is not None else frozenset()
        self._seen_kept = kept
        self._divide_results({index for index in own if index in copied})
        #: The addresses of what the program does not get.
        self.places = {self.leaves[index].data_ptr() for index in own if index not in shown}
        #: By memory: how many references there are while no caller holds one, and Python's object
        #: for it.
        self.counts: dict[int, int] = {}
        self.objects: dict[int, torch.UntypedStorage] = {}
        # Of these, what somebody may use: not what the last backward was the last one to read.
        self._asked = self.counts
        # These objects, the memories that a program can resize, and their addresses.
        self._located: tuple[dict[int, torch.UntypedStorage], list[int], list[int]]
        self._located = self.objects, [], []
        #: What callers get itself.
        self.same = SameTensors([])
        # Whether memories, and these tensors, were where they belong when nobody could change that
        # any more.
        self._is_sound = self._is_same_sound = False
        # The memory that the results lie in, the number of their graph in it, and what replays it.
        self._lend: tuple[GraphMemory, int, object] | None = None
        self._owners: Owners = {}

    def _divide_results(self, copied: set[int]) -> None:
        """Copy these for each caller, and hand out the others where they are."""
        self._copied = sorted(copied)
        own = [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self._handed_out, self._twins = find_twins(
            self.leaves, [one for one in own if one not in copied]
        )
        same = self._saved - self._seen_kept
        self._same = [index for index in self._handed_out if index in same]
        self._fresh = [index for index in self._handed_out if index not in same]
        copies = [self.leaves[index] for index in self._copied]
        self._copies = GraphOutputs(copies, True, (), self._device, gives_views=False)

    def count_owners(self, given: Sequence[torch.Tensor]) -> None:
        """Note how many references each result's memory has while no caller holds one.

        *given* are the graph's own copies of its arguments.
        """
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]
        own = own_references([*tensors, *self._copies.own_tensors(), *given])
        self.counts = {storage_key(leaf): own[storage_key(leaf)] + _OF_PYTHON for leaf in tensors}
        self._asked = self.counts
        self.objects = {storage_key(leaf): leaf.untyped_storage() for leaf in tensors}
        self._locate()

    def own(self, owners: Owners, memory: GraphMemory, order: int, graph: object) -> None:
        """Be found by the memory of the results, of *graph* with this number in *memory*."""
        self._lend, self._owners = (memory, order, graph), owners
        for pointer in self.counts:
            owners[pointer] = self

    def lend(self) -> None:
        """Somebody may use the results now, though the graph was not replayed."""
        self._note_users()
        if self._lend is not None:
            memory, order, _ = self._lend
            memory.lend(order, self)

    def _note_users(self) -> None:
        self._asked, self._is_sound, self._is_same_sound = self.counts, False, False

    def overlaid(self) -> str | None:
        """Why nothing may be written to the results: others are in use, and may lie there, too.

        None if it may.
        """
        assert self._lend is not None
        memory, order, _ = self._lend
        # What was donated to this graph counts, too: its replays may overwrite that, as they find
        # it among their arguments. Who writes here without a replay does not.
        return memory.busy(order + 1, self)

    @property
    def memory(self) -> GraphMemory:
        """What the results lie in, once their graph is captured."""
        assert self._lend is not None
        return self._lend[0]

    def saved_and_shown(self) -> set[int]:
        """The addresses of those that the program gets and that are among the results again."""
        number = Counter(self.leaves[index].data_ptr() for index in self._shown)
        return {place for place, times in number.items() if times > 1}

    def passing_memories(self) -> set[int]:
        """The memories of the results that may be others' once nobody uses them any more.

        What is not owned can't be resized by the program. So small ones stay owned.
        """
        small = {one for one in self._shown_memories() if self.objects[one].nbytes() < _SMALL}
        copied = {storage_key(self.leaves[index]) for index in self._copied}
        return self.counts.keys() - copied - small

    def used_only_by(self, leaves: Sequence[Any]) -> dict[int, int]:
        """The memories of results that only *leaves* use, with the number of tensors there."""
        where = [storage_key(leaf) if type(leaf) in TENSORS else None for leaf in leaves]
        found, referred = {}, self.referred_memories()
        for memory in self.passing_memories():
            ones = [index for index, other in enumerate(where) if other == memory]
            others = [index for index in ones if id(leaves[index]) not in self.same.ids]
            number = len({id(leaves[index]) for index in others})
            is_free = memory not in referred and self.are_alone(
                self.same_in([memory]), [leaves[index] for index in others], len(ones) - len(others)
            )
            if use_count(memory) <= self.counts[memory] + number and is_free:
                found[memory] = number
        return found

    def same_in(self, memories: Container[int]) -> list[int]:
        """The indices of what callers get itself and lies there."""
        return [index for index in self._same if storage_key(self.leaves[index]) in memories]

    def are_alone(self, same: list[int], others: list[torch.Tensor], given: int) -> bool:
        """Whether nobody has these results and *others* but one list of a call.

        Of the results, it has *given*. All else that refers to them is here.
        """
        users = _count_users([self.leaves[index] for index in same]) + _count_users(others)
        return users <= (len(same) + len(others)) * _ALONE + len(same) + given

    def let_go(
        self, memories: Iterable[int], leaves: list[Any], pool: CapturePool, order: int
    ) -> dict[int, int]:
        """Own these memories no more, nor let *leaves* own them. Returns what they are called now.

        The graph with the number *order* is the last one that reads them, or the one that writes
        them. It and later ones may overwrite them. Only replays and calls of
        ``Pool.run_beside_graphs`` write there, so their content stays until then.
        """
        assert self._lend is not None
        first = {
            memory: next(i for i, leaf in enumerate(self.leaves) if _memory_of(leaf) == memory)
            for memory in memories
        }
        made = {memory: pool.unowned(self.leaves[index]) for memory, index in first.items()}
        self.leaves = _leaves_instead(
            self.leaves, {memory: make(self._lend[2]) for memory, make in made.items()}
        )
        self.gone = order
        self._lend[0].note_overwritten(self._lend[1], self)
        there = {memory: self.leaves[index] for memory, index in first.items()}
        names = {memory: storage_key(leaf) for memory, leaf in there.items()}
        own = own_references(leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor))
        for memory, name in names.items():
            del self.counts[memory], self.objects[memory]
            self.counts[name] = own[name] + _OF_PYTHON
            self.objects[name] = there[memory].untyped_storage()
            self._owners.pop(memory, None)
            self._owners[name] = self
        self._let_go.update(names.values())
        self._locate()
        readers.watch_readers(self, pool)
        leaves[:] = _leaves_instead(leaves, there)
        return names

    def resized(self) -> str | None:
        """Why the graph must not be replayed any more; None if it may.

        A program may free or move the memory of a tensor: ``tensor.untyped_storage().resize_(0)``.
        What is not owned can't be resized.
        """
        is_sound = self._is_sound or self._are_there()
        return None if is_sound and (self._is_same_sound or self.same.are_there()) else RESIZED

    def _are_there(self) -> bool:
        objects, memories, where = self._located
        return _addresses(objects, memories) == where

    def _locate(self) -> None:
        memories = [memory for memory in self.objects if memory not in self._let_go]
        self._located = self.objects, memories, _addresses(self.objects, memories)
        self.same = SameTensors([self.leaves[index] for index in self._same])

    def note_resized(self) -> bool:
        """Have what the program has resized copied by later graphs. False if some is saved."""
        objects, memories, where = self._located
        moved = {
            memory
            for memory, before, now in zip(memories, where, _addresses(objects, memories))
            if before != now
        }
        changed = {one for one in self._handed_out if _memory_of(self.leaves[one]) in moved}
        self._seen_kept |= changed
        if not self.same.are_there():
            self._seen_kept.update(self._same)
        return changed <= set(self._shown)

    def result_memories(self) -> list[int]:
        """What results lie in."""
        return [*self.counts]

    def only_shown_in_use(self) -> bool:
        """Whether all that is in use is what the program got, and nothing is saved for later."""
        return self._shown_memories().issuperset(self.used_memories())

    def _shown_memories(self) -> set[int]:
        shown = [self.leaves[index] for index in self._shown]
        return {storage_key(one) for one in shown if one is not None}

    def abandoned_outputs(self) -> BorrowedOutputs:
        """What takes its place when its graph is gone: nothing of what nobody uses.

        A garbage collection may call it while another method is under way: no dictionary changes.
        """
        used = set(self.used_memories())
        for memory in self.counts.keys() - used:
            if self._owners.get(memory) is self:
                del self._owners[memory]
        self.counts = {one: most for one, most in self.counts.items() if one in used}
        self._asked = self.counts
        self.objects = {one: its for one, its in self.objects.items() if one in used}
        leaves = [leaf if _memory_of(leaf) in used else None for leaf in self.leaves]
        self._shown = [index for index in self._shown if leaves[index] is not None]
        self.leaves = leaves
        self._divide_results({index for index in self._copied if self.leaves[index] is not None})
        self._locate()
        return self

    def uses(self, pointer: int) -> bool:
        """Whether something uses this memory, which is of one of the results."""
        # Of a graph that is gone, it may not be known.
        most = self.counts.get(pointer, -1)
        referred = use_count(pointer) > most or pointer in self.referred_memories()
        return referred or bool(self.same.used_among([pointer]))

    def referred_memories(self) -> list[int]:
        """The memories to whose objects Python refers: a count of the memory may not tell."""
        return _find_referred(self.objects, self.objects)

    def note_last_reader(self, others: dict[int, int], has_same: bool) -> None:
        """A replay was the only one that had all memories but *others*, and it is over.

        Until a replay of their own graph, nobody can use them. With *has_same* it had all tensors
        that callers get itself, too, where they belong.
        """
        counts = self.counts
        self._asked = {one: most for one, most in others.items() if one in counts}
        self._is_same_sound = has_same

    def used_memories(self) -> list[int]:
        # In this order: what is asked for may become less at any time, and its objects after it.
        objects, asked = self.objects, self._asked
        if not asked:
            return []
        used = _find_used(asked, objects) + self.same.used_among(asked)
        if not used and asked is self.counts:
            # Later, each look at a tensor takes longer: the processor has it in its cache now.
            self._is_sound, self._is_same_sound = self._are_there(), self.same.are_there()
        return used

    def used_of_gone(self) -> list[int]:
        if not self._let_go:
            return []
        return [memory for memory in self.used_memories() if memory in self._let_go]

    def why_held(self) -> str | None:
        """Why the next replay must not run now; None if it may."""
        held = self.used_memories()
        if not held:
            return None
        self.in_the_way = True
        referred = self.referred_memories()
        for memory, tensors in self._movable_by_memory(held).items():
            is_alone = use_count(memory) == self.counts.get(memory, -1) + len(tensors)
            if is_alone and memory not in referred:
                move_together(tensors)
        held = self.used_memories()
        self.copy_from_now_on(held)
        return SAVED if held else None

    def copy_from_now_on(self, held: Container[int]) -> None:
        """Hand out copies of what the program may get of these memories."""
        more = {index for index in self._shown if _memory_of(self.leaves[index]) in held}
        self._seen_kept |= more
        if not more <= set(self._copied):
            # What is saved, too, stays where it is.
            self._divide_results(more.union(self._copied))

    def take(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """The result of the last replay, which was a call with *leaves*."""
        self._note_users()
        given = list(self.leaves)
        for index in self._handed_out if self._same and are_hooked() else self._fresh:
            # With versions of its own: a change of one call's result is none of another's.
            given[index] = given[index].data
        if self._copied:
            for index, copy in zip(self._copied, self._copies.take(leaves)):
                given[index] = copy
        for index, first in self._twins:
            given[index] = given[first]
        for index, owner in self._passed_on:
            given[index] = leaves[owner]
        for index, owner, dtype, where, copied in self._through:
            there = view_at(leaves[owner], dtype, where)
            given[index] = there.clone() if copied else there
        return tuple(given)

    def _movable_by_memory(self, held: Container[int]) -> dict[int, list[torch.Tensor]]:
        """By memory, of those *held*: what the program has of it, as far as we know."""
        found: dict[int, dict[int, torch.Tensor]] = {}
        for tensor in self._holders():
            # A weight refers to its gradient itself.
            if not has_memory(tensor) or storage_key(tensor) not in held:
                continue
            if is_only_of_python(tensor, others=1):
                found.setdefault(storage_key(tensor), {})[id(tensor)] = tensor
        return {memory: list(tensors.values()) for memory, tensors in found.items()}


class AliasedInput:
    """An argument of a graph that lies among the results of another one.

    The graph reads it there. If a later call has it elsewhere, it is copied there, unless what is
    there is in use.
    """

    def __init__(self, leaf: torch.Tensor, owner: BorrowedOutputs) -> None:
        self._address, self._owner = leaf.data_ptr(), owner
        self._place, self._dtype = place_of(leaf), leaf.dtype
        memory = storage_key(leaf)
        self._index = next(i for i, one in enumerate(owner.leaves) if _memory_of(one) == memory)

    def put(self, leaf: torch.Tensor) -> torch.Tensor | None:
        """The argument at its place; None if it can't be there now."""
        if leaf.data_ptr() == self._address:
            return leaf
        memory = _memory_of(self._owner.leaves[self._index])
        if (
            memory is None
            or self._owner.uses(memory)
            or self._owner.resized()
            or self._owner.overlaid()
        ):
            return None
        there = view_at(self._owner.leaves[self._index].data, self._dtype, self._place)
        dense_part(there).copy_(dense_part(leaf))
        # It may be saved for a backward, so nothing may overwrite it.
        self._owner.lend()
        return there


class DonatedInputs:
    """What a forward has handed out and its backward's graph overwrites: nobody reads it later.

    A replay of such a graph needs no more memory than a backward without graphs.
    """

    def __init__(self, results: BorrowedOutputs, leaves: Sequence[Any]) -> None:
        self.results, self._memories = results, results.used_only_by(leaves)
        # What they are called after let_go(), and the results' other memories.
        self._names: list[int] = []
        self._others: dict[int, int] = {}
        #: Which leaves lie there.
        self.indices = [
            index
            for index, leaf in enumerate(leaves)
            if type(leaf) in TENSORS and storage_key(leaf) in self._memories
        ]
        # Of these, which ones are the results themselves in the last call, and which results they
        # are if all are.
        self._are_same: list[bool] | None = None
        self._positions: list[int] | None = None
        # Whether they were, and are all that callers get itself.
        self._has_same = False
        # How many references each memory has then if nobody else has it; the indices of what
        # callers get itself; and those of the other leaves.
        self._expected: dict[int, int] = {}
        self._same: list[int] = []
        self._other_indices: list[int] = []

    def let_go(self, leaves: list[Any], pool: CapturePool, order: int) -> None:
        """Let the graph with this order have the memory: only the captured arguments own it now."""
        self._names = [*self.results.let_go(self._memories, leaves, pool, order).values()]
        self._others = _without(self.results.counts, self._names)
        self._same = self.results.same_in(self._names)

    def note_replay(self) -> None:
        """A replay has overwritten it, after :meth:`held` has found no other user."""
        # What a backward is given of its forward is where it belongs.
        self.results.note_last_reader(self._others, self._has_same)

    def held(self, leaves: Sequence[torch.Tensor]) -> str | None:
        """Why a backward with *leaves* must not overwrite it; None if it may."""
        given = [leaves[index] for index in self.indices]
        results, positions = self.results, self._positions
        is_known = positions is not None and all(
            map(operator.is_, given, map(results.leaves.__getitem__, positions))
        )
        self._has_same = is_known and len(self.indices) == len(results.same.ids)
        if not is_known:
            # Hooks of saved tensors may give others at the same places.
            are_same = [*map(results.same.ids.__contains__, map(id, given))]
            if are_same != self._are_same:
                self._expect(given, are_same)
        # It would count as a user.
        del given
        held = _find_used(self._expected, results.objects)
        if held:
            results.copy_from_now_on(held)
            return NEEDED
        others = [leaves[index] for index in self._other_indices]
        number = len(self.indices) - len(others)
        return None if results.are_alone(self._same, others, number) else NEEDED

    def _expect(self, given: Sequence[torch.Tensor], are_same: list[bool]) -> None:
        where = {id(one): storage_key(one) for one, same in zip(given, are_same) if not same}
        number = Counter(where.values())
        self._expected = {one: self.results.counts[one] + number[one] for one in self._names}
        self._are_same = are_same
        self._other_indices = [one for one, same in zip(self.indices, are_same) if not same]
        self._positions = None
        if all(are_same):
            at = {id(self.results.leaves[index]): index for index in self._same}
            positions = [at[id(one)] for one in given]
            self._positions = positions if len({*positions}) == len(positions) else None


def _find_used(counts: Mapping[int, int], objects: Mapping[int, torch.UntypedStorage]) -> list[int]:
    """The memories with more references than these *counts*, or to whose object Python refers."""
    used = [memory for memory, most in counts.items() if use_count(memory) > most]
    return used + _find_referred(objects, counts)


def _find_referred(
    objects: Mapping[int, torch.UntypedStorage], among: Collection[int]
) -> list[int]:
    # There may be hundreds, and mostly none is referred to.
    is_all = len(among) == len(objects)
    each = objects.values() if is_all else map(objects.__getitem__, among)
    if max(map(sys.getrefcount, each), default=0) <= _UNREFERRED:
        return []
    numbers = map(sys.getrefcount, map(objects.__getitem__, among))
    return [memory for memory, number in zip(among, numbers) if number > _UNREFERRED]


def _addresses(objects: Mapping[int, torch.UntypedStorage], memories: list[int]) -> list[int]:
    return [*map(torch.UntypedStorage.data_ptr, map(objects.__getitem__, memories))]


def _without(counts: Mapping[int, int], memories: Container[int]) -> dict[int, int]:
    return {one: most for one, most in counts.items() if one not in memories}


def _leaves_instead(leaves: Sequence[Any], there: Mapping[int, torch.Tensor]) -> list[Any]:
    """The leaves; for those in a memory of *there*, tensors at the same places in that tensor's."""
    new = {
        id(leaf): view_at(there[storage_key(leaf)].data, leaf.dtype, place_of(leaf)).data
        for leaf in leaves
        if type(leaf) in TENSORS and storage_key(leaf) in there
    }
    return [new.get(id(leaf), leaf) for leaf in leaves]


def _memory_of(leaf: object) -> int | None:
    return storage_key(leaf) if isinstance(leaf, torch.Tensor) else None


def _count_users(tensors: Sequence[torch.Tensor]) -> int:
    """How many references there are to tensors, not to their memory.

    A tensor that autograd has saved may be the same one as the program has.
    """
    return sum(map(sys.getrefcount, tensors)) + sum(map(torch.Tensor._use_count, tensors))


# Of Python's object for a memory that only a dictionary has. On older torches it counts as a user
# of the memory, while somebody has it.
_of_one = torch.empty(0)
_unheld = use_count(storage_key(_of_one))
_objects = {0: _of_one.untyped_storage()}
_OF_PYTHON = use_count(storage_key(_of_one)) - _unheld
_UNREFERRED = next(map(sys.getrefcount, map(_objects.__getitem__, _objects)))
# Of a tensor that is in one list only, and in that of the tensors. It differs between Pythons.
_one = [torch.empty(0)]
_ALONE = _count_users([_one[0]])
