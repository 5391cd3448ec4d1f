"""A framework whose models have the same wrapper around their forward."""

import functools

import torch


def wraps(forward):
    @functools.wraps(forward)
    def wrapper(self, *args):
        return forward(self, *args)

    return wrapper


class First(torch.nn.Module):
    @wraps
    def forward(self, x):
        return x + len(x)


class Second(torch.nn.Module):
    @wraps
    def forward(self, x):
        return x * len(x)


def generate(model, x):
    return model(x)
