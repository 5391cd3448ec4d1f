"""A backward that the program has written."""

from typing import Any

import torch


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = given * ctx.saved_tensors[0] * 4
        return found


def f(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = Twice.apply(x)
    return found
