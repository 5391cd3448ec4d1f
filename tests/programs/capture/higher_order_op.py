"""What a higher-order operation compiles for itself, in a capture."""

import torch
from capturing import capture, install, show, tried, x
from torch._higher_order_ops import utils

row = install("guard")


def op():
    return torch.cond(torch.tensor(True), torch.sin, torch.cos, (x,))


with capture():
    found = tried(op)
show(hasattr(utils, "_in_hop_compile"), str(found), str(x.sin()), row["uses"])
