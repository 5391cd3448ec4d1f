"""What a graph of a training step hands out, mostly without copies.

A forward saves values for its backward. They stay where the forward's graph has written them, so
the backward's graph finds them there. The next replay would overwrite them. So it may only run when
nothing uses their memory any more: :meth:`Handed.held` says so, because each tensor that shares the
memory counts. If something does, a plain call takes the replay's place.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch

from rocm_autopatch.graphs.buckets import Cut
from rocm_autopatch.graphs.buffers import Outputs, refuse_result, storage

SAVED = "what its last replay saved or returned is still in use"


class Handed:
    """The results of a graph: *result*, a sequence of tensors and constants.

    *copied* are the indices of those that each caller gets a copy of. *fixed* has by the index of
    a leaf the tensor at a fixed place that the graph was captured with: a result that shares its
    memory is made anew of the tensor of each call. *holders* returns the tensors that may be
    results which the program still holds, such as the gradient to which the next one is added. At
    the next replay these are moved to memory of their own.
    """

    def __init__(
        self,
        result: Sequence[Any],
        copied: Container[int],
        fixed: Mapping[int, Any],
        holders: Callable[[], Iterable[Any]],
        device: Any,
    ) -> None:
        self.leaves = list(result)
        self._holders = holders
        owners = {storage(tensor): index for index, tensor in fixed.items()}
        # By index: the leaf whose memory it shares, and where in it.
        self._through: list[tuple[int, int, tuple[Any, ...]]] = []
        for index, leaf in enumerate(self.leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            refuse_result(leaf, device)
            owner = owners.get(storage(leaf))
            if owner is not None and leaf.numel():
                self._through.append((index, owner, _place(leaf)))
                self.leaves[index] = None  # A graph keeps no weight alive.
        own = [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self._copied = [index for index in own if index in copied]
        self._kept = [index for index in own if index not in copied]
        self._copies = Outputs([self.leaves[index] for index in self._copied], True, (), device)
        #: The addresses of what is handed out without a copy.
        self.places = {self.leaves[index].data_ptr() for index in self._kept}
        # By memory: how many references there are while no caller holds one.
        self._counts: list[tuple[int, int]] = []

    def count(self) -> None:
        """Note how many references each result's memory has while no caller holds one."""
        pointers = {storage(self.leaves[index]) for index in self._kept}
        self._counts = [(one, _references(one)) for one in pointers]

    def held(self) -> str:
        """Why the next replay must not run now; "" if it may."""
        held = self._held()
        if not held:
            return ""
        for tensor in self._holders():
            if storage(tensor) in held:
                with torch.no_grad():
                    tensor.set_(tensor.clone())
        return SAVED if self._held() else ""

    def _held(self) -> list[int]:
        return [memory for memory, most in self._counts if _references(memory) > most]

    def take(self, cuts: Sequence[Cut], leaves: Sequence[Any]) -> Any:
        """The result of the last replay, which was a call with *leaves*."""
        given = list(self.leaves)
        for index in self._kept:
            given[index] = given[index].detach()
        for index, copy in zip(self._copied, self._copies.take((), leaves)):
            given[index] = copy
        for index, owner, place in self._through:
            leaf = leaves[owner]
            given[index] = leaf if _place(leaf) == place else leaf.detach().as_strided(*place)
        return tuple(given)


def _place(tensor: Any) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset()


_references: Callable[[int], int] = torch._C._storage_Use_Count
