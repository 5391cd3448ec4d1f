"""A router of experts and a sampler of tokens: topk, and what is gathered by its indices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Inputs, Program, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

# Captured by hand, aten.topk faults at the second replay on HIP, and torch forbids it to Inductor's
# own capture there: pytorch#184265.
ABOUT = ("modes",)
TIMED = False


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    experts, vocabulary = bench.size(64, 16), bench.size(32000, 256)
    table = bench.inputs(experts, 32, dtype=torch.float32)(0)

    def choose(scores: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
        weights, chosen = torch.topk(scores * 2, 4, dim=-1)
        mixed = (table[chosen] * weights.softmax(-1).unsqueeze(-1)).sum(-2)
        best, found = torch.topk(logits * 2, 8, dim=-1)
        return mixed, chosen, best, found

    compiled = bench.compile(choose)
    scores = _distinct_rows(bench, 16, experts)
    logits = _distinct_rows(bench, 4, vocabulary)
    return lambda number: [one.clone() for one in compiled(scores(number), logits(number))]


def _distinct_rows(bench: TrialBench, *shape: int) -> Inputs:
    """Rows in which no number comes twice: of equal ones, topk may choose any."""
    inputs = bench.inputs(*shape, dtype=bench.torch.float32)
    return lambda number: inputs(number).argsort(-1).argsort(-1).float() / 8
