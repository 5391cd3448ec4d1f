"""Compiles that fail in a capture undo what was done for them."""

import torch
from capturing import add_gpu, backend, capture, forward, show, tried, up_to_2_9, x

from rocm_autopatch.patches import capture as patch

generator = add_gpu()
row = up_to_2_9()
real = torch.cuda.default_generators


def bad(gm, inputs):
    raise ValueError("no")


def fails(x):
    raise KeyboardInterrupt


said = []
with capture():
    for backend_ in (bad, fails):
        torch._dynamo.reset()
        try:
            torch.compile(forward, backend=backend_)(x)
        except BaseException as error:
            said.append(type(error).__name__)
        said.append(torch.cuda.default_generators is real)
        said.append(tried(torch.cuda.get_rng_state))
torch._dynamo.reset()
right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))
show(said, right, row["uses"], generator.reached[-2:], hasattr(patch._thread, "state"))
