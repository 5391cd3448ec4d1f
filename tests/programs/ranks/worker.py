"""A worker of torchrun, which joins, and fails at first if RESTART is set.

Nothing is connected but the store. With gloo, half of all restarts fail without us, too:
"connectFullMesh failed" (torch 2.13).
"""

import os
import sys

import torch.distributed as distributed
import torch.testing._internal.distributed.fake_pg  # noqa: F401, it registers the backend

import rocm_autopatch

store, rank, size = next(distributed.rendezvous("env://"))
distributed.init_process_group("fake", store=store, rank=rank, world_size=size)
print(rocm_autopatch.status()["digest"], flush=True)
# torchrun ends all as soon as one has failed.
told = store.add("told", 1)
while store.add("told", 0) % size:
    pass
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and "RESTART" in os.environ:
    sys.exit(1)
