"""What a compile is doing, read from the stack of its thread while it runs.

Nothing is patched for this. The frames are compared with ``_PHASES``, from the innermost outward,
and the first that is in it tells the phase. Names of functions and of their locals are torch's own
and differ between versions (experiments/matrix/watchdog_versions.py). What is not found is
left out.
"""

import os
import sys

from rocm_autopatch import cpus
from rocm_autopatch.patches import callers
from rocm_autopatch.patches.watchdog import underway
from rocm_autopatch.text import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType
    from typing import Any, Optional

# The end of a frame's file, or a directory in it; the function, or "" for any; the phase. The first
# row that fits a frame counts.
_PHASES = (
    ("/filelock/", "", "lock"),
    ("/torch/utils/_filelock.py", "", "lock"),
    ("/file_baton.py", "wait", "baton"),
    ("/aiter/jit/core.py", "build_module", "aiter"),
    ("/torch/_inductor/cpu_vec_isa.py", "", "isa"),
    ("/torch/_inductor/cpp_builder.py", "", "cpp"),
    ("/torch/_inductor/codecache.py", "compile_file", "cpp"),
    ("/torch/_inductor/codecache.py", "_worker_compile_cpp", "cpp"),
    ("/triton/compiler/", "", "triton"),
    ("/triton/backends/", "", "triton"),
    ("/torch/_inductor/runtime/triton_heuristics.py", "precompile", "triton"),
    ("/torch/_inductor/runtime/triton_heuristics.py", "_precompile_config", "triton"),
    ("/torch/_inductor/runtime/triton_heuristics.py", "_precompile_worker", "triton"),
    ("/torch/_inductor/runtime/coordinate_descent_tuner.py", "", "descent"),
    ("/torch/_inductor/runtime/triton_heuristics.py", "coordinate_descent_tuning", "descent"),
    ("/torch/_inductor/runtime/triton_heuristics.py", "_coordinate_descent_tuning", "descent"),
    ("/torch/_inductor/runtime/triton_heuristics.py", "benchmark_all_configs", "configs"),
    ("/torch/_inductor/runtime/triton_heuristics.py", "autotune_to_one_config", "configs"),
    ("/torch/_inductor/select_algorithm.py", "wait_on_futures", "candidates"),
    ("/torch/_inductor/select_algorithm.py", "benchmark_in_current_process", "candidates"),
    ("/torch/_inductor/select_algorithm.py", "benchmark_in_sub_process", "candidates"),
    ("/torch/_inductor/select_algorithm.py", "benchmark_choices", "candidates"),
    ("/torch/_inductor/select_algorithm.py", "do_autotuning", "candidates"),
    ("/torch/_inductor/autotune_process.py", "", "candidates"),
    ("/torch/_inductor/async_compile.py", "wait", "workers"),
    ("/torch/_inductor/async_compile.py", "_wait_futures", "workers"),
    ("/torch/_inductor/async_compile.py", "get_result", "workers"),
    ("/torch/_inductor/codecache.py", "load_by_key_path", "load"),
    ("/torch/_inductor/codecache.py", "load", "load"),
    ("/torch/_inductor/codecache.py", "_load_library", "load"),
    ("/torch/_inductor/runtime/compile_tasks.py", "_reload_python_module", "load"),
    ("/torch/_functorch/_aot_autograd/autograd_cache.py", "load", "load"),
    ("/torch/_inductor/freezing.py", "", "freezing"),
    ("/torch/_inductor/constant_folding.py", "", "freezing"),
    ("/torch/_inductor/fx_passes/pad_mm.py", "", "pads"),
    ("/torch/_inductor/fx_passes/", "", "passes"),
    ("/torch/_inductor/pattern_matcher.py", "", "matcher"),
    ("/torch/_inductor/custom_graph_pass.py", "", "passes"),
    ("/torch/_inductor/scheduler.py", "", "codegen"),
    ("/torch/_inductor/codegen/", "", "codegen"),
    ("/torch/_inductor/lowering.py", "", "lowering"),
    ("/torch/_inductor/ir.py", "", "lowering"),
    ("/torch/_inductor/graph.py", "codegen", "codegen"),
    ("/torch/_inductor/graph.py", "", "lowering"),
    ("/torch/_inductor/compile_fx.py", "", "inductor"),
    ("/torch/_functorch/", "", "aot"),
    ("/torch/_dynamo/output_graph.py", "call_user_compiler", "backend"),
    ("/torch/_dynamo/output_graph.py", "_call_user_compiler", "backend"),
    ("/torch/_dynamo/guards.py", "", "guards"),
    ("/torch/_dynamo/symbolic_convert.py", "", "dynamo"),
    ("/torch/_dynamo/variables/", "", "dynamo"),
    ("/torch/_dynamo/output_graph.py", "", "dynamo"),
    ("/torch/_dynamo/convert_frame.py", "", "dynamo"),
)
_WORDS = {
    "lock": "waiting for a lock file that another process holds",
    "baton": "waiting for a lock file of another build of C++ code",
    "aiter": "aiter is building a kernel module",
    "isa": "compiling a C++ test program to find out what this CPU supports",
    "cpp": "compiling C++",
    "triton": "compiling a Triton kernel",
    "descent": "coordinate descent tuning",
    "configs": "autotuning a Triton kernel",
    "candidates": "autotuning",
    "workers": "waiting for compile workers",
    "load": "loading compiled code",
    "freezing": "freezing weights (Inductor)",
    "pads": "deciding whether to pad a GEMM (graph passes of Inductor)",
    "passes": "graph passes of Inductor",
    "matcher": "graph passes of Inductor (pattern matcher)",
    "lowering": "lowering to Inductor's IR",
    "codegen": "scheduling and generating code (Inductor)",
    "inductor": "Inductor",
    "aot": "tracing forward and backward (AOTAutograd)",
    "backend": "in the backend",
    "guards": "making guards (Dynamo)",
    "dynamo": "tracing (Dynamo)",
    "": "torch",
}
_BUILDS = ("cpp", "isa", "triton", "lock", "baton", "aiter")
# What a line has in it if a worker is compiling C++: our own words, or the compiler's command.
_CPP = ("compiling C++", "cc1plus", "g++", "c++ ", "clang")
_SEARCHES = ("candidates", "configs", "descent")
# Phases in which Inductor runs kernels of libraries, to compare them with its own.
_CALLS = ("candidates", "pads")
_WAYS = {
    "lock": "set TORCHINDUCTOR_CACHE_DIR to a directory that no other process uses",
    "baton": "delete this file if no process is building there",
    "aiter": "build aiter's kernels before the program starts, and keep AITER_REBUILD unset",
    "workers": "set TORCHINDUCTOR_COMPILE_THREADS=1 to compile without workers",
    "isa": "set TORCHINDUCTOR_VEC_ISA_OK to 1 or 0, so that torch does not test the CPU (read "
    "from torch 2.7 on)",
    "cpp": "set CXX to another compiler, or set TORCHDYNAMO_DISABLE=1 to run uncompiled",
    "own": "remove the *_custom_*_pass that the program sets in torch._inductor.config",
    "symbols": "use torch.compile(dynamic=False), which has no symbolic shapes",
}
# Not TORCH_COMPILE_DISABLE: from torch 2.13 on, a program with fullgraph=True dies of that
# (pytorch#181247; tests/advice.py).
_OTHERWISE = "set TORCHDYNAMO_DISABLE=1 to run uncompiled"


