"""Two functions that reach the recompile limit.

The eleven slower compiles come first, so the failure is not among the ten slowest.
"""

import time

import torch


def slow(module, inputs):
    time.sleep(0.1)
    return module.forward


def shift(x, n):
    return x + n


def scale(x, n):
    return x * n


x = torch.ones(2)


def steps(function, fullgraph):
    compiled = torch.compile(function, backend=slow, dynamic=False, fullgraph=fullgraph)
    for n in range(12):
        compiled(x, n)


steps(shift, False)
steps(scale, True)
