# requires:
# mypy: ignore-errors
"""Compiles of every kind that a report counts: breaks, recompiles, a limit, backwards, failures."""

import torch

torch.manual_seed(0)


@torch.compile(mode="reduce-overhead")
def breaks(inputs):
    inputs = inputs.sin()
    print("sum", round(inputs.sum().item(), 4))
    return inputs.cos() if inputs.sum() > 0 else inputs.tan()


@torch.compile(dynamic=False)
def recompiles(inputs):
    return (inputs * 2).relu().sum()


@torch.compile(fullgraph=True)
def refuses(inputs):
    torch._dynamo.graph_break()
    return inputs + 1


@torch.compile
def uses_a_function(inputs, function):
    return function(inputs) + 1


@torch.compile(backend="eager")
def traced_only(inputs):
    return inputs - 1


breaks(torch.ones(8))
breaks(-torch.ones(8))
for size in range(2, 7):
    recompiles(torch.ones(size))
try:
    refuses(torch.ones(2))
except torch._dynamo.exc.Unsupported as error:
    print("refused", type(error).__name__)
for function in (torch.sin, torch.cos, torch.sin):
    uses_a_function(torch.ones(4), function)
traced_only(torch.ones(4))

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
compiled = torch.compile(model)
for _ in range(2):
    compiled(torch.ones(2, 16)).sum().backward()
print("gradient", round(model[0].weight.grad.sum().item(), 4))
with torch.no_grad():
    compiled(torch.ones(2, 16))

with torch._dynamo.config.patch(recompile_limit=2):

    @torch.compile(dynamic=False)
    def limited(inputs):
        return inputs * 3

    for size in range(2, 6):
        limited(torch.ones(size))
