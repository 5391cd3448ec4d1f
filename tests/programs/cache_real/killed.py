"""Children that are killed while they compile, each with two after it."""

import json
import os
import random
import signal
import sys
import time

from children import directory, end, said, start

chance = random.Random(int(sys.argv[3]))
found = []
for number in range(5, 5 + int(sys.argv[2])):
    pid = start(number, directory + "/killed")
    time.sleep(chance.uniform(0.05, 2.5))
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)
    end(pid)
    # A kernel that was cut off may fail once.
    for _ in (1, 2):
        end(start(number, f"{directory}/{number}"))
    found.append([number, said(f"{directory}/{number}")])
print(json.dumps(found))
