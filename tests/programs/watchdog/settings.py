"""What settings, observing and a quiet log change."""

import os
import time

import torch
import torch._dynamo.convert_frame as m
from hangs import change, hang, say, show, tried, uses

from rocm_autopatch.patches import watchdog
from rocm_autopatch.patches.watchdog import underway


def applied(fields, keep=(), observe=False):
    original = m._compile
    underway.settings.clear()
    entries = [("watchdog." + k, v, "layer", "why", (), ()) for k, v in fields.items()]
    done = watchdog.apply(m, entries, keep, observe)
    changed, m._compile = m._compile is not original, original
    return (
        [[row["name"], row["after"], row["status"], row["reason"]] for row in done],
        changed,
        dict(underway.settings),
    )


seen = [
    applied({"warn_after": 5}),
    applied({"abort_after": 50, "dump_stacks": True}),
    applied({"warn_after": False, "abort_after": None}),
    applied({"warn_after": 5, "abort_after": 7}, keep=("abort_after",)),
    applied({"warn_after": 5, "abort_after": 7}, keep=("watchdog.warn_after", "abort_after")),
    applied({"warn_after": 5}, observe=True),
]
original = m._compile


def compiled(observe, log):
    underway._RECORD["observe"] = observe
    os.environ["ROCM_AUTOPATCH_LOG"] = log
    m._compile = original
    watchdog._watch_frames(m)
    torch._dynamo.reset()
    before = uses()
    say(log or str(observe))

    def backend(gm, inputs):
        hang(1)
        if observe:
            time.sleep(0.5)
        return gm.forward

    return tried(
        torch.compile(lambda x: x + 1, backend=backend), torch.ones(1)
    ).tolist(), uses() - before


# What torch does once takes long on a busy machine, and nothing is to be written about it.
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
change(warn_after=0.2, dump_stacks=True, abort_after=0.5)
outcomes = [compiled(True, ""), uses("abort_after")]
change(abort_after=None)
outcomes += [compiled(False, "quiet"), compiled(False, "")]
del m._compile
show(
    seen,
    outcomes,
    tried(applied, {"warn_after": 5})
    if hasattr(m, "_compile")
    else tried(watchdog._watch_frames, m),
    tried(applied, {"warn": 5}),
)
