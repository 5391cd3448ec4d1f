"""The guard raises before torch asks the generator."""

import torch
from capturing import add_gpu, capture, forward, install, show, tried, x

generator = add_gpu()
f = torch.compile(forward)
with capture():
    native = tried(f, x)
torch._dynamo.reset()
reached, generator.reached[:] = generator.reached[:], []
row = install("guard")
with capture():
    said = tried(f, x)
quiet = generator.reached[:]
f(x)
with capture():
    right = torch.allclose(f(x), forward(x))
show(native, reached, said, quiet, generator.reached.count("get"), right)
