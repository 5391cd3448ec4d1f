"""Suppressed errors of a compile in a capture fall back to eager."""

import torch
from capturing import backend, capture, forward, graphs, install, show, x

row = install("guard")
torch._dynamo.config.suppress_errors = True
with capture():
    right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(right, row["uses"], len(graphs))
