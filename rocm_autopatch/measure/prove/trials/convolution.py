"""Convolutions with batch norm, a residual and pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = ("modes", "switches")


def make_program(bench: TrialBench) -> Program:
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

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.stem(x))
            x = x + self.two(torch.relu(self.norm(self.one(x))))
            found: Tensor = self.head(x.mean((2, 3)))
            return found

    compiled = bench.compile(bench.module(Net()))
    side = bench.size(64, 16)
    inputs = bench.inputs(2, 3, side, side)
    return lambda number: compiled(inputs(number))
