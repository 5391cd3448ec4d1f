"""What the frame of a phase tells in detail, read from torch's own locals.

Each reader takes the frame of its phase (``phases.PHASES``), and gives texts for the line. The
locals differ between versions (experiments/matrix/watchdog_versions.py), so a reader may raise any
exception where a torch has others.
"""

import sys

from rocm_autopatch.startup import cpus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any, Optional

    from rocm_autopatch.patches.torch_types import InputNode


def torch_version() -> str:
    return str(getattr(sys.modules.get("torch"), "__version__", "of unknown version"))


def tell_candidates(frame: "Optional[FrameType]") -> "list[str]":
    """What is autotuned, and how many candidates are left."""
    said: list[str] = []
    left = total = None
    while frame is not None:
        if frame.f_code.co_filename.endswith(("/select_algorithm.py", "/autotune_process.py")):
            known = frame.f_locals
            choices, timings, futures = (known.get(n) for n in ("choices", "timings", "futures"))
            if left is None and isinstance(futures, dict) and futures:
                total = len(futures)
                left = sum(not future.done() for future in list(futures))
            if left is None and choices is not None and isinstance(timings, dict):
                total, left = len(choices), len(choices) - len(timings)
            if total is None and choices is not None:
                total = len(choices)
            if not said and isinstance(known.get("name"), str):
                said.append(known["name"] + _input_sizes(known.get("input_nodes")))
        frame = frame.f_back
    if total is not None:
        said.append("%d candidates" % total if left is None else "%d of %d left" % (left, total))
    return said or ["but torch %s does not tell what" % torch_version()]


def _input_sizes(nodes: "Optional[Iterable[InputNode]]") -> str:
    sizes = ["x".join(map(str, node.get_size())) for node in nodes or ()]
    return "(%s)" % ", ".join(sizes) if sizes else ""


def tell_configs(frame: "FrameType") -> "list[str]":
    """The Triton kernel, and how many configs are left."""
    while frame is not None:
        tuner: Any = frame.f_locals.get("self")
        if hasattr(tuner, "launchers"):
            timings = frame.f_locals.get("timings")
            total = len(tuner.launchers)
            left = total - len(timings) if isinstance(timings, dict) else None
            return ["%d configs" % total if left is None else "%d of %d left" % (left, total)]
        frame = frame.f_back  # type: ignore[assignment]
    return []


def tell_workers(frame: "FrameType") -> "list[str]":
    """The kernel that is waited for, and how many are left."""
    while frame is not None and frame.f_code.co_filename.endswith("/async_compile.py"):
        known = frame.f_locals
        if isinstance(known.get("key"), str):
            kernels: Any = known.get("kernels") or known.get("scope") or {}
            waiting = [n for n, one in list(kernels.items()) if _is_future(one)]
            total = len(kernels) if "kernels" in known else len(waiting)
            left = total
            if known["key"] in waiting:
                left = len(waiting) - waiting.index(known["key"])
            return ["for %s, %d of %d left" % (known["key"], left, total), *_describe_crowd()]
        frame = frame.f_back  # type: ignore[assignment]
    return []


def _describe_crowd() -> "list[str]":
    """Whether there are more workers than CPUs for them, which a container does not show."""
    workers = getattr(sys.modules.get("torch._inductor.config"), "compile_threads", None)
    said = cpus.describe_crowding(workers) if isinstance(workers, int) else ""
    return [said] if said else []


def _is_future(one: object) -> bool:
    return any(kind.__name__ == "CodeCacheFuture" for kind in type(one).__mro__) or (
        hasattr(one, "result") and hasattr(one, "done")
    )


def tell_lock_file(frame: "FrameType") -> "list[str]":
    lock = frame.f_locals.get("self")
    return [str(getattr(lock, "lock_file", ""))] if hasattr(lock, "lock_file") else []


def tell_baton_file(frame: "FrameType") -> "list[str]":
    return [str(frame.f_locals["self"].lock_file_path)]


def tell_aiter_module(frame: "FrameType") -> "list[str]":
    return [str(frame.f_locals["md_name"])]


def tell_libraries(frame: "Optional[FrameType]") -> "list[str]":
    """What may make a library search in this call."""
    operation: object = ""
    while frame is not None and not operation:
        if frame.f_code.co_filename.endswith("/select_algorithm.py"):
            operation = frame.f_locals.get("name")
        frame = frame.f_back
    from rocm_autopatch.patches.watchdog import libraries

    return libraries.searches(operation if isinstance(operation, str) else "")


def tell_backend(frame: "FrameType") -> "list[str]":
    compiler = frame.f_locals.get("compiler_fn") or frame.f_locals["self"].compiler_fn
    return [str(getattr(compiler, "__name__", type(compiler).__name__))]
