"""A condition on a value, in the graph."""

import torch


def yes(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 5


def no(x: torch.Tensor) -> torch.Tensor:
    return x.cos() + 6


def f(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.cond(x.sum() > 0, yes, no, (x,))
    return found
