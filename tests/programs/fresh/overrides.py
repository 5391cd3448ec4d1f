"""It changes variables, configs and sys.meta_path in each way that fresh finds."""

import os
import sys

import torch
import torch._inductor.config as cfg
from torch._dynamo import config as dynamo

os.environ["TORCHINDUCTOR_X"] = "1"
os.environ.setdefault("HIP_Y", "1")
os.environ["MY_OWN"] = "1"
cfg.max_autotune = True
print(os.environ["TORCHINDUCTOR_Z"])


def inside():
    dynamo.recompile_limit = 9
    sys.meta_path.insert(0, None)
    with torch._inductor.config.patch("a", 1), cfg.patch(b=2), cfg.patch({"c.d": 3}):
        setattr(torch._functorch.config, "e", 1)  # noqa: B010
