"""Inputs, a buffer and places in a table that the host copies just before each call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import INPUTS, Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

# A replay reads what such a copy has overwritten, where the buffer lies at the same address in each
# call: ROCm/hip#3902.
ABOUT = ("modes",)
TURN = 2
TIMED = False
# The places were 513 whole numbers there.
PLACES = 513


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    width = bench.size(256, 16)

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(width, width)
            self.register_buffer("shift", torch.zeros(PLACES, width))
            self.register_buffer("places", torch.zeros(PLACES, dtype=torch.int64))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            rows = self.layer(x)[self.places % x.shape[0]]
            return rows + self.shift, self.places + 1

    model = Net().to(bench.device).eval()
    compiled = bench.compile(model)
    given = torch.zeros(64, width, device=bench.device)
    chance = torch.Generator().manual_seed(1)
    values = torch.randn(INPUTS, 64, width, generator=chance)
    shifts = torch.randn(INPUTS, PLACES, width, generator=chance)
    places = torch.randint(1 << 20, (INPUTS, PLACES), generator=chance)
    pageable = [values, shifts, places]
    pinned = [one.pin_memory() for one in pageable] if bench.gpu else pageable
    targets = [given, model.shift, model.places]

    def call(number: int) -> Result:
        # Pinned memory and other memory, by turns; nobody waits for the copy of the former.
        with torch.no_grad():
            for target, rows in zip(targets, pinned if number % 2 else pageable):
                target.copy_(rows[number % INPUTS], non_blocking=True)
            return [one.clone() for one in compiled(given)]

    return call
