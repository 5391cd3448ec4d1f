"""Starts ranks, each a fork: the argument says what variables each has, and what it does."""

import faulthandler
import json
import os
import random
import signal
import socket
import sys
import time
import traceback

import torch
import torch._dynamo
import torch.distributed

import rocm_autopatch
from rocm_autopatch.patches import ranks
from rocm_autopatch.patches.ranks import meeting

asked = json.loads(sys.argv[1])
distributed = torch.distributed
meeting.WAIT, meeting.ON_THEIR_WAY = asked.get("wait", 60), asked.get("wait", 5)


def job(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(asked["size"]))
    os.environ.update(asked["of"].get(str(rank), {}))
    names = {**globals(), "rank": rank, "signal": signal, "time": time}
    exec(asked["before"], dict(names))
    for number in range(asked.get("times", 1)):
        # Of two stores at one port, some ranks find the first one, and wait: also without us.
        port = ports[number]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        method = asked["method"].format(directory=asked["directory"], number=number, port=port)
        distributed.init_process_group(
            "gloo", init_method=method, rank=rank, world_size=asked["size"]
        )
        kept.append(distributed.distributed_c10d._get_default_store())
        exec(asked.get("after", ""), dict(names))
        if asked["compiles"]:
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
            # Each one leaves when all have asked.
            distributed.barrier()
        distributed.destroy_process_group()


def told(rank):
    path = f"{asked['directory']}/{rank}"
    error = os.open(path + ".stderr", os.O_CREAT | os.O_WRONLY)
    os.dup2(error, 2)
    # A rank that waits for ever says where.
    faulthandler.dump_traceback_later(120, exit=True)
    said = ""
    try:
        job(rank)
    except ranks.DifferentRanks as raised:
        said = "DifferentRanks: " + str(raised)
    except BaseException:
        said = traceback.format_exc()
    with open(path, "w") as stream:
        notes = rocm_autopatch.status()["notes"]
        json.dump([said, [note for note in notes if "rank" in note]], stream)


# Rank 0 has the store, and leaves when all others have: they have this pipe open until then.
kept = []
all_left, still_here = os.pipe()
ports = []
while len(ports) < 2:
    # Of these the system gives none to a connection that names no port.
    port = random.randrange(10_000, 32_000)
    with socket.socket() as free:
        if free.connect_ex(("127.0.0.1", port)):
            ports.append(port)
children = []
for rank in range(asked["size"]):
    child = os.fork()
    if not child:
        try:
            if not rank:
                os.close(still_here)
            told(rank)
            if not rank:
                os.read(all_left, 1)
        finally:
            os._exit(0)
    children.append(child)
os.close(still_here)
for child in children:
    os.waitpid(child, 0)
