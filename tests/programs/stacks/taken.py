"""A fork's child, a program that closes our descriptor, and one that has the signal itself."""

import json
import os
import signal
import subprocess
import sys

import torch

import rocm_autopatch
from rocm_autopatch.patches.watchdog import on_demand


def model(x):
    return x + 1


def compiled():
    torch._dynamo.reset()
    torch.compile(model, backend="eager")(torch.ones(3))


def ask(pid):
    command = [sys.executable, "-m", "rocm_autopatch", "stacks", str(pid)]
    return subprocess.run(command, capture_output=True, text=True)


def size():
    return os.fstat(on_demand._memory).st_size


compiled()
read, write = os.pipe()
begun, begins = os.pipe()
pid = os.fork()
if not pid:
    os.write(begins, b"x")
    os.read(read, 1)
    os._exit(0)
os.read(begun, 1)
inodes = [os.stat("/proc/%d/fd/%d" % (one, on_demand._memory)).st_ino for one in (pid, os.getpid())]
asked = ask(pid)
os.write(write, b"x")
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
child = [inodes[0] != inodes[1], asked.returncode == 0 and "taken.py" in asked.stdout, status]
parent = size()

# Some programs close what they have not opened.
with open("/tmp/rocm_autopatch-stacks-%d" % os.getpid(), "w+") as mine:
    os.unlink(mine.name)
    mine.write("mine")
    mine.flush()
    os.dup2(mine.fileno(), on_demand._memory)
    refused = ask(os.getpid())
    on_demand.answer_requests()
    mine.seek(0)
    closed = [mine.read(), refused.returncode]

# One that has it before we do: nothing is offered.
signal.signal(on_demand.SIGNAL, lambda *_: print("seen", flush=True))
on_demand._memory = None
on_demand.offer_stacks()
offered = on_demand._memory is not None
os.kill(os.getpid(), on_demand.SIGNAL)
told = sum("has a handler of the program's" in one for one in rocm_autopatch.status()["notes"])
print(json.dumps([child, parent, closed, offered, told]))
