"""A report starts a thread for values that differ between threads, and does without one."""

import threading

started = []
start = threading.Thread.start
threading.Thread.start = lambda self: (started.append(1), start(self))
import torch._dynamo.config
import torch._inductor.config

before = len(started)
import rocm_autopatch

first = rocm_autopatch.status()
print(before, len(started))


def refuse(self):
    raise RuntimeError("can't start new thread")


threading.Thread.start = refuse
print(rocm_autopatch.status() == first, bool(first["config"]), first["errors"])
