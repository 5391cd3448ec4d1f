"""Its number depends on luck when its caches are filled: first slow, then fast, then either."""

import os
import random

caches = os.environ["TORCHINDUCTOR_CACHE_DIR"]
os.makedirs(caches, exist_ok=True)
luck = os.path.join(caches, "luck")
if not os.path.exists(luck):
    with open("fills", "a") as stream:
        stream.write("one\n")
    count = len(open("fills").readlines())
    with open(luck, "w") as stream:
        stream.write("%d" % (count - 1 if count < 3 else random.Random(count).random() < 0.5))
with open("runs", "a") as stream:
    stream.write("one\n")
noise = random.Random(len(open("runs").readlines())).gauss(1, 0.001)
print("latency: %.5f ms" % (noise * (10 if open(luck).read() == "1" else 12)))
