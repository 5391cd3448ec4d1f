"""Gradients through checkpoints, and of two forwards before one backward, by turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = ("training",)
TRAINING = True
TURN = 2


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    nn = torch.nn
    from torch.utils.checkpoint import checkpoint

    width = bench.size(512, 32)

    class Net(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
                for _ in range(3)
            )

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
            return x

    model = Net().to(bench.device)
    compiled = bench.compile(model)
    inputs = bench.inputs(32, width, dtype=torch.float32)

    def call(number: int) -> Result:
        batches = [inputs(number + part).requires_grad_() for part in range(1 + number % TURN)]
        loss = sum(compiled(batch).square().mean() for batch in batches)
        wanted = [*batches, *model.parameters()]
        return [loss.detach(), *torch.autograd.grad(loss, wanted)]

    return call
