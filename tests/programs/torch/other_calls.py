"""Calls that the mode table does not affect: each gives or raises the same as without us."""

import inspect
import re

import torch
from recorder import f, patches, x
from shown import show


def backend(gm, inputs, mode=None, options=None):
    patches.append([mode, options])
    return gm.forward


def nested(x):
    return torch.compile(f, mode="reduce-overhead")(x)


CALLS = [
    lambda: torch.compile(f, mode="no-such-mode"),
    lambda: torch.compile(f, mode="reduce-overhead", options={"max_fusion_size": 3}),
    lambda: torch.compile(f, "default"),
    lambda: torch.compile(f, mode=3)(x),
    lambda: (torch.compile(f, options={"triton.cudagraphs": True})(x), patches),
    lambda: torch.compile(f, options={"no_such_option": False})(x),
    lambda: torch.compile(f, options={"max_fusion_size": "x"})(x),
    lambda: (torch.compile(f, mode=None)(x), patches),
    lambda: (str(inspect.signature(torch.compile)), torch.compile.__doc__),
    lambda: (torch.compile.__module__, torch.compile.__qualname__, type(torch.compile)),
    lambda: torch.compile(f, backend=backend, mode="reduce-overhead")(x),
    lambda: torch.compile(f, backend=backend, options={"a": 1})(x),
    lambda: torch.compile(f, backend="eager")(x),
    lambda: torch.compile(f, backend="no-such-backend")(x),
    lambda: torch.compile(nested, fullgraph=True, backend="eager")(x),
    lambda: torch.compile(nested, backend="eager")(x),
    lambda: torch._dynamo.explain(nested)(x).graph_break_count,
]
seen = []
for call in CALLS:
    torch._dynamo.reset()
    patches.clear()
    try:
        seen.append(repr(call()))
    except Exception as error:
        seen.append(repr(error))
show([re.sub("0x[0-9a-f]+", "0x", text) for text in seen])
