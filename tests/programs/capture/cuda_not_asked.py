"""CUDA is not asked before it runs."""

import torch
from capturing import IS_INITIALIZED, backend, forward, install, show, x

row = install("guard")
torch.cuda.is_initialized = IS_INITIALIZED
asked = []
torch.cuda.is_current_stream_capturing = lambda: asked.append(1)
right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(right, asked, row["uses"])
