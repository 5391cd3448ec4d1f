"""Three linear layers with biases and GELU, for eight rows."""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, TrialBench

ABOUT = ("modes", "search", "switches")


def make_program(bench: TrialBench) -> Program:
    nn = bench.torch.nn
    width = bench.size(1024, 64)
    layers = [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.GELU()]
    model = bench.module(nn.Sequential(*layers, nn.Linear(width, width)))
    compiled = bench.compile(model)
    inputs = bench.inputs(8, width)
    return lambda number: compiled(inputs(number))
