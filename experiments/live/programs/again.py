"""A rank that joins a job again at each port. Arguments: how, its rank, the ports."""

import datetime
import os
import sys

import torch
import torch.distributed as distributed

kind, rank, *ports = sys.argv[1:]
for port in ports:
    os.environ["MASTER_PORT"] = port
    method, given = "env://", {}
    if kind == "tcp":
        method, given = f"tcp://127.0.0.1:{port}", {"rank": int(rank), "world_size": 3}
    distributed.init_process_group(
        "gloo", init_method=method, timeout=datetime.timedelta(seconds=20), **given
    )
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    distributed.barrier()
    distributed.destroy_process_group()
