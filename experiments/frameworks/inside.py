"""Notes what torch's config says inside the processes of a program that does not know of it.

The runner puts it into the venv, where a ``.pth`` line starts it. If FRAMEWORKS_INSIDE names a
directory, each process writes a file of JSON lines there. It imports nothing of torch and wraps
nothing: an audit hook sees that Inductor loads compiled code, in the thread and the context in
which it compiles. The config is also noted in a forked child and when a process ends, then with
torch's counters. The first process of a tree makes an empty file, so that the runner can count the
trees.
"""

from __future__ import annotations

import atexit
import contextvars
import json
import os
import sys
from typing import Any

# In a venv, Python 3.11 runs a .pth line twice.
started = False
NAMES = ("torch._inductor.config", "torch._dynamo.config")
SEEN = ("TORCH", "PYTORCH", "OMP_", "TOKENIZERS", "ACCELERATE")


def values() -> dict[str, str]:
    found = {}
    for name in NAMES:
        for key, value in sys.modules[name].get_config_copy().items():
            # A set has another order in each process.
            found[f"{name}.{key}"] = repr(sorted(value) if isinstance(value, set) else value)
    return found


def counted() -> dict[str, Any]:
    """What torch counted. Of compiles it keeps the last 64."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return {}
    found: dict[str, Any] = {
        name: sum(utils.counters[name].values()) for name in ("graph_break", "unimplemented")
    }
    found["compiles"] = [
        {
            "id": one.compile_id,
            "failed": one.fail_type is not None,
            "limit": "recompile_limit" in str(one.fail_reason),
            "recompile": bool(one.recompile_reason),
            "hits": one.inductor_fx_local_cache_hit_count or 0,
            "misses": one.inductor_fx_local_cache_miss_count or 0,
        }
        for one in utils.get_compilation_metrics()
    ]
    return found


def note(event: str) -> None:
    if not all(name in sys.modules for name in NAMES):
        return
    ours: Any = sys.modules.get("rocm_autopatch")
    report = ours.status() if ours and event == "exit" else {}
    row = {
        "event": event,
        "pid": os.getpid(),
        "command": sys.orig_argv,
        "here": values(),
        # As a new thread sees it: since torch 2.12 it sees no assignment of another thread.
        "elsewhere": contextvars.Context().run(values),
        "variables": {name: os.environ[name] for name in os.environ if name.startswith(SEEN)},
        "policy": report.get("policy"),
        "errors": report.get("errors", []),
        "counted": counted() if event == "exit" else {},
    }
    with open(os.path.join(os.environ["FRAMEWORKS_INSIDE"], f"{os.getpid()}.jsonl"), "a") as out:
        # Not by print, in whose place Ray Serve puts its own.
        out.write(json.dumps(row) + "\n")


def start() -> None:
    global started
    if started or "FRAMEWORKS_INSIDE" not in os.environ:
        return
    started = True
    if "FRAMEWORKS_TREE" not in os.environ:
        # The first interpreter here: its parent is no Python.
        os.environ["FRAMEWORKS_TREE"] = "1"
        with open(os.path.join(os.environ["FRAMEWORKS_INSIDE"], f"{os.getpid()}.tree"), "w"):
            pass
    cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec" and arguments[0].co_filename.startswith(cache):
            note("compiled")

    sys.addaudithook(audit)
    os.register_at_fork(after_in_child=lambda: note("forked"))
    atexit.register(note, "exit")
