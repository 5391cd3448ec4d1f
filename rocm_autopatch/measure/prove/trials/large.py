"""A large graph: hundreds of pointwise operations and reductions, with long chains to fuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = ("modes", "aggressive_fusion", "max_fusion_size", "memory_planning", "multi_kernel")
BLOCKS = 24


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch

    def net(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        results = []
        for block in range(BLOCKS):
            x = torch.sin(x) * (1 + block / BLOCKS) + y
            x = x - x.mean(-1, keepdim=True)
            y = torch.sigmoid(y + x.amax(-1, keepdim=True)) * x.cos()
            x = x / (1 + x.square().sum(-1, keepdim=True)).sqrt()
            results.append(torch.cat([x[:, ::2], y[:, 1::2]], -1).exp().sum(-1))
        return torch.stack(results), x, y

    compiled = bench.compile(net)
    shape = (bench.size(512, 32), bench.size(512, 64))
    first = bench.inputs(*shape, dtype=torch.float32)
    second = bench.inputs(*shape, dtype=torch.float32)
    return lambda number: compiled(first(number), second(number + 1))
