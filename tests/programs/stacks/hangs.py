"""A program that hangs, as its argument says, until a file is gone: in Python or in C code that
holds the interpreter's lock while it compiles, or after a compile."""

import ctypes
import os
import sys
import time

import torch

how, busy = sys.argv[1:]


def wait():
    open(busy + ".reached", "w").close()
    while os.path.exists(busy):
        if how == "in C":
            ctypes.PyDLL(None).sleep(1)
        else:
            time.sleep(0.05)


def stuck(gm, inputs):
    if how != "afterwards":
        wait()
    return gm.forward


def model(x):
    return x + 1


done = torch.compile(model, backend=stuck)(torch.ones(3))
if how == "afterwards":
    wait()
print(done.tolist(), flush=True)
