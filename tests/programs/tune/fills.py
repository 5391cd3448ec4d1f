"""Notes when it runs and with which caches. tests/test_tune.py says when it waits."""

import os
import sys
import time

from latency import on

caches = os.environ["TORCHINDUCTOR_CACHE_DIR"]
kind = "warm" if os.path.exists(caches) else "fill"
os.makedirs(caches, exist_ok=True)
with open("times", "a") as stream:
    stream.write("%s begin %d\n" % (kind, os.getpid()))
patience = time.monotonic() + float(os.environ.get("PATIENCE", "1"))
if on("HEAVY") and "tried" not in os.listdir("."):
    with open("times", "a") as stream, open("tried", "w"):
        stream.write("%s end %d\n" % (kind, os.getpid()))
    sys.exit("RuntimeError: out of memory")
planted = any(name in os.environ for name in ("GOOD", "BAD", "WRONG", "ONE", "TWO"))
while kind == "fill" and planted and open("times").read().count("fill begin") < 5:
    if time.monotonic() > patience:
        break
    time.sleep(0.01)
with open("times", "a") as stream:
    stream.write("%s end %d\n" % (kind, os.getpid()))
