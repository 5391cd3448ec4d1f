"""A model whose batches have five sizes by turns: it compiles again, with dynamic shapes."""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, TrialBench

ABOUT = ("modes", "expandable_segments")
TURN = 7
SIZES = (3, 8, 8, 5, 16, 1, 3)


def make_program(bench: TrialBench) -> Program:
    nn = bench.torch.nn
    width = bench.size(512, 32)
    model = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.LayerNorm(width))
    compiled = bench.compile(bench.module(model))
    inputs = bench.inputs(max(SIZES), width)
    return lambda number: compiled(inputs(number)[: SIZES[number % len(SIZES)]].contiguous())