def describe(watch: "underway.Watch") -> str:
    """Who compiles what, which phase it is in and where, and how to stop it. Never raises."""
    stack = list(_stack(watch))
    phase, at, within = _phase(stack)
    said = [_WORDS[phase], *_tell(_DETAILS.get(phase), at)]
    if within in _BUILDS:
        said.append(_WORDS[within])
    elif phase in ("workers", "candidates"):
        said += _tell(_others, watch)
    parts = [_subject(watch), *_tell(_caller, watch), ", ".join(said), *_tell(_place, stack)]
    if phase in _CALLS and within not in _BUILDS:
        parts += _tell(_libraries, at)
    if phase in ("workers", "candidates", *_BUILDS):
        parts += _tell(_children, None)
    if phase == "workers" and any(word in part for word in _CPP for part in parts):
        # Without workers, this process would wait for the same compiler.
        phase = "cpp"
    parts.append("to stop it: " + _stops(phase, at, stack))
    return "; ".join([part for part in parts if part])


def _tell(teller: "Optional[Callable[[Any], list[str]]]", what: "Any") -> "list[str]":
    """What *teller* reads from torch's own locals. This torch may have other locals."""
    try:
        return teller(what) if teller else []
    except Exception:
        return ["but torch %s tells no details" % _torch()]


def _torch() -> str:
    return str(getattr(sys.modules.get("torch"), "__version__", "of unknown version"))


def _stack(watch: "underway.Watch") -> "Iterator[FrameType]":
    """The frames of a compile, the innermost first, without the frames that called it."""
    frame = sys._current_frames().get(watch.ident)
    while frame is not None:
        yield frame
        if frame is watch.frame:
            return
        frame = frame.f_back


def _phase(stack: "list[FrameType]") -> "tuple[str, Optional[FrameType], str]":
    """The phase, its frame, and the phase within it, such as compiling C++ while autotuning."""
    within = ""
    first = None
    for frame in stack:
        phase = _phase_of(frame.f_code)
        if phase in _SEARCHES:
            return phase, frame, within if within != phase else ""
        if phase and first is None:
            within, first = phase, frame
    return within, first, ""


