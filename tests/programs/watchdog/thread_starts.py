"""A thread that starts others all the time gets exceptions; print how many, and which were lost."""

import faulthandler
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

from rocm_autopatch.patches.watchdog import aborts

faulthandler.dump_traceback_later(500, exit=True)
lost = []
sys.unraisablehook = lost.append
# On a busy machine, a new thread comes late to its own ident.
SPIN = ["timeout", "500", "sh", "-c", "while :; do :; done"]
busy = [subprocess.Popen(SPIN) for _ in range(2 * os.cpu_count())]


def send(watch):
    time.sleep(0.02)
    aborts._raise_in_thread(watch, "")


def start_threads():
    while True:
        one = threading.Thread(target=str)
        one.start()
        one.join()


arrived = 0
for _ in range(60):
    watch = SimpleNamespace(ident=threading.get_ident(), done=False, raised=0, lasts=lambda: True)
    sender = threading.Thread(target=send, args=(watch,))
    try:
        sender.start()
        start_threads()
    except aborts.CompileTimeout:
        arrived += 1
    sender.join()
for one in busy:
    one.terminate()
print([arrived, len(lost)])
