"""What a replay is compared with: a plain call with the same arguments.

Some values a plain call itself does not determine: fused attention returns a seed that it does not
write when there is no dropout, and sums in no fixed order differ a little from call to call. So
where a replay differs, the plain call is made twice more. For each of them, memory that an op only
allocates gets another value, and so does what the allocator is likely to hand out. What has these
values in the plain calls was never written, and may be anything in a replay. What varies among the
plain calls in another way may differ from them as much as they do from each other, and whole
numbers in any way. If that explains nothing, up to four more calls are made with the same values
there. What varies among these varies by itself, and then other elements of that tensor may, about
as many and about as far: where rounding sends a token to another expert, it is another token in
each call. All else has to be equal, except for rounding.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import torch

from rocm_autopatch.graphs.capture import CapturePool, no_other
from rocm_autopatch.graphs.captured_ops import CapturedOps, fill_memory
from rocm_autopatch.graphs.refusal import CaptureDisturbed, Refused

# How many elements of a result are compared. All of them would need as much memory as the
# activations of a training step.
_COMPARED = 1 << 22
# Of a result with more compared elements, the host takes too long for what varies.
_ON_HOST = 1 << 16
# What unwritten memory is filled with in the further plain calls. Only calls with the same fill say
# what varies by itself.
_FILLS = (1, 2, 2, 2, 2, 2)
# So much more than plain calls a replay may differ, and in so many times as many elements: there
# are a few of them only.
_MORE = 4
# Blocks of memory that are filled for the allocator to hand out, and bytes in them at most.
_BLOCKS, _BLOCKS_BYTES = 16, 256 << 20
# As torch.testing.assert_close has them: relative and absolute.
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_leaves = torch.utils._pytree.tree_leaves
# Of each leaf of a result, what is compared; None for what is no tensor.
Samples = list[Optional[torch.Tensor]]


class ResultVerification:
    """Parts of what a plain call has returned, and the random numbers that it has drawn.

    *call* makes the plain call, after its argument, in the same memory. *restore* undoes what the
    call has changed. With *draws*, the generator of *pool* then has the state of before again, so
    that a replay draws the same numbers.
    """

    def __init__(
        self,
        pool: CapturePool,
        draws: bool,
        call: Callable[[Callable[[], None]], object],
        restore: Callable[[], None],
    ) -> None:
        self._pool, self._call = pool, call
        #: Undoes what a call or a replay has changed.
        self.restore = restore
        self._before = pool.random() if draws else None
        # Of each plain call, on the host. Of the last replay, what differs from the first one, how,
        # and of what shape it is; and whether it has drawn as many numbers.
        self._plain: list[Samples] = []
        self._got: dict[int, torch.Tensor] = {}
        self._different: dict[int, str] = {}
        self._shapes: list[torch.Tensor] = []
        self._has_drawn = True
        try:
            self._plain.append(self._sampled_copies(call(lambda: None)))
        finally:
            self._after = pool.random() if draws else None
            self.draw_again()
            restore()

    def _sampled_copies(self, result: object) -> Samples:
        """Copies of what of a result is compared, on the host."""
        with no_other():
            return [_on_host(one) for one in _result_samples(result)]

    def compare(self, result: object) -> bool:
        """Raise Refused if a replay gave something else than the call, except for rounding.

        Returns whether the plain call was made again, which may have overwritten what the replay
        has written.
        """
        again = self.needs_calls(result)
        if again:
            self.call_again()
        self.conclude()
        return again

    def needs_calls(self, result: object) -> bool:
        """Look at the result of a replay. Returns whether further calls may explain it."""
        got: list[Any] = [*_result_samples(result)]
        with no_other():
            self._has_drawn = self._after is None or torch.equal(self._after, self._pool.random())
            self._different = _differences_of(self._plain[0], got)
            # Further calls may overwrite it.
            self._got = {index: got[index].to("cpu", copy=True) for index in self._different}
        leaves = list(_leaves(result))
        self._shapes = [torch.empty_like(leaves[one], device="meta") for one in self._different]
        return len(self._plain) <= len(_FILLS) and not self._is_explained()

    def call_again(self) -> None:
        """Make further plain calls until they explain the replay. All draw the same numbers."""
        for value in _FILLS[len(self._plain) - 1 :]:
            self.restore()
            self.draw_again()
            fill = functools.partial(
                fill_memory, self._shapes, self._pool.device, value, _BLOCKS, _BLOCKS_BYTES
            )
            try:
                with CapturedOps(fill=value):
                    self._plain.append(self._sampled_copies(self._call(fill)))
            finally:
                self.restore()
            if self._is_explained():
                break

    def _is_explained(self) -> bool:
        return not any(map(self._is_determined, self._different))

    def _is_determined(self, index: int) -> bool:
        """Whether the plain calls determine what differs in this part of the result."""
        got, plain = self._got[index], [calls[index] for calls in self._plain]
        # The host would take seconds for many.
        device = self._pool.device if got.numel() > _ON_HOST else got.device
        with no_other():
            ones = [one.to(device) for one in plain if one is not None]
            return len(ones) < len(plain) or not _is_undetermined(got.to(device), ones)

    def conclude(self) -> None:
        """Raise Refused unless the plain calls say that they don't determine what differs."""
        for index, said in self._different.items():
            if self._is_determined(index):
                raise Refused(f"a replay differs from a plain call: {said}")
        if not self._has_drawn:
            raise CaptureDisturbed("a replay does not draw as many numbers as a plain call")

    def draw_again(self) -> None:
        """Let the next call draw what the plain call has drawn."""
        if self._before is not None:
            self._pool.draw_from(self._before)


