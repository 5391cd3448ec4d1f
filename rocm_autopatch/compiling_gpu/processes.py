"""What this process compiled, in the file PID.json of the directory COMPILING_GPU_PROCESSES.

It is written when the process ends, if it used torch.compile. A process that is killed, or calls
os._exit, writes none. Keys of the object:

- ``command``: the process's arguments.
- ``graphs``: how many graphs Dynamo handed to a backend.
- ``caches``: hits, misses and bypasses of the caches of whole graphs, by their names in torch.
- ``value_reads``: how often the program or a compiler asked the device for values (.item(), a copy
  to the CPU, nonzero). They are zero where a kernel was not run, so a program with real data may
  go another way there.
- ``value_guards``: guards on a number in code after a graph break: most likely such a value. With
  another number, torch compiles again. As ``function: guard``.
- ``graph_breaks``: reasons, and how often each.
- ``recompiles``: for each, ``function``, ``file``, ``line`` and torch's ``reason``.
- ``not_captured``: sentences on what a GPU will compile or measure besides.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .compilers import captures, measured

VARIABLE = "COMPILING_GPU_PROCESSES"
_RESUMED = "torch_dynamo_resume_in_"
_NUMBER = re.compile(r"L\[.+\] == -?\d[\d.e+-]*$")
# What chose by a tie, by the file of torch that measures.
_CHOICES = {
    "select_algorithm.py": "a GEMM or convolution: the first candidate is in the graph, and stays",
    "pad_mm.py": "whether matrices are padded: they are not, and a start does not ask again",
    "triton_heuristics.py": "the configs of a kernel: the GPU measures at its first launch",
}


def write_at_exit(library: ctypes.CDLL) -> None:
    """Write the file when this process ends. *library* is device.cpp's."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return
    library.compiling_gpu_reads.restype = ctypes.c_size_t
    process = os.getpid()

    def write() -> None:
        if os.getpid() != process:
            return
        found = describe_process(library)
        if found is not None:
            path = Path(directory, f"{process}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(found, indent=1, default=str) + "\n", encoding="utf-8")

    atexit.register(write)


def describe_process(library: ctypes.CDLL) -> dict[str, object] | None:
    """What the file says of this process until now; None if it compiled nothing."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None or not utils.counters["frames"]["total"]:
        return None
    counters = utils.counters
    caches = {
        name: count
        for part in ("aot_autograd", "inductor")
        for name, count in counters[part].items()
        if re.fullmatch(r"(autograd|fxgraph)_cache_(hit|miss|bypass)", name)
    }
    return {
        "command": getattr(sys, "orig_argv", sys.argv),
        "graphs": counters["stats"]["unique_graphs"],
        "caches": caches,
        "value_reads": library.compiling_gpu_reads(),
        "value_guards": sorted(set(_value_guards())),
        "graph_breaks": dict(counters["graph_break"]),
        "recompiles": list(_recompiles(utils)),
        "not_captured": list(_not_captured(caches)),
    }


def _value_guards() -> Iterator[str]:
    convert: Any = sys.modules.get("torch._dynamo.convert_frame")
    frames: Any = sys.modules.get("torch._dynamo.eval_frame")
    for reference in convert.input_codes.seen if convert else ():
        code = reference() if callable(reference) else reference
        if code is None or not code.co_name.startswith(_RESUMED):
            continue
        for entry in frames._debug_get_cache_entry_list(code):
            manager = entry.guard_manager
            manager.populate_code_parts_for_debugging()
            for part in manager.code_parts:
                if _NUMBER.match(part):
                    yield f"{code.co_name}: {part}"


def _recompiles(utils: Any) -> Iterator[dict[str, object]]:
    for metrics in utils.get_compilation_metrics():
        if metrics.recompile_reason:
            yield {
                "function": metrics.co_name,
                "file": metrics.co_filename,
                "line": metrics.co_firstlineno,
                "reason": metrics.recompile_reason,
            }


def _not_captured(caches: dict[str, int]) -> Iterator[str]:
    for name, count in caches.items():
        if name.endswith("_bypass") and count:
            yield f"{count} graphs are in no cache ({name})"
    for name, count in measured.items():
        yield f"not measured, {count} times: {_CHOICES.get(name, name)}"
    if captures["graphs"]:
        yield f"{captures['graphs']} graphs were not captured for replay; their code was compiled"
