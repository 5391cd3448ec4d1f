"""Two threads that call one compiled model by turns, each with its own inputs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

ABOUT = ("modes",)
TURN = 2


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    width = bench.size(512, 32)
    nn = torch.nn
    model = bench.module(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
    compiled = bench.compile(model)
    inputs = bench.inputs(4, width)
    threads = [ThreadPoolExecutor(1) for _ in range(2)]

    def run(number: int) -> Tensor:
        # Grad mode belongs to a thread.
        with torch.no_grad():
            found: Tensor = compiled(inputs(number)).clone()
            return found

    def call(number: int) -> Result:
        return threads[number % 2].submit(run, number).result()

    return call
