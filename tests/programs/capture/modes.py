"""Modes and transforms of torch do not see the state that stands in."""

import torch
from capturing import add_gpu, backend, capture, forward, show, up_to_2_9, x
from torch.overrides import TorchFunctionMode

from rocm_autopatch.patches import capture as patch

generator = add_gpu()
up_to_2_9()
seen = []


class Mode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        seen.append(getattr(function, "__name__", ""))
        return function(*args, **(kwargs or {}))


with Mode(), torch.device("meta"):
    seen.clear()
    with patch._spared_generators(torch.cuda):
        state = torch.cuda.default_generators[0].get_state()
with torch.device("meta"), capture():
    right = torch.equal(torch.compile(forward, backend=backend)(x), forward(x))


def inner(y):
    with patch._spared_generators(torch.cuda):
        return y * torch.cuda.default_generators[0].get_state().sum()


grads = torch.func.grad(lambda y: inner(y).sum())(x)
show(
    seen,
    [state.device.type, str(state.dtype), list(state.shape), type(state).__name__],
    right,
    grads.tolist(),
    generator.reached,
)
