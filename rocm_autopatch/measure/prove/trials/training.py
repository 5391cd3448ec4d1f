"""A training step: forward, loss, backward, and AdamW, which changes the weights in place.

Before each step the weights are set to known values: small differences would grow from step to
step.
"""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

ABOUT = (
    "modes",
    "training",
    "coordinate_descent_tuning",
    "aggressive_fusion",
    "expandable_segments",
)
TRAINING = True


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    nn = torch.nn
    width = bench.size(256, 32)
    layers = [nn.Linear(width, 4 * width), nn.GELU(), nn.LayerNorm(4 * width)]
    model = nn.Sequential(*layers, nn.Linear(4 * width, 10)).to(bench.device)
    start = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = bench.compile(model)
    inputs = bench.inputs(32, width, dtype=torch.float32)
    targets = bench.tokens(10, 32)

    def call(number: int) -> Result:
        with torch.no_grad():
            for weight, first in zip(model.parameters(), start):
                weight.copy_(first)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(compiled(inputs(number)), targets(number))
        loss.backward()
        gradients = [weight.grad.clone() for weight in model.parameters()]
        optimizer.step()
        return [loss.detach(), *gradients]

    return call
