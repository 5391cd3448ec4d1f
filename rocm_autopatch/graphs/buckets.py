"""Buckets: sizes of a dimension that calls are padded to, so that few graphs serve many sizes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rocm_autopatch.graphs.pytrees import TENSORS, flatten_value
from rocm_autopatch.graphs.refusal import Refused


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

    def find_dimensions(
        self, leaves: Sequence[Any], owners: Sequence[str]
    ) -> list[tuple[int, int]]:
        """Which leaves it pads, in which dimension. *owners* are the names of their arguments.

        Raises ValueError if one has no such dimension.
        """
        found = []
        for index, (leaf, owner) in enumerate(zip(leaves, owners)):
            dim = self.inputs.get(owner)
            if dim is not None and type(leaf) in TENSORS:
                if leaf.dim() <= dim:
                    raise ValueError(f"bucket {self.name}: {owner} has no dimension {dim}")
                found.append((index, dim))
        return found

    def size(self, real: int) -> int | None:
        """The size that *real* is padded to, None if it is too large."""
        return next((size for size in self.sizes if size >= real), None)


@dataclass(frozen=True)
class _PaddedArgument:
    """One argument of a call, and what the function gets instead of it: a larger tensor."""

    given: torch.Tensor
    whole: torch.Tensor
    dim: int
    version: int

    def write_back(self) -> None:
        """Put into the argument what the call has changed of it."""
        if self.whole._version != self.version:
            self.given.copy_(self.whole.narrow(self.dim, 0, self.given.shape[self.dim]))


@dataclass(frozen=True)
class _ResultCut:
    """How every tensor of a result is cut: in dimension *dim*, from *size* to *real*."""

    name: str
    dim: int
    size: int
    real: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a tensor that is no padding. Raises Refused if it can't be cut."""
        if tensor.dim() <= self.dim or tensor.shape[self.dim] != self.size:
            raise Refused(
                f"bucket {self.name}: a tensor of the result has no dimension {self.dim} of size "
                f"{self.size}: its shape is {list(tensor.shape)}"
            )
        return tensor.narrow(self.dim, 0, self.real)


class Buckets:
    """The buckets of a function whose arguments have the names of *parameters*."""

    def __init__(
        self, buckets: Sequence[Bucket], parameters: Mapping[str, inspect.Parameter], name: str
    ) -> None:
        self._buckets, self._parameters = tuple(buckets), parameters
        for bucket in self._buckets:
            wrong = [one for one in bucket.inputs if one not in parameters]
            if wrong and not any(one.kind == one.VAR_KEYWORD for one in parameters.values()):
                raise ValueError(
                    f"bucket {bucket.name}: {name} has no argument {wrong[0]}; it has "
                    f"{', '.join(parameters) or 'none'}"
                )

    def pad_arguments(
        self, args: tuple[object, ...], kwargs: dict[str, object], leaves: list[Any]
    ) -> Callable[[object], object]:
        """Pad the leaves of a call, and return what makes its result of the function's.

        Raises Refused if the call exceeds a bucket, and ValueError if it does not fit the buckets.
        """
        pads: dict[int, _PaddedArgument] = {}
        cuts: list[_ResultCut] = []
        of_leaf = list(self._argument_names(args, kwargs))
        for bucket in self._buckets:
            found = bucket.find_dimensions(leaves, of_leaf)
            twice = next((of_leaf[index] for index, _ in found if index in pads), None)
            if twice is not None:
                raise ValueError(f"bucket {bucket.name}: {twice} is also in another bucket")
            sizes = {leaves[index].shape[dim] for index, dim in found}
            if len(sizes) > 1:
                raise ValueError(
                    f"bucket {bucket.name}: its arguments have different sizes: {sorted(sizes)}"
                )
            if not sizes:
                continue
            (real,) = sizes
            size = bucket.size(real)
            if size is None:
                raise Refused(
                    f"bucket {bucket.name}: the call exceeds its last size, {bucket.sizes[-1]}"
                )
            for index, dim in found:
                pads[index] = _pad_argument(leaves[index], dim, size, bucket.fill)
            if bucket.outputs is not None:
                cuts.append(_ResultCut(bucket.name, bucket.outputs, size, real))
        for index, pad in pads.items():
            leaves[index] = pad.whole
        return functools.partial(_cut_result, [*pads.values()], cuts)

    def _argument_names(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[str]:
        """The name of the argument that each leaf belongs to."""
        names: list[str] = []
        for parameter in self._parameters.values():
            if parameter.kind == parameter.VAR_POSITIONAL:
                names += [parameter.name] * len(args)
            else:
                names.append(parameter.name)
        for name, value in [*zip(names, args), *kwargs.items()]:
            within: list[object] = []
            flatten_value(value, within)
            yield from [name] * len(within)


def _pad_argument(given: torch.Tensor, dim: int, size: int, fill: float) -> _PaddedArgument:
    shape = list(given.shape)
    real, shape[dim] = shape[dim], size
    # What inference mode makes does not count the writes to it.
    with torch.inference_mode(False):
        whole = torch.full(shape, fill, dtype=given.dtype, device=given.device)
    whole.narrow(dim, 0, real).copy_(given)
    return _PaddedArgument(given, whole, dim, whole._version)


def _cut_result(
    pads: Sequence[_PaddedArgument], cuts: Sequence[_ResultCut], result: object
) -> object:
    for pad in pads:
        pad.write_back()

    def cut(leaf: Any) -> object:
        if not cuts or type(leaf) not in TENSORS:
            return leaf
        for one in cuts:
            leaf = one.of(leaf)
        # Without it, the caller would hold the padding, too.
        return leaf.clone()

    return torch.utils._pytree.tree_map(cut, result)
