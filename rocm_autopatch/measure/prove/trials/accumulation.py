"""Training that adds up gradients of two batches, clips them, and evaluates between the steps.

Batches have two sizes, as the last one of an epoch is smaller. The gradients of the step before are
set to zero, or are not there.
"""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

ABOUT = ("training",)
TRAINING = True
TURN = 6


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    nn = torch.nn
    width = bench.size(512, 32)
    layers = [nn.Linear(width, width), nn.SiLU(), nn.LayerNorm(width), nn.Linear(width, width)]
    model = nn.Sequential(*layers).to(bench.device)
    start = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    compiled = bench.compile(model)
    inputs = bench.inputs(16, width, dtype=torch.float32)

    def call(number: int) -> Result:
        kind = number % TURN
        if kind == TURN - 1:
            model.eval()
            with torch.no_grad():
                found = compiled(inputs(number)).clone()
            model.train()
            return [found]
        with torch.no_grad():
            for weight, first in zip(model.parameters(), start):
                weight.copy_(first)
        optimizer.zero_grad(set_to_none=kind % 2 == 0)
        losses = []
        for part in range(2):
            batch = inputs(number + part)[: 16 if part == 0 or kind < 3 else 10]
            loss = (compiled(batch) - batch).square().mean() / 2
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradients = [weight.grad.clone() for weight in model.parameters()]
        optimizer.step()
        return [*losses, *gradients]

    return call
