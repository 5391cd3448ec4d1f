"""A backward that computes a part of the forward again."""

import torch
from torch.utils.checkpoint import checkpoint


def body(x: torch.Tensor) -> torch.Tensor:
    return (x * 7).sin().exp()


def f(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = checkpoint(body, x, use_reentrant=False)
    return found
