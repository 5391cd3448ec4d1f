"""A backward pass in a capture compiles when it is run."""

import torch
from capturing import add_gpu, capture, show, tried, up_to_2_9, x

generator = add_gpu()
up_to_2_9()
w = torch.randn(4, requires_grad=True)
f = torch.compile(lambda x: (torch.nn.functional.dropout(x * w, 0.5)).sin().sum())
with capture():
    loss = f(x)
    quiet = generator.reached[:]
    said = tried(loss.backward)
show(quiet, said)
