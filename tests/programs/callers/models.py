"""Compiles two models of the framework, each for many sizes."""

import time

import framework
import torch

slow = [True]


def backend(graph, inputs):
    if slow:
        slow.clear()
        time.sleep(3)
    return graph


for model in (framework.First(), framework.Second()):
    model = torch.compile(model, backend=backend, dynamic=False)
    for size in range(2, 12):
        framework.generate(model, torch.ones(size))
