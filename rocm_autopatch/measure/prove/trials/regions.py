"""Training steps of layers that are compiled one by one: each reads what another has returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

# A region's results are in use when the next one runs, and until the backward has been.
ABOUT = ("training",)
TRAINING = True
LAYERS = 3


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    nn = torch.nn
    width = bench.size(512, 32)

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.rows = nn.Linear(width, 2 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
            kept, gate = self.rows(self.norm(x)).chunk(2, -1)
            memory = memory + kept
            # As a program that writes to a log does.
            torch._dynamo.graph_break()
            return x + self.out(kept * torch.sigmoid(gate)), memory

    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to(bench.device)
    compiled = [bench.compile(layer) for layer in layers]
    inputs = bench.inputs(32, width, dtype=torch.float32)

    def call(number: int) -> Result:
        x = inputs(number).requires_grad_()
        found, memory = x, torch.zeros_like(x)
        # The first layer is called twice in a step, before any backward.
        for layer in (*compiled, compiled[0]):
            found, memory = layer(found, memory)
        loss = found.square().mean() + memory.square().mean()
        return [loss.detach(), *torch.autograd.grad(loss, [x, *layers.parameters()])]

    return call
