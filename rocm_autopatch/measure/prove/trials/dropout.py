"""Dropout in training and in inference, by turns: other elements at each call, and the right part.

Random numbers differ from eager mode's. So the results are what any dropout has to fulfil.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = ("modes",)
TURN = 15
RATE = 0.25


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.drop = torch.nn.Dropout(RATE)

        def forward(self, x: Tensor) -> Tensor:
            dropped: Tensor = self.drop(x)
            return dropped * 2

    model = Net().to(bench.device)
    compiled = bench.compile(model)
    ones = torch.ones(1 << 14, device=bench.device)
    before = [torch.zeros_like(ones)]

    def call(number: int) -> Result:
        found: Tensor
        if number % 3 == 2:
            model.eval()
            found = compiled(ones * (number % 5)).clone()
            return found
        model.train()
        found = compiled(ones).clone()
        kept = found != 0
        # The standard deviation of the kept part is 0.0034.
        right = (kept.float().mean() - (1 - RATE)).abs() < 0.03
        scaled = ((found == 0) | ((found - 2 / (1 - RATE)).abs() < 1e-5)).all()
        other = (found != before[0]).any()
        before[0] = found
        facts: Tensor = torch.stack([right, scaled, other])
        return facts

    return call
