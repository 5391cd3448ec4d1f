"""Memory that is written, cleared and added to, in a forward and in its backward.

What Inductor compiles clears memory by kernels of its own. So an operation that Inductor does not
look into does it as torch itself: by a memset, for ``zero_`` and for the counters of a large sum.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

if TYPE_CHECKING:
    from torch import Tensor

# A memset in a captured graph leaves what was there: pytorch#197017.
ABOUT = ("modes", "training")
TRAINING = True
TURN = 2
TIMED = False
ROWS = 64


def make_program(bench: TrialBench) -> Program:
    torch = bench.torch
    width = bench.size(4096, 32)
    scatter = _scatter_op()

    def collect(x: Tensor, places: Tensor) -> tuple[Tensor, ...]:
        sums, total = scatter(x * 2, places)
        fresh = torch.zeros_like(x).index_add(0, places, x)
        return sums + fresh, total * 2

    compiled = bench.compile(collect)
    inputs = bench.inputs(ROWS, width, dtype=torch.float32)
    places = bench.tokens(ROWS, ROWS)

    def call(number: int) -> Result:
        x, there = inputs(number), places(number)
        if number % 2:
            with torch.no_grad():
                return [one.clone() for one in compiled(x, there)]
        x.requires_grad_()
        sums, total = compiled(x, there)
        (sums.sum() + total.sum()).backward()
        assert x.grad is not None
        return [sums.detach().clone(), total.detach().clone(), x.grad.clone()]

    return call


@functools.cache
def _scatter_op() -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Rows that are added up by places, and the sum of all: one operation with a gradient."""
    import torch

    def add_up(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        sums = torch.empty_like(x)
        sums.fill_(7)
        sums.zero_()
        sums.index_add_(0, places, x)
        return sums, x.sum().view(1)

    # Torch reads the types when the operation is made, and here they are texts.
    add_up.__annotations__ = {
        "x": torch.Tensor,
        "places": torch.Tensor,
        "return": tuple[torch.Tensor, torch.Tensor],
    }
    made = torch.library.custom_op("rocm_autopatch_prove::add_up", mutates_args=())(add_up)
    made.register_fake(lambda x, places: (torch.empty_like(x), x.new_empty(1)))
    made.register_autograd(
        lambda ctx, sums, total: (sums.index_select(0, ctx.places) + total, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "places", inputs[1]),
    )
    scatter: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = made
    return scatter
