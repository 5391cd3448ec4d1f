"""Small arguments that a call changes in place: copied before a replay, and back after it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rocm_autopatch.graphs.buffers import MANY, CopiedInputs, dense_part, overlaps_itself
from rocm_autopatch.graphs.layout import has_memory, storage_key
from rocm_autopatch.graphs.pytrees import TENSORS

# So many bytes are copied for a call at most. A GPU moves them four times, which takes a data
# center's one some 15 us: about the launches of three kernels.
MOST = 16 << 20
SHARED = "an argument that it changes in place shares memory with another one"


class InPlaceWriteBack:
    """The leaves at *indices*, which *inputs* has copies of.

    *fixed* are the tensors that the graph reads where they are.
    """

    def __init__(
        self, indices: Sequence[int], inputs: CopiedInputs, fixed: Iterable[torch.Tensor]
    ) -> None:
        targets = inputs.targets()
        self._indices = list(indices)
        self.targets = [targets[index] for index in indices]
        self._fixed = {storage_key(one) for one in fixed if has_memory(one)}

    def shared(self, leaves: Sequence[object]) -> str | None:
        """Why a call with these leaves can't be a replay; None if it can."""
        return SHARED if shares_memory(self._indices, leaves, self._fixed) else None

    def copy_back(self, leaves: Sequence[Any]) -> None:
        """Copy to the leaves what the last replay has made of their copies."""
        if len(self.targets) < MANY:
            for index, target in zip(self._indices, self.targets):
                leaves[index].copy_(target)
        else:
            torch._foreach_copy_([leaves[index] for index in self._indices], self.targets)


def shares_memory(indices: Sequence[int], leaves: Sequence[Any], fixed: Iterable[int] = ()) -> bool:
    """Whether one of the leaves at *indices* shares memory with another leaf, or with *fixed*."""
    seen = set(fixed)
    for index, leaf in enumerate(leaves):
        if type(leaf) in TENSORS and index not in indices:
            seen.add(storage_key(leaf))
    for index in indices:
        pointer = storage_key(leaves[index])
        if pointer in seen:
            return True
        seen.add(pointer)
    return False


def count_bytes(indices: Iterable[int], leaves: Sequence[Any]) -> int:
    """The bytes that are copied for the leaves at *indices*."""
    return sum(leaves[index].numel() * leaves[index].element_size() for index in indices)


def find_objection(
    indices: Sequence[int], leaves: Sequence[Any], fixed: Iterable[torch.Tensor]
) -> str | None:
    """Why leaves that a call changes can't be copied back; None if they can."""
    if any(
        overlaps_itself(leaves[index]) or dense_part(leaves[index]) is not leaves[index]
        for index in indices
    ):
        return "its elements share memory"
    bytes_ = count_bytes(indices, leaves)
    if bytes_ > MOST:
        return f"{bytes_ / 2**20:.0f} MiB would be copied for each call, of {MOST >> 20} at most"
    others = [storage_key(one) for one in fixed if has_memory(one)]
    return "it shares memory with another one" if shares_memory(indices, leaves, others) else None
