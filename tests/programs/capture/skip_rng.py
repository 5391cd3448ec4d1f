"""A compile in a capture that does not reach the generator. The argument is the backend."""

import sys

import torch
from capturing import add_gpu, capture, forward, show, tried, up_to_2_9, x

from rocm_autopatch.patches import capture as patch

generator = add_gpu()
f = torch.compile(forward, backend=sys.argv[1])
with capture():
    native = tried(f, x)
torch._dynamo.reset()
generator.reached.clear()
f(x)
reads = generator.reached.count("get")
torch._dynamo.reset()
generator.reached.clear()
row = up_to_2_9()
names = ("default_generators", "get_rng_state", "set_rng_state")
before = [getattr(torch.cuda, name) for name in names]
state, cpu = generator.state.tolist(), torch.get_rng_state()
with capture():
    right = torch.allclose(f(x), forward(x))
after = [getattr(torch.cuda, name) for name in names]
show(
    native,
    reads,
    right,
    generator.reached[:],
    all(map(lambda a, b: a is b, before, after)),
    generator.state.tolist() == state,
    torch.equal(torch.get_rng_state(), cpu),
    row["uses"],
    torch.cuda.get_rng_state().tolist() == state,
    hasattr(patch._thread, "state"),
)
