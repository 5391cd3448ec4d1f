"""Convolutions with batch norm, a residual and pooling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocm_autopatch.measure.prove.bench import TrialBench

ABOUT = ("modes", "switches")


def make_program(bench: TrialBench) -> Callable[[int], Any]:
    torch = bench.torch
    nn = torch.nn
    width = bench.size(64, 8)

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, width, 7, stride=2, padding=3)
            self.one = nn.Conv2d(width, width, 3, padding=1)
            self.norm = nn.BatchNorm2d(width)
            self.two = nn.Conv2d(width, width, 1)
            self.head = nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            x = torch.relu(self.stem(x))
            x = x + self.two(torch.relu(self.norm(self.one(x))))
            return self.head(x.mean((2, 3)))

    compiled = bench.compile(bench.module(Net()))
    side = bench.size(64, 16)
    inputs = bench.inputs(2, 3, side, side)
    return lambda number: compiled(inputs(number))
