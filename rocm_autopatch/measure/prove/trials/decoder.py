"""A decoder with a static cache of keys and values, which each call changes in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

ABOUT = ("modes", "search", "switches")
# The cache is full after so many calls, and begins anew.
LENGTH = 64


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    model = bench.module(make_decoder(bench, LENGTH))
    compiled = bench.compile(model)
    inputs = bench.inputs(1, 1, model.width)
    positions = torch.arange(LENGTH, device=bench.device)

    def call(number: int) -> Result:
        if number % LENGTH == 0:
            model.clear()
        found: Tensor = compiled(inputs(number), positions[number % LENGTH : number % LENGTH + 1])
        return found

    return call


def make_decoder(bench: TrialBench, length: int) -> Module:
    """A module of two layers, with a cache for *length* positions marked as at a static address."""
    torch = bench.torch
    nn = torch.nn
    heads, size = 4, bench.size(64, 8)

    class Layer(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            width = heads * size
            self.norm = nn.LayerNorm(width)
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)
            for name in ("keys", "values"):
                cache = torch.zeros(1, heads, length, size, dtype=bench.half, device=bench.device)
                torch._dynamo.mark_static_address(cache)
                setattr(self, name, cache)

        def forward(self, x: Tensor, positions: Tensor) -> Tensor:
            rows = self.qkv(self.norm(x)).view(1, -1, 3, heads, size).permute(2, 0, 3, 1, 4)
            query, key, value = rows.unbind(0)
            self.keys.index_copy_(2, positions, key)
            self.values.index_copy_(2, positions, value)
            seen = torch.arange(length, device=x.device)[None, :] <= positions[:, None]
            found = nn.functional.scaled_dot_product_attention(
                query, self.keys, self.values, attn_mask=seen
            )
            out: Tensor = self.out(found.transpose(1, 2).flatten(2))
            return x + out

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.width = heads * size
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x: Tensor, positions: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, positions)
            return x

        def clear(self) -> None:
            for layer in self.layers:
                layer.keys.zero_()
                layer.values.zero_()

    return Decoder()
