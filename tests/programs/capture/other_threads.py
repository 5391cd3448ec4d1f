"""Another thread reaches the generator during a compile in a capture."""

import threading

import torch
from capturing import add_gpu, capture, forward, show, up_to_2_9, x

generator = add_gpu()
up_to_2_9()
seen = []


def other():
    state = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(state + 1)
    seen.append([state.tolist(), torch.cuda.default_generators[0] is generator])


def backend(gm, inputs):
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    torch.cuda.set_rng_state(torch.full((16,), 7, dtype=torch.uint8))
    mine = torch.cuda.default_generators[0]
    seen.append([torch.cuda.get_rng_state().tolist(), mine.reached is generator.reached])
    seen.append(
        [
            type(torch.cuda.default_generators[:]).__name__,
            list(torch.cuda.default_generators) == [generator],
        ]
    )
    return gm.forward


with capture():
    torch.compile(forward, backend=backend)(x)
show(seen, generator.reached, generator.state.tolist())
