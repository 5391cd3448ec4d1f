"""A chain of 256 small matrix products, each with a weight of its own: as many kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

# Graphs of some 200 kernels and more read stale pointers: ROCm/hip#3887. Inductor makes one kernel
# of operations on elements, but not of products, which a library computes.
ABOUT = ("modes",)
TIMED = False
NODES = 256
WIDTH = 32


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    # Each weight changes the order and some signs. So all results are exact, and large or small
    # numbers do not hide others.
    chance = torch.Generator().manual_seed(2)
    orders = torch.stack([torch.randperm(WIDTH, generator=chance) for _ in range(NODES)])
    signs = torch.randint(2, (NODES, WIDTH, 1), generator=chance) * 2.0 - 1
    weights = (torch.eye(WIDTH)[orders] * signs).to(bench.device)

    def chain(x: Tensor, weights: Tensor) -> Tensor:
        for weight in weights.unbind():
            x = x @ weight
        return x

    compiled = bench.compile(chain)
    inputs = bench.inputs(8, WIDTH, dtype=torch.float32)
    # Exact in any precision that a library may choose, and different in each call.
    return lambda number: compiled(inputs(number).round() + number % 3, weights).clone()
