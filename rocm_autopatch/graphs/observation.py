"""What an observed call does besides returning a result: what a replay can't do, or repeats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from rocm_autopatch.graphs.capture import CapturePool

# So many numbers are added up at a time, at least and at most. The least needs 1 MiB: for more,
# torch's allocator takes 20 MiB from the device.
_SUMMED = 1 << 17, 1 << 19


class ObservedCall:
    """What a call that begins now does to *fixed* tensors, to those *given*, and to generators.

    With *sums*, writes that autograd does not count are seen, too.
    """

    def __init__(
        self, pool: CapturePool, fixed: list[torch.Tensor], given: list[torch.Tensor], sums: bool
    ) -> None:
        self._pool, self._fixed, self._given, self._sums = pool, fixed, given, sums
        self._versions = [self._mark_tensor(tensor) for tensor in fixed]
        # There may be no memory for copies of all of them.
        self._content = [
            (_where_it_lies(one), _version_of(one), _checksum_of(one)) for one in given
        ]
        self._random, self._elsewhere = pool.random(), pool.elsewhere()
        self._collectives = _count_collectives()

    def has_drawn(self) -> bool:
        """Whether the call has drawn random numbers from the device's generator."""
        return not torch.equal(self._pool.random(), self._random)

    def find_objection(self) -> str | None:
        """Why such calls can't be replayed; None if they can."""
        for tensor, (where, _, _) in zip(self._given, self._content):
            if _where_it_lies(tensor) != where:
                return f"it gives other memory to an argument (shape {list(where[0])})"
        return None

    def find_objection_beside(self) -> str | None:
        """As :meth:`find_objection`, if it was the call, and not another thread meanwhile."""
        if self._pool.elsewhere() != self._elsewhere:
            return "it draws random numbers on the CPU, and a replay would not: use a GPU tensor"
        if _count_collectives() != self._collectives:
            return "it runs a collective, which is not safe in a graph on ROCm (ROCm/hip#3876)"
        return None

    def written_arguments(self) -> list[int]:
        """Which of the arguments the call has changed in place."""
        return [
            number
            for number, (_, version, content) in enumerate(self._content)
            if _version_of(self._given[number]) != version
            or _checksum_of(self._given[number]) != content
        ]

    def changed_tensors(self) -> list[int]:
        """Which of the fixed tensors the call wrote to: a cache, a running mean."""
        return [
            number
            for number, before in enumerate(self._versions)
            if self._mark_tensor(self._fixed[number]) != before
        ]

    def _mark_tensor(self, tensor: torch.Tensor) -> tuple[int, int]:
        # Autograd does not count the writes of every kernel, such as cuDNN's batch norm.
        return _version_of(tensor), _checksum_of(tensor) if self._sums else 0


def _where_it_lies(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...], int]:
    return tensor.size(), tensor.stride(), tensor.data_ptr()


def _version_of(tensor: torch.Tensor) -> int:
    # Tensors of inference mode have no version. Their content is compared instead.
    return -1 if tensor.is_inference() else tensor._version


def _checksum_of(tensor: torch.Tensor) -> int:
    """A checksum: a write to the tensor most likely changes it, also one that moves values."""
    sums = [_weighted_sum(part) for part in _integer_parts(tensor.detach())]
    return int(_weighted_sum(torch.stack(sums))) if sums else 0


def _weighted_sum(numbers: torch.Tensor) -> torch.Tensor:
    """The sum of whole numbers, each as often as there are numbers from it on."""
    total: torch.Tensor = numbers.cumsum(0, dtype=torch.int64).sum()
    return total


def _integer_parts(tensor: torch.Tensor, at_once: int = 0) -> Iterator[torch.Tensor]:
    """The content of a tensor as integers, in parts of *at_once*, or of what fits its size.

    Torch copies integers to the type of their sum, and ``contiguous()`` copies, too. For all of a
    large tensor there may be no memory.
    """
    least, most = _SUMMED
    at_once = at_once or min(max(least, tensor.numel() >> 5), most)
    if tensor.is_contiguous() or tensor.dim() < 2 or tensor.numel() <= at_once:
        flat = _flat_view(tensor).view(torch.uint8)
        if not (flat.numel() % 4 or flat.storage_offset() % 4):
            flat = flat.view(torch.int32)
        yield from flat.split(at_once) if flat.numel() else ()
        return
    rows = max(1, at_once * len(tensor) // tensor.numel())
    for part in tensor.split(rows):
        yield from _integer_parts(part[0] if rows == 1 else part, at_once)


def _flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with one dimension. One element may have any stride, and then it can't be viewed."""
    flat = tensor.contiguous().reshape(-1)
    return flat.as_strided(flat.size(), (1,))


def _count_collectives() -> list[int]:
    """How many collectives each process group has run, if its backend counts them."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    counts = []
    for group in list(c10d._world.pg_map) if c10d else ():
        try:
            counts.append(group._get_sequence_number_for_group())
        except (AttributeError, RuntimeError):
            counts.append(-1)
    return counts
