"""Two threads that compile, warm up and capture at the same time; neither waits for the other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Inputs, Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

# Graphs that threads build at the same time are truncated: ROCm/rocm-systems#6888.
ABOUT = ("modes",)
TIMED = False
THREADS = 2
# So many functions are captured by each thread, one after the other, each of as many products.
FUNCTIONS, PRODUCTS = 3, 24
# They must begin together, but a thread that has died must not hold up the other one.
PATIENCE_S = 60


def make_program(bench: TrialBench) -> Program:
    # Of another width each, because Dynamo would compile equal ones once, for both threads.
    widths = [bench.size(256, 16) + 16 * one for one in range(THREADS * FUNCTIONS)]
    chains = [_compiled_chain(bench, width) for width in widths]
    sides = [chains[side::THREADS] for side in range(THREADS)]
    together = threading.Barrier(THREADS)
    threads = [ThreadPoolExecutor(1) for _ in range(THREADS)]

    def run(side: int, number: int) -> list[Tensor]:
        # Grad mode belongs to a thread.
        with bench.torch.no_grad():
            found = []
            for compute in sides[side]:
                together.wait(PATIENCE_S)
                found.append(compute(number))
            return found

    def call(number: int) -> Result:
        running = [thread.submit(run, side, number) for side, thread in enumerate(threads)]
        return [one for side in running for one in side.result()]

    return call


def _compiled_chain(bench: TrialBench, width: int) -> Inputs:
    """A compiled function of its own, for inputs of its own: the weight keeps their size."""
    torch = bench.torch
    weight = torch.linalg.qr(torch.randn(width, width))[0].to(bench.device)

    def chain(x: Tensor) -> Tensor:
        for _ in range(PRODUCTS):
            x = torch.tanh(x @ weight) * 1.5
        return x

    compiled = bench.compile(chain, dynamic=False)
    inputs = bench.inputs(8, width, dtype=torch.float32)
    return lambda number: compiled(inputs(number)).clone()
