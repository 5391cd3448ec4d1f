"""What each version of torch gets of each setting."""

import torch
import torch._dynamo.convert_frame as m
from capturing import install, release, show, tried

versions = ["2.4.1", "2.9.1+rocm7.2.0.lw.git7e1940d4", "2.9.0a0+git1", "2.10.0a0+git1", "2.13.0"]


def chosen(setting, **more):
    original = m._compile
    row = install(setting, **more)
    changed, m._compile = m._compile is not original, original
    return [row["status"], row["before"], row["after"], row["uses"], changed, row["reason"]]


rows = []
for version in versions:
    with release(version):
        rows.append([chosen("guard")[0], chosen("skip-rng")[0]])
with release("2.8.0"):
    others = [chosen("off"), chosen("guard"), chosen("skip-rng")]
    others += [chosen("guard", keep=("capture",)), chosen("skip-rng", observe=True)]
wrong = tried(install, "skip")


def trace_frame():
    return torch.cuda.is_current_stream_capturing()


m.trace_frame = trace_frame
with release("2.14.0"):
    itself = [chosen("guard"), chosen("skip-rng"), chosen("guard", observe=True)[:1]]
with release("2.11.0"):
    del m.trace_frame
    itself.append(chosen("skip-rng"))
del m._compile
show(rows, others, wrong, itself, tried(install, "guard"))
