"""Experts: a router chooses two for each token, and a table on the host is copied inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

# A copy from the host is in no graph: what lies around it has to be cut there. Torch's own graphs
# can't be captured for such models at all ("Cannot copy between CPU and CUDA tensors").
ABOUT = ("modes",)
EXPERTS, CHOSEN = 8, 2


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    nn = torch.nn
    width, inner = bench.size(256, 16), bench.size(512, 32)

    class Experts(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up = nn.Parameter(torch.randn(EXPERTS, width, inner) / width**0.5)
            self.down = nn.Parameter(torch.randn(EXPERTS, inner, width) / inner**0.5)

        def forward(self, x: Tensor) -> Tensor:
            # The first numbers of a token choose: roundings would choose others than eager mode's.
            weights, chosen = x[:, :EXPERTS].float().topk(CHOSEN, -1)
            balance = torch.tensor([0.5 + one / EXPERTS for one in range(EXPERTS)]).to(x.device)
            weights = weights.softmax(-1) * balance[chosen]
            mixed = torch.zeros_like(x)
            rows = self.norm(x)
            for expert, up, down in zip(range(EXPERTS), self.up, self.down):
                share = (weights * (chosen == expert)).sum(-1, keepdim=True)
                mixed = mixed + share.to(x.dtype) * (nn.functional.silu(rows @ up) @ down)
            found: Tensor = x + mixed
            return found

    compiled = bench.compile(bench.module(Experts()))
    inputs = bench.inputs(16, width)
    return lambda number: compiled(inputs(number))
