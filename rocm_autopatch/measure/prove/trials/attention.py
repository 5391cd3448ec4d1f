"""Attention, causal and with a mask, between projections; softmax by hand beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = ("modes", "search", "switches")


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    nn = torch.nn
    heads, size, length = 8, bench.size(64, 8), bench.size(256, 16)
    width = heads * size

    class Attention(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            rows = self.qkv(x).view(x.shape[0], length, 3, heads, size).permute(2, 0, 3, 1, 4)
            query, key, value = rows.unbind(0)
            attend = nn.functional.scaled_dot_product_attention
            causal = attend(query, key, value, is_causal=True)
            masked = attend(query, key, value, attn_mask=mask)
            by_hand = (query @ key.transpose(-1, -2) / size**0.5).softmax(-1) @ value
            found: Tensor = self.out((causal + masked + by_hand).transpose(1, 2).flatten(2))
            return found

    compiled = bench.compile(bench.module(Attention()))
    inputs = bench.inputs(2, length, width)
    masks = bench.inputs(1, 1, length, length)
    return lambda number: compiled(inputs(number), masks(number) > -1)
