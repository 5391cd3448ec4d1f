"""Observing counts compiles in a capture, and lets them be."""

import torch
from capturing import backend, capture, forward, install, show, x

row = install("guard", observe=True)
with capture():
    right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(right, row["uses"], row["after"])
