"""Prints numbers with noise that does not depend on the machine. The number of runs is its seed."""

import os
import random
import sys

with open("runs", "a") as stream:
    stream.write(os.environ["TORCHINDUCTOR_CACHE_DIR"] + "\n")
noise = random.Random(len(open("runs").readlines())).gauss
what = os.environ.get("WHAT", "")
if what == "crash":
    sys.exit("Traceback\nRuntimeError: HIP error: invalid device function")
if what == "segfault":
    os.kill(os.getpid(), 11)
slow = 1.5 if what == "slow" else 1.0
print("batch 64")
print("latency: %.4f ms" % (slow * noise(10, 0.1)))
print('{"tokens": {"per_s": %.3f}}' % (noise(800, 8) / slow))
