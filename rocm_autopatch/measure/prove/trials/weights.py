"""Weights that are changed in place, and replaced by new ones, between calls."""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

# freezing makes constants of the weights, as its documentation says: this is no trial of it.
ABOUT = ("modes",)
TURN = 16


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    width = bench.size(512, 32)
    model = bench.module(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()))
    compiled = bench.compile(model)
    inputs = bench.inputs(4, width)
    changes = bench.inputs(width, width)

    def call(number: int) -> Result:
        layer = model[0]
        if number % 16 == 7:
            layer.weight.copy_(changes(number // 16) / width**0.5)
        elif number % 16 == 15:
            new = changes(number // 16 + 1) / width**0.5
            layer.weight = torch.nn.Parameter(new, requires_grad=False)
        found: Result = compiled(inputs(number))
        return found

    return call
