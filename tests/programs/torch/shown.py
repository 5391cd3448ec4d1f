"""What programs of tests/test_torch.py begin with."""

import json
import sys
import threading

import torch
import torch._dynamo.config as d
import torch._inductor.config as c
from torch import compile as early

# All that a text begins with.
__all__ = ["c", "d", "early", "elsewhere", "json", "show", "sys", "threading", "torch"]


def show(*values):
    print(json.dumps(values))


def elsewhere(read):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(read()))
    thread.start()
    thread.join()
    return seen[0]
