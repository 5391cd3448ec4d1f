"""A compile in a compile in a capture."""

import torch
from capturing import add_gpu, capture, forward, show, up_to_2_9, x

generator = add_gpu()
row = up_to_2_9()
real = torch.cuda.default_generators
inner, seen = torch.compile(lambda x: torch.sin(x) * 2, backend="eager"), []


def backend(gm, inputs):
    within = torch.cuda.default_generators
    seen.append(torch.equal(inner(x), x.sin() * 2))
    seen.append(torch.cuda.default_generators is within is not real)
    seen.append(torch.cuda.get_rng_state().tolist() == [0] * 16)
    return gm.forward


with capture():
    torch.compile(forward, backend=backend)(x)
show(seen, row["uses"], torch.cuda.default_generators is real, generator.reached)
