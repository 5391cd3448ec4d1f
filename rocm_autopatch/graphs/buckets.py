"""Buckets: sizes of a dimension that calls are padded to, so that few graphs serve many sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Bucket:
    """A dimension that is padded to the next of a few sizes; results are cut to the real size.

    This is correct only if the padding does not change the rest: along a batch, or if a mask says
    what is padding.

    Args:
        name: the name of the dimension, for errors and the record.
        sizes: the sizes to pad to. A call with a larger one runs without a graph.
        inputs: the names of arguments, each with the dimension of its tensors, from 0.
        outputs: the dimension in which every tensor of the result is cut; None cuts nothing.
        fill: the value of the padding.

    Raises ValueError if a size is not positive or a dimension is negative.
    """

    name: str
    sizes: Sequence[int]
    inputs: Mapping[str, int]
    outputs: int | None = 0
    fill: float = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(sorted(set(self.sizes))))
        if not self.sizes or self.sizes[0] < 1:
            raise ValueError(f"bucket {self.name}: give at least one size, and only positive sizes")
        if not self.inputs or min(self.inputs.values()) < 0 or (self.outputs or 0) < 0:
            raise ValueError(f"bucket {self.name}: give at least one input; dimensions start at 0")

    def size(self, real: int) -> int | None:
        """The size that *real* is padded to, None if it is too large."""
        return next((size for size in self.sizes if size >= real), None)


@dataclass(frozen=True)
class Pad:
    """One leaf of a call, and how it is padded: from *real* to *size* in dimension *dim*."""

    leaf: int
    dim: int
    real: int
    size: int
    fill: float

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The shape of the padded tensor."""
        found = list(tensor.shape)
        found[self.dim] = self.size
        return tuple(found)


@dataclass(frozen=True)
class Cut:
    """How every tensor of a result is cut: in dimension *dim*, from *size* to *real*."""

    name: str
    dim: int
    size: int
    real: int
