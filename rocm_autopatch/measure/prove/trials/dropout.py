"""Dropout in training and in inference, by turns: other elements at each call, and the right part.

Random numbers differ from eager mode's. So the results are what any dropout has to fulfil.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocm_autopatch.measure.prove.bench import TrialBench

ABOUT = ("modes",)
TURN = 15
RATE = 0.25


def make_program(bench: TrialBench) -> Callable[[int], Any]:
    torch = bench.torch

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.drop = torch.nn.Dropout(RATE)

        def forward(self, x: Any) -> Any:
            return self.drop(x) * 2

    model = Net().to(bench.device)
    compiled = bench.compile(model)
    ones = torch.ones(1 << 14, device=bench.device)
    before = [torch.zeros_like(ones)]

    def call(number: int) -> Any:
        if number % 3 == 2:
            model.eval()
            return compiled(ones * (number % 5)).clone()
        model.train()
        found = compiled(ones).clone()
        kept = found != 0
        # The standard deviation of the kept part is 0.0034.
        right = (kept.float().mean() - (1 - RATE)).abs() < 0.03
        scaled = ((found == 0) | ((found - 2 / (1 - RATE)).abs() < 1e-5)).all()
        other = (found != before[0]).any()
        before[0] = found
        return torch.stack([right, scaled, other])

    return call
