"""A graph break, recompiles, and a compile by Inductor."""

import torch


def broken(x):
    print("a graph break")
    return x.cos() + 1


x = torch.ones(8, 8)
torch.compile(broken, backend="eager")(x)
grows = torch.compile(lambda x: x @ x, backend="eager", dynamic=False)
for size in range(2, 6):
    grows(torch.ones(size, size))
torch.compile(lambda x: x.sin().sum())(x)
