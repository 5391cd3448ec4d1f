"""A number that depends on a value of the config, and outputs that hardly do."""

import os

import numpy
import torch
import torch._inductor.config as config

print("fusion: %d" % (100 - (config.max_fusion_size == 128) * 40))
out = torch.ones(3) * (1 + 1e-5 * config.max_fusion_size)
numpy.save("out.npy", out.numpy())
torch.save({"out": out}, "out.pt")
with open("places", "a") as stream:
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        print(config.max_fusion_size, os.environ.get(name), file=stream)
