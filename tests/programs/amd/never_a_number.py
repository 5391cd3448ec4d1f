"""Shapes on the stand-in, what is said where numbers are asked for, and its memory."""

import json
import os

import torch

x = torch.ones(4, 4).cuda()
line = torch.nn.Linear(4, 2).cuda()
loss = line(x).sum()
loss.backward()
shapes = [list((x @ x).shape), list(line.weight.grad.shape), list(x.T[1:].stride())]
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
asked = [
    lambda: x.sum().item(),
    lambda: x.cpu(),
    lambda: x.tolist(),
    lambda: str(x),
    lambda: bool(x.any()),
    lambda: torch.equal(x, x),
    lambda: x.nonzero(),
    lambda: x[x > 0],
    lambda: torch.ones((), device="cuda").item(),
    lambda: start.elapsed_time(end),
    torch.cuda.CUDAGraph,
]
errors = []
for one in asked:
    try:
        errors.append(repr(one()))
    except RuntimeError as error:
        errors.append(str(error))
held = torch.cuda.memory_allocated()
big = torch.empty(2**30, dtype=torch.uint8, device="cuda")
grown = torch.cuda.memory_allocated() - held
del big
left = torch.cuda.memory_allocated() - held
print(json.dumps([shapes, errors, grown, left]), flush=True)
# Autograd's thread for the device may want the GIL while Python ends. Before Python
# 3.14 that ends the thread, which aborts the process.
os._exit(0)
