"""What a compile may be doing: one row for each phase.

Nothing is patched for this. The frames of a compile's thread are compared with the places of the
phases, from the innermost outward, and the first that fits tells the phase. Names of functions are
torch's own and differ between versions (experiments/matrix/watchdog_versions.py). What is not found
is left out.
"""

from typing import NamedTuple

from rocm_autopatch.patches.watchdog import frame_details

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType
    from typing import Optional

# Not TORCH_COMPILE_DISABLE: from torch 2.13 on, a program with fullgraph=True dies of that
# (pytorch#181247; tests/advice.py).
RUN_UNCOMPILED = "set TORCHDYNAMO_DISABLE=1 to run uncompiled"


class CodePlace:
    """Where the code of a phase is: the end of a file's path, or a directory in it if it ends with
    a slash; and the names of functions there, or none for all."""

    __slots__ = ("functions", "path")

    def __init__(self, path: str, *functions: str) -> None:
        self.path = path
        self.functions = functions

    def contains(self, code: "CodeType") -> bool:
        file = code.co_filename
        inside = self.path in file if self.path.endswith("/") else file.endswith(self.path)
        return inside and (not self.functions or code.co_name in self.functions)


class CompilePhase(NamedTuple):
    """What a compile may be doing.

    ``words`` say it in a line. ``details`` reads more from the frame that is in one of the
    ``places``. ``way`` is how to stop it where no switch does: switches.py has those that do.
    """

    words: str
    places: "tuple[CodePlace, ...]" = ()
    details: "Optional[Callable[[FrameType], list[str]]]" = None
    way: str = RUN_UNCOMPILED
    # Something is compiled, or another process that does so is waited for.
    is_build: bool = False
    # It goes on until all candidates are measured, whatever it is doing within that.
    is_search: bool = False
    # Inductor runs kernels of libraries in it, to compare them with its own.
    calls_libraries: bool = False
    # Threads and processes work for it.
    has_helpers: bool = False


