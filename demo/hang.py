# mypy: disable-error-code="import-not-found"
"""One rank of a job that compiles and adds up a result: python hang.py RANK PORT SECONDS.

Somebody has set TORCH_COMPILER_COLLECTIVES=1 on one node. Ranks with it ask all others while they
compile, and the others do not answer: they are at the sum.
"""

import datetime
import os
import sys

import torch
import torch.distributed as distributed

rank, port, seconds = map(int, sys.argv[1:])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
distributed.init_process_group(
    "gloo", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=seconds)
)
step = torch.compile(lambda x: (x * 2).relu().sum(), backend="eager")
distributed.all_reduce(step(torch.ones(8)))
print("done", flush=True)
