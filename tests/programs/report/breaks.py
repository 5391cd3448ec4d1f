"""Graph breaks of each kind, and recompiles."""

import _struct

import torch


def scale(x):
    n = x.sum().item()
    return x.cos() * n


def speak(x):
    y = x * 3
    print("value")
    return y.relu()


@torch.compiler.disable
def vendor(x):
    return x + 1


def wrapped(x):
    return vendor(x.exp()).tanh()


def branches(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def native(x):
    _struct.calcsize("i")
    return x.sin()


def sizes(x):
    return x @ x


def numbers(x, n):
    return x * n


def types(x):
    return x + 1


x = torch.ones(8, 8)
for function in (scale, speak, wrapped, branches, native):
    torch.compile(function, backend="eager")(x)
compiled = torch.compile(sizes, backend="eager", dynamic=False)
for n in range(2, 13):
    compiled(torch.ones(n, n))
compiled = torch.compile(numbers, backend="eager", dynamic=False)
for n in range(3):
    compiled(x, n)
compiled = torch.compile(types, backend="eager")
for dtype in (torch.float32, torch.float64):
    compiled(x.to(dtype))