def _differences_of(wanted: Samples, got: Samples) -> dict[int, str]:
    """By index what of a result is not equal, and how."""
    found = {}
    for index, (one, other) in enumerate(itertools.zip_longest(wanted, got)):
        # A weight that is returned as it is is no result of the graph's own.
        if one is None or other is None:
            continue
        said = _describe_difference(other, one.to(other.device))
        if said:
            found[index] = said
    return found


def _on_host(one: torch.Tensor | None) -> torch.Tensor | None:
    """A copy of a tensor; None for one without a value."""
    return None if one is None or one.is_meta else one.to("cpu", copy=True)


def _describe_difference(got: torch.Tensor, wanted: torch.Tensor) -> str:
    """How a tensor differs from the one that is wanted; empty if only by rounding.

    An error of torch.testing has a cycle with the frames of all callers. They would hold the result
    until a collection, and the next call would find it in use.
    """
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        kinds = [f"{one.dtype} of shape {[*one.shape]}" for one in (got, wanted)]
        return " instead of ".join(kinds)
    wrong = ~_close_elements(got, wanted)
    if not wrong.any():
        return ""
    one, other = (each if each.dtype in _TOLERANCES else each.float() for each in (got, wanted))
    most = (one - other).abs().masked_fill(~wrong, 0).max().item()
    # On the GPU, torch's sum makes eight bytes of each element first.
    count = int(wrong.cpu().sum())
    return f"{count} of {wrong.numel()} elements of {got.dtype}, by {most:.3g} at most"


def _is_undetermined(got: torch.Tensor, plain: Sequence[torch.Tensor]) -> bool:
    """Whether plain calls explain all elements in which a replay differs from the first of them.

    The others had memory filled with :data:`_FILLS`.
    """
    if len(plain) < 3 or any((one.shape, one.dtype) != (got.shape, got.dtype) for one in plain):
        return False
    some = functools.reduce(
        torch.logical_or, (~_close_elements(one, plain[0]) for one in (got, *plain[1:]))
    )
    # There are few of them.
    got, first, *others = (_elements(one, some) for one in (got, *plain))
    wrong = ~_close_elements(got, first)
    unwritten = torch.ones_like(wrong)
    for value, one in zip(_FILLS, others):
        filled = bool(value % 2) if one.dtype is torch.bool else value
        unwritten &= one == torch.full_like(one, filled)
    wrong &= ~unwritten
    differs = _difference_of(got, first)
    varying, apart = _variation_of([first, *others])
    is_number = got.is_floating_point() or got.is_complex()
    wrong &= ~(differs <= _MORE * apart) if is_number else ~varying
    if not wrong.any():
        return True
    # Another element may vary in each call. What only differs by the fill does not, and what is
    # infinite says nothing of others.
    varying, apart = _variation_of(others[1:])
    varying &= apart.isfinite()
    few = bool(wrong.sum() <= _MORE * varying.sum())
    return few and bool(differs[wrong].max() <= _MORE * apart[varying].max())


def _variation_of(plain: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Which elements differ among plain calls by more than rounding, and how far all are apart."""
    varying = torch.zeros_like(plain[0], dtype=torch.bool)
    apart = torch.zeros_like(varying, dtype=torch.float64)
    for one, other in itertools.combinations(plain, 2):
        varying |= ~_close_elements(one, other)
        apart = torch.maximum(apart, _difference_of(one, other))
    return varying, apart


def _difference_of(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How far elements are apart."""
    apart = one - other if one.is_complex() else one.double() - other.double()
    return apart.abs()


def _elements(tensor: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """Those of its elements. Not every torch can index each type."""
    if tensor.is_complex():
        return tensor[where]
    bits: torch.Tensor = tensor.resolve_neg().view(_BITS[tensor.element_size()])
    return bits[where].view(tensor.dtype)


def _close_elements(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    relative, absolute = _TOLERANCES.get(one.dtype, (0.0, 0.0))
    if one.is_floating_point() and one.dtype not in _TOLERANCES:
        one, other = one.float(), other.float()
    return torch.isclose(one, other, rtol=relative, atol=absolute, equal_nan=True)


def _result_samples(result: object) -> Iterator[torch.Tensor | None]:
    """What of a result is compared: parts of each tensor, from all over it, as views of it."""
    leaves = [leaf if isinstance(leaf, torch.Tensor) else None for leaf in _leaves(result)]
    most = _COMPARED // max(1, sum(leaf is not None for leaf in leaves))
    for leaf in leaves:
        yield leaf if leaf is None else _sample_tensor(leaf, most)


def _sample_tensor(tensor: torch.Tensor, most: int) -> torch.Tensor:
    """Each so many elements of a tensor, along its last dimensions, without a copy."""
    for dim in reversed(range(tensor.dim())):
        if tensor.numel() <= most:
            break
        every = min(tensor.size(dim), math.ceil(tensor.numel() / most))
        tensor = tensor[(slice(None),) * dim + (slice(None, None, every),)]
    return tensor
