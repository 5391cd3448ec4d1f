"""A question for the capture that fails."""

import torch
from capturing import backend, capture, forward, install, show, x

row = install("guard")
asked = []


def fails():
    asked.append(1)
    raise RuntimeError("CUDA error: operation would make the legacy stream depend on a capture")


torch.cuda.is_current_stream_capturing = fails
with capture():
    right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(right, asked, row["uses"])
