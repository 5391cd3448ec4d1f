"""Children that compile graph N, each in a process group of its own, as a container has one."""

import json
import os
import sys
import traceback

import torch
import torch._dynamo
import torch._inductor.compile_fx

import rocm_autopatch


def child(number, path):
    os.setsid()
    compiled = torch.compile(lambda x: (x * number).relu().sum())
    value = compiled(torch.arange(8.0)).item()
    caches = rocm_autopatch.status()["caches"]
    with open(path, "w") as stream:
        json.dump([value, caches["hits"], caches["misses"]], stream)


def start(number, path):
    pid = os.fork()
    if not pid:
        try:
            child(number, path)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    return pid


directory = sys.argv[1]
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def end(pid):
    os.waitpid(pid, 0)


def said(path):
    try:
        return json.load(open(path))
    except (OSError, ValueError):
        return None
