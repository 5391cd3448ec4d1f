"""Two graphs and three kernels, where Inductor and vLLM have them; tests add what is called."""

import json
import os
import signal  # noqa: F401
import sys  # noqa: F401
import time  # noqa: F401


def graph(key, part="TORCHINDUCTOR_CACHE_DIR", above=""):
    path = f"{os.environ[part]}/{above}fxgraph/{key[:2]}/{key}"
    os.makedirs(path, exist_ok=True)
    open(f"{path}/1", "w").write("x" * 100)


def kernel(key, name):
    path = f"{os.environ['TRITON_CACHE_DIR']}/{key}"
    os.makedirs(path, exist_ok=True)
    for end in ("hsaco", "json"):
        open(f"{path}/{name}.{end}", "w").write("x" * 100)


def told(**row):
    with open(f"{os.environ['COMPILING_GPU_PROCESSES']}/{os.getpid()}.json", "w") as stream:
        json.dump(row, stream)


def both():
    graph("fabc")
    graph("f123", "VLLM_CACHE_ROOT", "a/rank_0/inductor_cache/")
    for key, name in (("A", "k"), ("B", "k"), ("B", "l")):
        kernel(key, name)
    guards = [f"f: L['x{i}'] == {i}" for i in range(4)]
    told(graphs=2, value_reads=5, value_guards=guards, not_captured=["1 graph is in no cache"])
