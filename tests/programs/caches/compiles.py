"""A compile with other values than torch's own, if arguments name them: hits, misses, an error.

A graph that Inductor keeps in no cache has a pass that it can't tell from others. With "eager",
Inductor is imported later than Dynamo compiles.
"""

import json
import sys

import torch
import torch._inductor.config as config

import rocm_autopatch

for key in sys.argv[2:]:
    if key == "eager":
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(8))
    elif key == "post_grad_custom_post_pass":
        config.post_grad_custom_post_pass = lambda graph: None
    else:
        setattr(config, key, not getattr(config, key))
compiled = torch.compile(lambda x: (x * int(sys.argv[1])).relu().sum())
try:
    compiled(torch.ones(8))
    ended = ""
except Exception as error:
    ended = next(line for line in str(error).splitlines() if "CACHE" in line)
caches = rocm_autopatch.status()["caches"]
print(json.dumps([ended, caches["hits"], caches["misses"]]))
