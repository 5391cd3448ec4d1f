"""Where tensors lie: their memory, and which part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

# What :func:`place` returns.
Place = tuple[torch.Size, tuple[int, ...], int, bool, bool]

# How many tensors and other owners hold the memory with this pointer.
use_count: Callable[[int], int] = torch._C._storage_Use_Count


def _same_places(tensors: list[torch.Tensor], places: list[int | None], indices: list[int]) -> bool:
    return all(tensors[index].data_ptr() == places[index] for index in indices)


# Whether the tensors at *indices* are where they were. Builds of torch for a GPU have it in C++.
same_places: Callable[[list[Any], list[int | None], list[int]], bool] = getattr(
    torch._C, "_tensors_data_ptrs_at_indices_equal", _same_places
)


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies in one memory, in one way.

    A sparse one does not, nor one of another library, and a nested one has no sizes.
    """
    return tensor.layout is torch.strided and not tensor.is_nested


def kind_of_layout(tensor: torch.Tensor) -> str:
    """What a tensor is that has no such memory."""
    return "nested" if tensor.is_nested else str(tensor.layout)


def objection_to_layouts(tensors: Iterable[torch.Tensor]) -> str | None:
    """Why weights and the like can't be at a fixed place; None if they can."""
    kinds = (kind_of_layout(one) for one in tensors if not has_memory(one))
    return next((f"it has a {kind} tensor" for kind in kinds), None)


def storage_key(tensor: torch.Tensor) -> int:
    """What tensors have in common that share their memory. It says nothing when they are gone."""
    return tensor.untyped_storage()._cdata


def place_of(tensor: torch.Tensor) -> Place:
    """Where in its memory a tensor lies, and how it reads it.

    Size, stride and offset, in elements; whether it is a conjugate view, and a negative one.
    """
    where = tensor.size(), tensor.stride(), tensor.storage_offset()
    return (*where, tensor.is_conj(), tensor.is_neg())


def view_at(tensor: torch.Tensor, dtype: torch.dtype, where: Place) -> torch.Tensor:
    """What lies there in the memory of a tensor: the tensor itself, if it is that."""
    if tensor.dtype == dtype and place_of(tensor) == where:
        return tensor
    return new_view(tensor, dtype, where)


def new_view(tensor: torch.Tensor, dtype: torch.dtype, where: Place) -> torch.Tensor:
    """As :func:`view`, always another tensor."""
    size, stride, offset, conjugate, negative = where
    if tensor.dtype == dtype:
        found = tensor.detach().as_strided(size, stride, offset)
    else:
        found = tensor.new_empty(0, dtype=dtype)
        found = found.set_(tensor.untyped_storage(), offset, size, stride)
    return read_as(found, conjugate, negative)


def read_as(tensor: torch.Tensor, conjugate: bool, negative: bool) -> torch.Tensor:
    """A tensor at the same place that is a conjugate or a negative view, or is none."""
    if tensor.is_conj() != conjugate:
        tensor = torch.conj(tensor)
    return torch._neg_view(tensor) if tensor.is_neg() != negative else tensor
