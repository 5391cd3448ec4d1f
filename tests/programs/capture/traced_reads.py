"""A function that reads the generator's state, compiled in a capture."""

import torch
from capturing import add_gpu, backend, capture, graphs, show, tried, up_to_2_9, x


def reads(x):
    y = x + 1
    torch.cuda.get_rng_state()
    return y * 2


def seen():
    torch._dynamo.reset()
    graphs.clear()
    with capture():
        said = tried(torch.compile(reads, backend=backend), x)
    return [str(said), len(graphs)]


generator = add_gpu()
row = up_to_2_9()
show(seen(), row["uses"], generator.reached)