def _phase_of(code: "CodeType") -> str:
    file = code.co_filename
    for place, name, phase in _PHASES:
        known = place in file if place.endswith("/") else file.endswith(place)
        if known and name in ("", code.co_name):
            return phase
    return ""


def _subject(watch: "underway.Watch") -> str:
    """What is compiled: the innermost frame, graph and kernel that are known."""
    said: dict[str, str] = {}
    for kind, args, kwargs, compile_id in list(watch.levels):
        try:
            said[kind] = _LEVELS[kind](args, kwargs, compile_id)
        except Exception:
            said[kind] = "a %s" % kind
    return ", ".join(said.values()) or "a compile"


def _frame_level(args: "Any", kwargs: "Any", compile_id: "Any") -> str:
    return _frame(*underway.function(args, kwargs)) + _named(compile_id)


def _caller(watch: "underway.Watch") -> "list[str]":
    """The line of the program that called the function, if a framework's function is compiled."""
    codes = [
        (*args, kwargs.get("code"))[0] for kind, args, kwargs, _ in watch.levels if kind == "frame"
    ]
    place = callers.caller(watch.frame, codes[0]) if codes else ""
    return ["called at " + place] if place else []


def _graph_level(args: "Any", kwargs: "Any", compile_id: "Any") -> str:
    module = args[0] if args else kwargs["gm"]
    which = "backward graph" if kwargs.get("is_backward") else "graph"
    text = "%s of %d nodes" % (which, len(module.graph.nodes))
    frame = underway.frames.get(compile_id)
    if kwargs.get("is_backward") and frame:
        text += " of %s%s" % (_frame(*frame), _named(compile_id))
    return text


def _kernel_level(args: "Any", kwargs: "Any", compile_id: "Any") -> str:
    tuner = args[0]
    return "Triton kernel %s" % getattr(tuner.fn, "__name__", tuner.fn)


_LEVELS = {"frame": _frame_level, "graph": _graph_level, "kernel": _kernel_level}


def _frame(name: str, file: str, line: int) -> str:
    return "%s (%s:%d)" % (name, file, line)


def _named(compile_id: "Any") -> str:
    return ", compile %s" % (compile_id,) if compile_id is not None else ""


# What the frame of a phase tells in detail


def _candidates(frame: "Optional[FrameType]") -> "list[str]":
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
                said.append(known["name"] + _sizes(known.get("input_nodes")))
        frame = frame.f_back
    if total is not None:
        said.append("%d candidates" % total if left is None else "%d of %d left" % (left, total))
    return said or ["but torch %s does not tell what" % _torch()]


def _sizes(nodes: "Any") -> str:
    sizes = ["x".join(map(str, node.get_size())) for node in nodes or ()]
    return "(%s)" % ", ".join(sizes) if sizes else ""


def _tuner(frame: "FrameType") -> "list[str]":
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


def _workers(frame: "FrameType") -> "list[str]":
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
            return ["for %s, %d of %d left" % (known["key"], left, total), *_crowd()]
        frame = frame.f_back  # type: ignore[assignment]
    return []


def _crowd() -> "list[str]":
    """Whether there are more workers than CPUs for them, which a container does not show."""
    workers = getattr(sys.modules.get("torch._inductor.config"), "compile_threads", None)
    said = cpus.describe_crowding(workers) if isinstance(workers, int) else ""
    return [said] if said else []


def _is_future(one: "Any") -> bool:
    return any(kind.__name__ == "CodeCacheFuture" for kind in type(one).__mro__) or (
        hasattr(one, "result") and hasattr(one, "done")
    )


def _lock(frame: "FrameType") -> "list[str]":
    lock = frame.f_locals.get("self")
    return [str(getattr(lock, "lock_file", ""))] if hasattr(lock, "lock_file") else []


def _baton(frame: "FrameType") -> "list[str]":
    return [str(frame.f_locals["self"].lock_file_path)]


def _aiter(frame: "FrameType") -> "list[str]":
    return [str(frame.f_locals["md_name"])]


def _libraries(frame: "Optional[FrameType]") -> "list[str]":
    """What may make a library search in this call."""
    operation: Any = ""
    while frame is not None and not operation:
        if frame.f_code.co_filename.endswith("/select_algorithm.py"):
            operation = frame.f_locals.get("name")
        frame = frame.f_back
    from rocm_autopatch.patches.watchdog import libraries

    return libraries.searches(operation if isinstance(operation, str) else "")


