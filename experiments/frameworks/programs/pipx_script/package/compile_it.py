# mypy: ignore-errors
"""A command that compiles."""

import sys


def main():
    if "--help" in sys.argv:
        print("usage: compile-it")
        return
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    with torch.inference_mode():
        found = torch.compile(model, mode="reduce-overhead")(torch.ones(2, 16))
    print("result", [round(value, 4) for value in found[0].tolist()])
