"""A compile that takes too long, in C: it ends the process once no other compile is under way."""

import atexit
import ctypes
import os
import signal
import sys
import threading
import time

import torch
from hangs import change, say, show, uses

from rocm_autopatch.patches import watchdog
from rocm_autopatch.patches.watchdog import aborts, underway

aborts.SHORTEST = 0.3
libc = ctypes.CDLL(None)
x = torch.randn(4)


def model(x):
    return x + 1


def legitimate(gm, inputs):
    # The process is stopped, as by docker pause, a debugger or a closed laptop.
    if not os.fork():
        time.sleep(2.5)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.2)
    return gm.forward


torch.compile(model, backend="eager")(x)
change(warn_after=False, abort_after=1.0)
torch._dynamo.reset()
show(torch.equal(torch.compile(model, backend=legitimate)(x), x + 1), uses("abort_after"))
sys.stdout.flush()
os.wait()


def graph_pass(gm, inputs):
    libc.sleep(60)


torch._dynamo.reset()
atexit.register(lambda: print("not reached"))


def legit():
    class Owner:
        def fx_codegen_and_compile(gm):
            end = time.monotonic() + 2.2
            while time.monotonic() < end:
                watch = underway.running[threading.get_ident()]
                watch.next_abort = underway.time.monotonic() + 1  # It is within its time.
                time.sleep(0.01)
            say("legitimate")

    watchdog._watch_graphs(Owner)
    Owner.fx_codegen_and_compile(None)


def later():
    time.sleep(0.5)
    legit()


threading.Thread(target=later).start()
torch.compile(model, backend=graph_pass)(x)
