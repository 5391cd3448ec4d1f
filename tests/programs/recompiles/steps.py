"""Two functions for many sizes. Arguments: whose limit it is, how many sizes, and whether full."""

import json
import sys

import torch
import torch._dynamo

import rocm_autopatch

limit = {"program": 50}.get(sys.argv[1])
if limit:
    torch._dynamo.config.recompile_limit = limit


def step(x):
    return x + len(x)


def other(x):
    return x * 2


for function in (step, other):
    full = "full" in sys.argv[3:]
    compiled = torch.compile(function, backend="eager", dynamic=False, fullgraph=full)
    for size in range(2, 2 + int(sys.argv[2])):
        compiled(torch.ones(size))
(row,) = rocm_autopatch.status()["recompiles"]
print(json.dumps([row["status"], row["reason"], row.get("uses", 0)]))
