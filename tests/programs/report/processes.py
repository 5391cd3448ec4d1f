"""A parent without torch and three children.

Two compile the same with separate caches. The third finds it in the cache of the first.
"""

import os
import subprocess
import sys

child = [
    sys.executable,
    "-c",
    """
import torch
def block(x, w):
    return torch.softmax(x @ w, -1).sum(0)
w = torch.ones(16, 16, requires_grad=True)
torch.compile(block)(torch.ones(4, 16), w).sum().backward()
""",
]


def start(cache):
    return subprocess.Popen(child, env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache})


both = [start(sys.argv[1] + "/one"), start(sys.argv[1] + "/two")]
assert [one.wait() for one in both] == [0, 0]
assert start(sys.argv[1] + "/one").wait() == 0