# The first phase with a place that contains a frame counts.
PHASES = {
    "lock": CompilePhase(
        "waiting for a lock file that another process holds",
        (
            CodePlace("/filelock/"),
            CodePlace("/torch/utils/_filelock.py"),
        ),
        details=frame_details.tell_lock_file,
        way="set TORCHINDUCTOR_CACHE_DIR to a directory that no other process uses",
        is_build=True,
    ),
    "baton": CompilePhase(
        "waiting for a lock file of another build of C++ code",
        (CodePlace("/file_baton.py", "wait"),),
        details=frame_details.tell_baton_file,
        way="delete this file if no process is building there",
        is_build=True,
    ),
    "aiter": CompilePhase(
        "aiter is building a kernel module",
        (CodePlace("/aiter/jit/core.py", "build_module"),),
        details=frame_details.tell_aiter_module,
        way="build aiter's kernels before the program starts, and keep AITER_REBUILD unset",
        is_build=True,
    ),
    "isa": CompilePhase(
        "compiling a C++ test program to find out what this CPU supports",
        (CodePlace("/torch/_inductor/cpu_vec_isa.py"),),
        way="set TORCHINDUCTOR_VEC_ISA_OK to 1 or 0, so that torch does not test the CPU (read "
        "from torch 2.7 on)",
        is_build=True,
    ),
    "cpp": CompilePhase(
        "compiling C++",
        (
            CodePlace("/torch/_inductor/cpp_builder.py"),
            CodePlace("/torch/_inductor/codecache.py", "compile_file", "_worker_compile_cpp"),
        ),
        way="set CXX to another compiler, or set TORCHDYNAMO_DISABLE=1 to run uncompiled",
        is_build=True,
    ),
    "triton": CompilePhase(
        "compiling a Triton kernel",
        (
            CodePlace("/triton/compiler/"),
            CodePlace("/triton/backends/"),
            CodePlace(
                "/torch/_inductor/runtime/triton_heuristics.py",
                "precompile",
                "_precompile_config",
                "_precompile_worker",
            ),
        ),
        is_build=True,
    ),
    "descent": CompilePhase(
        "coordinate descent tuning",
        (
            CodePlace("/torch/_inductor/runtime/coordinate_descent_tuner.py"),
            CodePlace(
                "/torch/_inductor/runtime/triton_heuristics.py",
                "coordinate_descent_tuning",
                "_coordinate_descent_tuning",
            ),
        ),
        details=frame_details.tell_configs,
        is_search=True,
    ),
    "configs": CompilePhase(
        "autotuning a Triton kernel",
        (
            CodePlace(
                "/torch/_inductor/runtime/triton_heuristics.py",
                "benchmark_all_configs",
                "autotune_to_one_config",
            ),
        ),
        details=frame_details.tell_configs,
        is_search=True,
    ),
    "candidates": CompilePhase(
        "autotuning",
        (
            CodePlace(
                "/torch/_inductor/select_algorithm.py",
                "wait_on_futures",
                "benchmark_in_current_process",
                "benchmark_in_sub_process",
                "benchmark_choices",
                "do_autotuning",
            ),
            CodePlace("/torch/_inductor/autotune_process.py"),
        ),
        details=frame_details.tell_candidates,
        is_search=True,
        calls_libraries=True,
        has_helpers=True,
    ),
    "workers": CompilePhase(
        "waiting for compile workers",
        (CodePlace("/torch/_inductor/async_compile.py", "wait", "_wait_futures", "get_result"),),
        details=frame_details.tell_workers,
        way="set TORCHINDUCTOR_COMPILE_THREADS=1 to compile without workers",
        has_helpers=True,
    ),
    "load": CompilePhase(
        "loading compiled code",
        (
            CodePlace("/torch/_inductor/codecache.py", "load_by_key_path", "load", "_load_library"),
            CodePlace("/torch/_inductor/runtime/compile_tasks.py", "_reload_python_module"),
            CodePlace("/torch/_functorch/_aot_autograd/autograd_cache.py", "load"),
        ),
    ),
    "freezing": CompilePhase(
        "freezing weights (Inductor)",
        (
            CodePlace("/torch/_inductor/freezing.py"),
            CodePlace("/torch/_inductor/constant_folding.py"),
        ),
    ),
    "pads": CompilePhase(
        "deciding whether to pad a GEMM (graph passes of Inductor)",
        (CodePlace("/torch/_inductor/fx_passes/pad_mm.py"),),
        calls_libraries=True,
    ),
    "passes": CompilePhase(
        "graph passes of Inductor",
        (
            CodePlace("/torch/_inductor/fx_passes/"),
            CodePlace("/torch/_inductor/custom_graph_pass.py"),
        ),
    ),
    "matcher": CompilePhase(
        "graph passes of Inductor (pattern matcher)",
        (CodePlace("/torch/_inductor/pattern_matcher.py"),),
    ),
    "codegen": CompilePhase(
        "scheduling and generating code (Inductor)",
        (
            CodePlace("/torch/_inductor/scheduler.py"),
            CodePlace("/torch/_inductor/codegen/"),
            CodePlace("/torch/_inductor/graph.py", "codegen"),
        ),
    ),
    "lowering": CompilePhase(
        "lowering to Inductor's IR",
        (
            CodePlace("/torch/_inductor/lowering.py"),
            CodePlace("/torch/_inductor/ir.py"),
            CodePlace("/torch/_inductor/graph.py"),
        ),
    ),
    "inductor": CompilePhase(
        "Inductor",
        (CodePlace("/torch/_inductor/compile_fx.py"),),
    ),
    "aot": CompilePhase(
        "tracing forward and backward (AOTAutograd)",
        (CodePlace("/torch/_functorch/"),),
    ),
    "backend": CompilePhase(
        "in the backend",
        (CodePlace("/torch/_dynamo/output_graph.py", "call_user_compiler", "_call_user_compiler"),),
        details=frame_details.tell_backend,
    ),
    "guards": CompilePhase(
        "making guards (Dynamo)",
        (CodePlace("/torch/_dynamo/guards.py"),),
    ),
    "dynamo": CompilePhase(
        "tracing (Dynamo)",
        (
            CodePlace("/torch/_dynamo/symbolic_convert.py"),
            CodePlace("/torch/_dynamo/variables/"),
            CodePlace("/torch/_dynamo/output_graph.py"),
            CodePlace("/torch/_dynamo/convert_frame.py"),
        ),
    ),
    "": CompilePhase("torch"),
}


def find_phase(code: "CodeType") -> str:
    """The name of the phase that a function belongs to, or "" if it belongs to none."""
    for name, phase in PHASES.items():
        if any(place.contains(code) for place in phase.places):
            return name
    return ""
