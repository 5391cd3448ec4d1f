"""The guard raises before anything is compiled, and in no other thread."""

import threading

import torch
from capturing import backend, capture, forward, graphs, install, show, tried, x
from torch._dynamo.utils import counters

row = install("guard")
f = torch.compile(forward, backend=backend)
with capture():
    said = [tried(f, x), tried(f, x)]
before = [len(graphs), counters["stats"]["unique_graphs"], row["uses"]]
with capture():  # in a thread that does not capture, it compiles
    thread = threading.Thread(target=lambda: f(x))
    thread.start()
    thread.join()
after = [len(graphs), row["uses"]]
with capture():
    right = torch.equal(f(x), forward(x))
show(said, before, after, right, len(graphs), row["uses"], row["status"])
