"""Where tensors lie: their memory, and which part of it."""

from __future__ import annotations

from typing import Any


def storage(tensor: Any) -> int:
    """What tensors have in common that share their memory. It says nothing when they are gone."""
    pointer: int = tensor.untyped_storage()._cdata
    return pointer


def place(tensor: Any) -> tuple[Any, ...]:
    """Where in its memory a tensor lies: size, stride and offset, in elements."""
    return tensor.size(), tensor.stride(), tensor.storage_offset()


def view(tensor: Any, dtype: Any, where: tuple[Any, ...]) -> Any:
    """What lies there in the memory of a tensor: the tensor itself, if it is that."""
    if tensor.dtype != dtype:
        size, stride, offset = where
        empty = tensor.new_empty(0, dtype=dtype)
        return empty.set_(tensor.untyped_storage(), offset, size, stride)
    return tensor if place(tensor) == where else tensor.detach().as_strided(*where)
