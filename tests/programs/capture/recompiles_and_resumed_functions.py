"""Compiles in a capture of what was compiled before it."""

import torch
import torch._dynamo.convert_frame as m
from capturing import backend, capture, forward, install, show, tried, x

install("guard")


def broken(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


f = torch.compile(forward, backend=backend, dynamic=False)
g = torch.compile(broken, backend=backend)
f(x)
with torch.no_grad(), capture():
    shapes = tried(f, torch.randn(5))
m._compile, ours = m._compile.__wrapped__, m._compile
seen = []


def first(*args, **kwargs):
    # The part after the break is compiled when it is reached, which is in the capture.
    seen.append(args[0].co_name)
    return (ours if len(seen) > 1 else ours.__wrapped__)(*args, **kwargs)


m._compile = first
with capture():
    resumed = tried(g, x)
show(shapes, resumed)
