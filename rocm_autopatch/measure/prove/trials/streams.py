"""A model that is called on a side stream and on the main one, by turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = ("modes",)
TURN = 2
GPU = True


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    nn = torch.nn
    model = bench.module(nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)))
    compiled = bench.compile(model)
    inputs = bench.inputs(8, 1024)
    side = torch.cuda.Stream()

    def call(number: int) -> Result:
        given = inputs(number)
        found: Tensor
        if number % 2:
            found = compiled(given).clone()
            return found
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            found = compiled(given).clone()
        main.wait_stream(side)
        found.record_stream(main)
        given.record_stream(side)
        return found

    return call
