"""Calls and what they give, without a capture. The argument says how the patch is installed."""

import inspect
import logging
import re
import sys

import torch
import torch._dynamo.convert_frame as m
from capturing import IS_INITIALIZED, backend, forward, graphs, install, show, tried, up_to_2_9, x


def breaks(x):
    x = x + 1
    print("a break", file=sys.stderr)
    return x * 2


def raises(x):
    return (x + 1)[9, 9, 9]


def states(x):
    return len(torch.cuda.default_generators), torch.get_rng_state().shape, x.tolist()


def uneven(x):
    return x + torch.ones(3)


def bad(gm, inputs):
    raise ValueError("no")


# Each gives or raises something. Without a capture, nothing may differ with us.
CALLS = [
    lambda: f(x).tolist(),
    lambda: torch.compile(forward, fullgraph=True)(x).tolist(),
    lambda: torch._dynamo.explain(breaks)(x).graph_break_count,
    lambda: (torch.compile(breaks, backend=backend)(x).tolist(), len(graphs)),
    lambda: torch.compile(breaks, backend=backend, fullgraph=True)(x),
    lambda: torch.compile(raises, backend=backend)(x),
    lambda: torch.compile(forward, backend=bad)(x),
    lambda: (torch.compile(states, backend=backend)(x), len(graphs)),
    lambda: str(torch._dynamo.export(forward)(x).graph_module.code),
    lambda: torch.compile(uneven, backend=backend, fullgraph=True)(x),
    lambda: (str(inspect.signature(m._compile)), m._compile.__name__, m._compile.__module__),
]
INSTALLED = {
    "": lambda: None,
    "guard": lambda: install("guard"),
    "skip-rng": up_to_2_9,
    "observe": lambda: install("guard", observe=True),
}
INSTALLED[sys.argv[1]]()
lines = []


class Handler(logging.Handler):
    def emit(self, record):
        if "stack (elided" in record.getMessage():
            # This is the stack itself: our frame is among those that are left out.
            lines.append(record.getMessage().partition("\n")[2])


logger = logging.getLogger("torch._dynamo.convert_frame")
logger.addHandler(Handler())
logger.setLevel(logging.DEBUG)
f = torch.compile(forward)
seen = []
for call in CALLS:
    torch._dynamo.reset()
    graphs.clear()
    seen.append(re.sub("0x[0-9a-f]+", "0x", repr(tried(call))))
show(seen, lines, torch.rand(3).tolist(), IS_INITIALIZED())
