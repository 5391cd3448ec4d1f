"""What a graph's first replay is compared with: a plain call with the same arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from rocm_autopatch.graphs.leaves import TENSORS
from rocm_autopatch.graphs.refusal import Disturbed, Refused

# How many elements of a result are compared. All of them would need as much memory as the
# activations of a training step.
_COMPARED = 1 << 22
_leaves = torch.utils._pytree.tree_leaves


class Verification:
    """Parts of what a plain call has returned, and the random numbers that it has drawn.

    *call* makes the plain call. With *draws*, the generator of *pool* then has the state of before
    again, so that a replay draws the same numbers.
    """

    def __init__(self, pool: Any, draws: bool, call: Callable[[], Any]) -> None:
        self._pool = pool
        self._before = pool.random() if draws else None
        try:
            result = call()
            tensors = [one for one in _leaves(result) if type(one) in TENSORS]
            self._most = _COMPARED // max(1, len(tensors))
            # They must outlive the result, and be no views of it.
            samples = _samples(result, self._most)
            self._wanted = [one if one is None else one.clone() for one in samples]
        finally:
            self._after = pool.random() if draws else None
            self.draw_again()

    def compare(self, result: Any) -> None:
        """Raise Refused if a replay gave something else than the call, except for rounding."""
        for one, other in zip(self._wanted, _samples(result, self._most)):
            # A weight that is returned as it is is no result of the graph's own.
            if one is None or other is None:
                continue
            try:
                # A plain call may give a number on the host.
                torch.testing.assert_close(other.to(one.device), one, equal_nan=True)
            except AssertionError as error:
                said = " ".join(str(error).split())
                raise Refused(f"a replay differs from a plain call: {said[:200]}") from None
        if self._after is not None and not torch.equal(self._after, self._pool.random()):
            raise Disturbed("a replay does not draw as many numbers as a plain call")

    def draw_again(self) -> None:
        """Let the next call draw what the plain call has drawn."""
        if self._before is not None:
            self._pool.draw_from(self._before)


def _samples(result: Any, most: int) -> Iterator[Any]:
    """What of a result is compared: about *most* elements of each tensor, from all parts of it."""
    for leaf in _leaves(result):
        yield _sample(leaf, most) if isinstance(leaf, torch.Tensor) else None


def _sample(tensor: Any, most: int) -> Any:
    """Each so many elements of a tensor, along its last dimensions, without a copy."""
    for dim in reversed(range(tensor.dim())):
        if tensor.numel() <= most:
            break
        every = min(tensor.size(dim), math.ceil(tensor.numel() / most))
        tensor = tensor[(slice(None),) * dim + (slice(None, None, every),)]
    return tensor
