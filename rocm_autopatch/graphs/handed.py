"""What a graph of a training step hands out, mostly without copies.

A forward saves values for its backward. They stay where the forward's graph has written them, so
the backward's graph finds them there. In the same way a gradient gets from one region's backward to
the next one's. The next replay would overwrite them. So it may only run when nothing uses their
memory any more: :meth:`Handed.held` says so, because each tensor that shares the memory counts. If
something does, a plain call takes the replay's place.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from rocm_autopatch.graphs.buckets import Cut
from rocm_autopatch.graphs.buffers import (
    RESIZED,
    Outputs,
    addresses,
    refuse_result,
    storage,
    twins,
)
from rocm_autopatch.graphs.memory import Memory
from rocm_autopatch.graphs.watch import same_places

SAVED = "what its last replay saved or returned is still in use"
# By memory: the results that lie in it.
Owners = MutableMapping[int, "Handed"]


class Handed:
    """The results of a graph: *result*, a sequence of tensors and constants.

    *copied* are the indices of those that each caller gets a copy of, *shown* the indices of those
    that the program may get. *fixed* has by the index of a leaf the tensor at a fixed place that
    the graph was captured with: a result that shares its memory is made anew of the tensor of each
    call, or is a copy of it. *holders* returns more tensors that may be results which the program
    still holds, such as the gradient to which the next one is added. They are moved to memory of
    their own at the next replay, unless something else shares their memory.

    Other results are not moved: autograd may have saved the tensor, or a view of it. If the program
    still holds one at the next replay, it gets copies from then on.
    """

    lends = True

    def __init__(
        self,
        result: Sequence[Any],
        copied: Container[int],
        shown: Container[int],
        fixed: Mapping[int, Any],
        holders: Callable[[], Iterable[Any]],
        device: Any,
    ) -> None:
        self.leaves = list(result)
        self._holders, self._device = holders, device
        owners = {storage(tensor): index for index, tensor in fixed.items()}
        # By index: the leaf whose memory it shares, dtype, where in it, and whether it is copied.
        self._through: list[tuple[int, int, Any, tuple[Any, ...], bool]] = []
        for index, leaf in enumerate(self.leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            refuse_result(leaf, device)
            owner = owners.get(storage(leaf))
            if owner is not None and leaf.numel():
                self._through.append((index, owner, leaf.dtype, place(leaf), index in copied))
                # A graph keeps no weight alive, and is no user of what another one has saved.
                self.leaves[index] = None
        own = [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self._copied = [index for index in own if index in copied]
        kept = [index for index in own if index not in copied]
        self._kept, self._twins = twins(self.leaves, kept)
        self._shown = [index for index in self._kept if index in shown]
        self._copies = self._copy()
        saved = [index for index in self._kept if index not in shown]
        #: The addresses of what is handed out without a copy, and the program does not get.
        self.places = {self.leaves[index].data_ptr() for index in saved}
        # By memory: how many references there are while no caller holds one.
        self._counts: dict[int, int] = {}
        # By index the addresses that the graph writes to.
        self._addresses = addresses(self.leaves)
        # The memory that the results lie in, and the number of their graph in it.
        self._lend: tuple[Memory, int] | None = None

    def count(self) -> None:
        """Note how many references each result's memory has while no caller holds one."""
        pointers = {storage(leaf) for leaf in self.leaves if isinstance(leaf, torch.Tensor)}
        self._counts = {one: _references(one) for one in pointers}

    def own(self, owners: Owners, memory: Memory, order: int) -> None:
        """Be found by the memory of the results, of a graph with this number in *memory*."""
        self._lend = memory, order
        for pointer in self._counts:
            owners[pointer] = self

    def lend(self) -> None:
        """Somebody may use the results now, though the graph was not replayed."""
        if self._lend is not None:
            memory, order = self._lend
            memory.lend(order, self)

    def resized(self) -> str:
        """Why the graph must not be replayed any more; "" if it may.

        A program may free or move the memory of a tensor: ``tensor.untyped_storage().resize_(0)``.
        """
        return "" if same_places(self.leaves, self._addresses, self._kept) else RESIZED

    def uses(self, pointer: int) -> bool:
        """Whether something uses this memory, which is of one of the results."""
        return _references(pointer) > self._counts[pointer]

    def in_use(self) -> bool:
        return any(_references(memory) > most for memory, most in self._counts.items())

    def held(self) -> str:
        """Why the next replay must not run now; "" if it may."""
        held = self._held()
        if not held:
            return ""
        for memory, tensors in self._movable(held).items():
            if _references(memory) == self._counts[memory] + len(tensors):
                _move(tensors)
        held = self._held()
        self._copy_from_now_on([i for i in self._shown if storage(self.leaves[i]) in held])
        return SAVED if held else ""

    def take(self, cuts: Sequence[Cut], leaves: Sequence[Any]) -> Any:
        """The result of the last replay, which was a call with *leaves*."""
        given = list(self.leaves)
        for index in self._kept:
            # With versions of its own: a change of one call's result is none of another's.
            given[index] = given[index].data
        for index, copy in zip(self._copied, self._copies.take((), leaves)):
            given[index] = copy
        for index, first in self._twins:
            given[index] = given[first]
        for index, owner, dtype, where, copied in self._through:
            view = _view(leaves[owner], dtype, where)
            given[index] = view.clone() if copied else view
        return tuple(given)

    def _copy_from_now_on(self, indices: list[int]) -> None:
        if indices:
            self._kept = [index for index in self._kept if index not in indices]
            self._shown = [index for index in self._shown if index not in indices]
            self._copied += indices
            self._copies = self._copy()

    def _movable(self, held: Container[int]) -> dict[int, list[Any]]:
        """By memory, of those *held*: what the program has of it, as far as we know."""
        found: dict[int, dict[int, Any]] = {}
        for tensor in self._holders():
            if storage(tensor) in held:
                found.setdefault(storage(tensor), {})[id(tensor)] = tensor
        return {memory: list(tensors.values()) for memory, tensors in found.items()}

    def _held(self) -> list[int]:
        return [memory for memory, most in self._counts.items() if _references(memory) > most]

    def _copy(self) -> Outputs:
        return Outputs([self.leaves[index] for index in self._copied], True, (), self._device)


