"""Two threads that call one compiled model by turns, each with its own inputs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocm_autopatch.measure.prove.bench import TrialBench

ABOUT = ("modes",)
TURN = 2


def make_program(bench: TrialBench) -> Callable[[int], Any]:
    torch = bench.torch
    width = bench.size(512, 32)
    nn = torch.nn
    model = bench.module(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)))
    compiled = bench.compile(model)
    inputs = bench.inputs(4, width)
    threads = [ThreadPoolExecutor(1) for _ in range(2)]

    def run(number: int) -> Any:
        # Grad mode belongs to a thread.
        with torch.no_grad():
            return compiled(inputs(number)).clone()

    def call(number: int) -> Any:
        return threads[number % 2].submit(run, number).result()

    return call
