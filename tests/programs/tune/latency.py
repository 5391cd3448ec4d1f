"""Prints numbers with noise that does not depend on the machine. The number of runs is its seed."""

import os
import random
import sys
import time

with open("runs", "a") as stream:
    stream.write(" ".join(n for n in os.environ if n in "GOOD BAD WRONG CRASH ONE TWO") + "\n")
runs = len(open("runs").readlines())


def on(*names):
    return all(os.environ.get(name) == "1" for name in names)


if on("CRASH"):
    sys.exit("RuntimeError: no kernel image")
if os.environ.get("STOP_AFTER") == str(runs):
    open("stopped", "w").close()
    time.sleep(600)
latency = 10 - 2 * on("GOOD") + 3 * on("BAD") - 4 * on("WRONG") - 2.5 * on("ONE", "TWO")
print("latency: %.5f ms" % (latency * random.Random(runs).gauss(1, 0.01)))
print("loss: %.6f" % (0.7 if on("WRONG") else 0.5 + runs * 1e-9))