def _backend(frame: "FrameType") -> "list[str]":
    compiler = frame.f_locals.get("compiler_fn") or frame.f_locals["self"].compiler_fn
    return [str(getattr(compiler, "__name__", type(compiler).__name__))]


_DETAILS: "dict[str, Callable[[Any], list[str]]]" = {
    "candidates": _candidates,
    "configs": _tuner,
    "descent": _tuner,
    "workers": _workers,
    "lock": _lock,
    "baton": _baton,
    "aiter": _aiter,
    "backend": _backend,
}


def _others(watch: "underway.Watch") -> "list[str]":
    """What the threads do that compile for this one."""
    said = {}
    for ident, frame in sys._current_frames().items():
        if ident in underway.running:
            continue
        stack = []
        above: Any = frame
        while above is not None:
            stack.append(above)
            above = above.f_back
        phase = next(filter(None, map(_phase_of, [one.f_code for one in stack])), "")
        if phase in _BUILDS:
            said[phase] = "another thread is " + _WORDS[phase]
    return list(said.values())


def _place(stack: "list[FrameType]") -> "list[str]":
    """The innermost frame that is not in the standard library."""
    others = [one for one in stack if not callers.of_library(one.f_code.co_filename)]
    for frame in others or stack[:1]:
        code = frame.f_code
        return ["at %s:%d in %s" % (code.co_filename, frame.f_lineno or 0, code.co_name)]
    return []


def _stops(phase: str, at: "Optional[FrameType]", stack: "list[FrameType]") -> str:
    """What to set to stop it, and what to write into a policy for that."""
    inner = [frame.f_code.co_filename for frame in stack[:12]]
    if phase not in _DETAILS and any("sympy/" in file for file in inner):
        return _WAYS["symbols"]
    if phase == "passes" and at is not None:
        within = [frame.f_code.co_filename for frame in stack[: stack.index(at)]]
        if any("/torch/" not in file and not file.startswith("<") for file in within):
            return _WAYS["own"]
    ways = []
    asked = _asked(stack)
    for key, value, variable in _keys(phase):
        if key in asked:
            ways.append(
                "use another mode= or options= of torch.compile (this one asks for %s)" % key
            )
        if os.environ.get(variable) == "1":
            ways.append("unset %s (it is 1)" % variable)
        ways.append(
            "write this into a policy: config: {torch._inductor.config: {%s: {pin: %s}}}"
            % (key, value)
        )
    return ", or ".join(ways) or _WAYS.get(phase, _OTHERWISE)


def _keys(phase: str) -> "list[tuple[str, str, str]]":
    """The keys of torch._inductor.config that stop a phase, by the registry of switches."""
    try:
        from rocm_autopatch import switches  # No start loads it.
    except Exception:
        return []  # The package was removed meanwhile. The rest of the line still holds.
    return switches.stopping(phase)


def _asked(stack: "list[FrameType]") -> "dict[str, Any]":
    """The options of this compile, from mode= or options=."""
    for frame in stack:
        if frame.f_code.co_filename.endswith("/_inductor/compile_fx.py"):
            given = frame.f_locals.get("config_patches")
            if isinstance(given, dict) and given:
                return {key: value for key, value in given.items() if value}
    return {}


def _children(_: "Any") -> "list[str]":
    """The processes that this one may wait for: the leaves of its process tree, from /proc."""
    found: list[tuple[int, float, str]] = []
    _leaves(os.getpid(), 0, found)
    texts = [
        "%s (pid %d, started %s ago)" % (command, pid, duration(age))
        for pid, age, command in found[:3]
    ]
    more = ["%d more" % (len(found) - 3)] if len(found) > 3 else []
    return ["child processes: " + ", ".join(texts + more)] if found else []


def _leaves(pid: int, depth: int, found: "list[tuple[int, float, str]]") -> None:
    children = []
    try:
        for task in os.listdir("/proc/%d/task" % pid):
            with open("/proc/%d/task/%s/children" % (pid, task)) as file:
                children += [int(child) for child in file.read().split()]
        if depth and not children:
            with open("/proc/%d/cmdline" % pid, "rb") as words:
                command = words.read().split(b"\0")
            with open("/proc/%d/stat" % pid) as file:
                fields = file.read().rpartition(")")[2].split()
            with open("/proc/uptime") as file:
                up = float(file.read().split()[0])
            age = up - int(fields[19]) / os.sysconf("SC_CLK_TCK")
            command[0] = os.path.basename(command[0])
            text = b" ".join(command[:4]).decode("utf-8", "replace").strip()
            found.append((pid, age, text[:60] or "?"))
    except (OSError, ValueError, IndexError):
        return  # It has ended meanwhile, or this kernel lacks these files.
    if depth < 8:
        for child in children:
            _leaves(child, depth + 1, found)
