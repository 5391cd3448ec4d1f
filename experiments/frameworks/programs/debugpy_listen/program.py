# mypy: ignore-errors
"""A program that compiles, and calls a function through a graph break."""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))


@torch.compile(mode="reduce-overhead")
def predict(inputs):
    found = model(inputs)
    print("calls", found.shape)
    return found * 2


with torch.inference_mode():
    found = predict(torch.ones(2, 16))
print("result", sys.argv[1:], [round(value, 4) for value in found[0].tolist()])
