"""What a trial's program gets: torch, a device, the way to compile, and inputs to repeat.

A program is made twice from the same seed: once for eager mode, and once compiled. Both get the
same inputs, and their results are compared (``difference``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, Union

if TYPE_CHECKING:
    import torch as torch_types

# What a program returns, a program by the number of a call, and inputs by that number.
Result = Union["torch_types.Tensor", Sequence["torch_types.Tensor"]]
Program = Callable[[int], Result]
Inputs = Callable[[int], "torch_types.Tensor"]
Compiled = TypeVar("Compiled", bound=Callable[..., object])
Model = TypeVar("Model", bound="torch_types.nn.Module")

# For each type of a result: the largest difference from eager mode, as the norm of all differences
# by the norm of the results. It is 4 times the type's precision, where single roundings differ; for
# 32 and 64 bits it leaves room for sums in another order, which may be long.
TOLERANCES = {
    "torch.float64": 1e-9,
    "torch.float32": 2e-4,
    "torch.float16": 4 * 2**-10,
    "torch.bfloat16": 4 * 2**-7,
}
# A single element may differ this much more, as part of the largest one.
_SINGLE = 8
# Different inputs of a trial. They come again in turns.
INPUTS = 8


class TrialBench:
    """One side of a trial: ``compile`` compiles, or returns its argument in eager mode.

    ``gpu`` says whether the device is a GPU; ``size`` chooses a number by that. ``mode`` is the
    compile mode of this side, None in eager mode.
    """

    def __init__(self, torch: ModuleType, device: str, mode: str | None, compiled: bool) -> None:
        self.torch = torch
        self.device = device
        self.gpu = device == "cuda"
        self.mode = mode
        self.compiled = compiled
        # The type of inference on GPUs. A CPU is slow in it.
        self.half = torch.bfloat16 if self.gpu else torch.float32

    def compile(self, function: Compiled, **options: object) -> Compiled:
        """*function*, compiled in the mode of the subject."""
        if not self.compiled:
            return function
        compiled: Compiled = self.torch.compile(function, mode=self.mode, **options)
        return compiled

    def size(self, gpu: int, cpu: int) -> int:
        """A size that suits the device."""
        return gpu if self.gpu else cpu

    def module(self, module: Model, dtype: torch_types.dtype | None = None) -> Model:
        """A module on the device, for inference."""
        moved: Model = module.to(self.device, dtype or self.half).eval()
        return moved

    def inputs(self, *shape: int, dtype: torch_types.dtype | None = None) -> Inputs:
        """A function of a call's number: a new tensor of normal numbers, INPUTS different ones."""
        torch = self.torch
        chance = torch.Generator().manual_seed(1)
        rows = torch.randn(INPUTS, *shape, generator=chance).to(self.device, dtype or self.half)
        return lambda number: rows[number % INPUTS].clone()

    def tokens(self, vocabulary: int, *shape: int) -> Inputs:
        """The same with whole numbers below *vocabulary*."""
        torch = self.torch
        chance = torch.Generator().manual_seed(1)
        rows = torch.randint(vocabulary, (INPUTS, *shape), generator=chance).to(self.device)
        return lambda number: rows[number % INPUTS].clone()

    def wait(self) -> None:
        """Wait until the device has done all that was asked of it."""
        if self.gpu:
            self.torch.cuda.synchronize()


def difference_to_eager(torch: Any, expected: Result, found: Result) -> Any:
    """How far results are from what eager mode computes, where 1 is the most that is allowed.

    Both are a tensor, or sequences of tensors. A tensor of one number comes back, on the device, so
    that nobody has to wait for it. It is infinite for a wrong type, shape or whole number, and NaN
    where a result is.
    """
    if not isinstance(expected, torch.Tensor):
        if isinstance(found, torch.Tensor) or len(expected) != len(found):
            return torch.tensor(float("inf"))
        parts = [difference_to_eager(torch, one, other) for one, other in zip(expected, found)]
        return torch.stack([part.float().to(parts[0].device) for part in parts]).amax()
    if not isinstance(found, torch.Tensor):
        return torch.tensor(float("inf"))
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return torch.tensor(float("inf"))
    if not expected.is_floating_point():
        return torch.where((expected == found).all(), 0.0, float("inf"))
    tolerance = TOLERANCES[str(expected.dtype)]
    one, other = expected.double(), found.double()
    apart = one - other
    least = torch.finfo(expected.dtype).tiny
    together = apart.norm() / (one.norm() + least) / tolerance
    single = apart.abs().amax() / (one.abs().amax() + least) / (_SINGLE * tolerance)
    # maximum passes NaN on.
    return torch.maximum(together, single)
