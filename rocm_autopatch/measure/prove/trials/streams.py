"""A model that is called on a side stream and on the main one, by turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rocm_autopatch.measure.prove.bench import TrialBench

ABOUT = ("modes",)
TURN = 2
GPU = True


def make_program(bench: TrialBench) -> Callable[[int], Any]:
    torch = bench.torch
    nn = torch.nn
    model = bench.module(nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)))
    compiled = bench.compile(model)
    inputs = bench.inputs(8, 1024)
    side = torch.cuda.Stream()

    def call(number: int) -> Any:
        given = inputs(number)
        if number % 2:
            return compiled(given).clone()
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            found = compiled(given).clone()
        main.wait_stream(side)
        found.record_stream(main)
        given.record_stream(side)
        return found

    return call
