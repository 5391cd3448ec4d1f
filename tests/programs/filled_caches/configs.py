"""A graph whose kernel has several configs. With an argument, each is given a best one.

The stand-in measures nothing and saves none, so torch's cache of them is told to keep it here.
"""

import gc
import sys

import torch
from torch._inductor.runtime import autotune_cache


def f(x: torch.Tensor) -> torch.Tensor:
    return x.t().sin() + x


compiled = torch.compile(f)(torch.ones(2048, 2048, device="cuda"))
kind = autotune_cache.AutotuneCache
found = [one.local_cache for one in gc.get_objects() if type(one) is kind]
for cache, path in found if sys.argv[1:] else ():
    cache.put(path, {"measured": 1})
print(len(found))
