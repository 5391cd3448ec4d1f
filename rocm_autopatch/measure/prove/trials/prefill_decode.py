"""The same decoder, with a prompt of many positions and steps of one by turns."""

from __future__ import annotations

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench
from rocm_autopatch.measure.prove.trials.decoder import make_decoder

ABOUT = ("modes",)
TURN = 4
LENGTH, PROMPT, STEPS = 64, 16, 4


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    model = bench.module(make_decoder(bench, LENGTH))
    compiled = bench.compile(model)
    prompts = bench.inputs(1, PROMPT, model.width)
    steps = bench.inputs(1, 1, model.width)
    positions = torch.arange(LENGTH, device=bench.device)

    def call(number: int) -> Result:
        found: Result
        step = number % STEPS
        if step == 0:
            model.clear()
            found = compiled(prompts(number // STEPS), positions[:PROMPT])
            return found
        at = PROMPT + step - 1
        found = compiled(steps(number), positions[at : at + 1])
        return found

    return call