class Found:
    """An argument of a graph that lies among the results of another one.

    The graph reads it there. If a later call has it elsewhere, it is copied there, unless what is
    there is in use.
    """

    def __init__(self, leaf: Any, owner: Handed) -> None:
        self._address, self._memory, self._owner = leaf.data_ptr(), storage(leaf), owner
        self._place, self._dtype = place(leaf), leaf.dtype

    def put(self, leaf: Any) -> Any:
        """The argument at its place; None if it can't be there now."""
        if leaf.data_ptr() == self._address:
            return leaf
        if self._owner.uses(self._memory) or self._owner.resized():
            return None
        there = self._there()
        there.copy_(leaf)
        # It may be saved for a backward, so nothing may overwrite it.
        self._owner.lend()
        return there

    def _there(self) -> Any:
        for one in self._owner.leaves:
            if isinstance(one, torch.Tensor) and storage(one) == self._memory:
                return _view(one.data, self._dtype, self._place)
        raise AssertionError("results stay where they are")


def _view(tensor: Any, dtype: Any, where: tuple[Any, ...]) -> Any:
    """What lies there in the memory of a tensor: the tensor itself, if it is that."""
    if tensor.dtype != dtype:
        size, stride, offset = where
        empty = tensor.new_empty(0, dtype=dtype)
        return empty.set_(tensor.untyped_storage(), offset, size, stride)
    return tensor if place(tensor) == where else tensor.detach().as_strided(*where)


def place(tensor: Any) -> tuple[Any, ...]:
    """Where in its memory a tensor lies."""
    return tensor.size(), tensor.stride(), tensor.storage_offset()


def _move(tensors: Sequence[Any]) -> None:
    """Give tensors that share their memory a copy of it, which they share, too.

    Autograd counts no write: what it has saved of them is the same.
    """
    copy = tensors[0].untyped_storage().clone()
    for tensor in tensors:
        size, stride, offset = place(tensor)
        tensor.data = tensor.detach().new_empty(0).set_(copy, offset, size, stride)


_references: Callable[[int], int] = torch._C._storage_Use_Count
