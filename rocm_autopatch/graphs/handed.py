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
from rocm_autopatch.graphs.buffers import Outputs, refuse_result, storage

SAVED = "what its last replay saved or returned is still in use"
# By memory: the results that lie in it.
Owners = MutableMapping[int, "Handed"]


class Handed:
    """The results of a graph: *result*, a sequence of tensors and constants.

    *copied* are the indices of those that each caller gets a copy of, *shown* the indices of those
    that the program may get. *fixed* has by the index of a leaf the tensor at a fixed place that
    the graph was captured with: a result that shares its memory is made anew of the tensor of each
    call, as a copy with *apart*. *holders* returns more tensors that may be results which the
    program still holds, such as the gradient to which the next one is added. They are moved to
    memory of their own at the next replay.

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
        apart: bool,
        device: Any,
    ) -> None:
        self.leaves = list(result)
        self._holders, self._apart, self._device = holders, apart, device
        owners = {storage(tensor): index for index, tensor in fixed.items()}
        # By index: the leaf whose memory it shares, the dtype, and where in it.
        self._through: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        for index, leaf in enumerate(self.leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            refuse_result(leaf, device)
            owner = owners.get(storage(leaf))
            if owner is not None and leaf.numel():
                self._through.append((index, owner, leaf.dtype, place(leaf)))
                self.leaves[index] = None  # A graph keeps no weight alive.
        own = [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self._copied = [index for index in own if index in copied]
        self._kept = [index for index in own if index not in copied]
        self._shown = [index for index in self._kept if index in shown]
        self._copies = self._copy()
        saved = [index for index in self._kept if index not in shown]
        #: The addresses of what is handed out without a copy, and the program does not get.
        self.places = {self.leaves[index].data_ptr() for index in saved}
        # By memory: how many references there are while no caller holds one.
        self._counts: dict[int, int] = {}

    def count(self) -> None:
        """Note how many references each result's memory has while no caller holds one."""
        pointers = {storage(leaf) for leaf in self.leaves if isinstance(leaf, torch.Tensor)}
        self._counts = {one: _references(one) for one in pointers}

    def own(self, owners: Owners) -> None:
        """Be found by the memory of the results."""
        for pointer in self._counts:
            owners[pointer] = self

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
        for tensor in self._holders():
            if storage(tensor) in held:
                with torch.no_grad():
                    tensor.set_(tensor.clone())
        held = self._held()
        self._copy_from_now_on([i for i in self._shown if storage(self.leaves[i]) in held])
        return SAVED if held else ""

    def take(self, cuts: Sequence[Cut], leaves: Sequence[Any]) -> Any:
        """The result of the last replay, which was a call with *leaves*."""
        given = list(self.leaves)
        for index in self._kept:
            given[index] = given[index].detach()
        for index, copy in zip(self._copied, self._copies.take((), leaves)):
            given[index] = copy
        for index, owner, dtype, where in self._through:
            view = _view(leaves[owner], dtype, where)
            given[index] = view.clone() if self._apart else view
        return tuple(given)

    def _copy_from_now_on(self, indices: list[int]) -> None:
        if indices:
            self._kept = [index for index in self._kept if index not in indices]
            self._shown = [index for index in self._shown if index not in indices]
            self._copied += indices
            self._copies = self._copy()

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
        if self._owner.uses(self._memory):
            return None
        there = self._there()
        there.copy_(leaf)
        return there

    def _there(self) -> Any:
        for one in self._owner.leaves:
            if isinstance(one, torch.Tensor) and storage(one) == self._memory:
                return _view(one.detach(), self._dtype, self._place)
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


_references: Callable[[int], int] = torch._C._storage_Use_Count
