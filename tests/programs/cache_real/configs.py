"""A kernel's config, saved and read by torch's own cache, whose paths lead to sys.argv[1]."""

import json
import pickle
import sys
from types import SimpleNamespace

import torch._inductor.codecache  # noqa: F401  # Our hook waits for it.
from torch._inductor.runtime.autotune_cache import AutotuneCache

import rocm_autopatch


def path_of(cache):
    return cache.local_cache[1]


elsewhere = sys.argv[1] + "/inductor/ab/cabcdef.py"
config = SimpleNamespace(kwargs={"XBLOCK": 8}, num_warps=4, num_stages=1)
made = AutotuneCache.create({}, elsewhere, "hash")
# As a graph brings it that was compiled elsewhere.
name = path_of(made).rpartition("/")[2]
made.local_cache = (made.local_cache[0], f"{sys.argv[1]}/inductor/ab/{name}")
brought = pickle.loads(pickle.dumps(made))
brought.save(config, 1)
found = AutotuneCache.create({}, elsewhere, "hash").read_best({}, [config])
place = rocm_autopatch.status()["caches"]["place"]
others = [
    path_of(AutotuneCache.create({}, path, "hash"))
    for path in (place + "/inductor/cd/ccdefgh.py", sys.argv[1] + "/kernels/ckernel.py")
]
print(json.dumps([place, path_of(brought), name, found is config, others]))
