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


class Place:
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


class Phase(NamedTuple):
    """What a compile may be doing.

    ``words`` say it in a line. ``details`` reads more from the frame that is in one of the
    ``places``. ``way`` is how to stop it where no switch does: switches.py has those that do.
    """

    words: str
    places: "tuple[Place, ...]" = ()
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
    "lock": Phase(
        "waiting for a lock file that another process holds",
        (
            Place("/filelock/"),
            Place("/torch/utils/_filelock.py"),
        ),
        details=frame_details.tell_lock_file,
        way="set TORCHINDUCTOR_CACHE_DIR to a directory that no other process uses",
        is_build=True,
    ),
    "baton": Phase(
        "waiting for a lock file of another build of C++ code",
        (Place("/file_baton.py", "wait"),),
        details=frame_details.tell_baton_file,
        way="delete this file if no process is building there",
        is_build=True,
    ),
    "aiter": Phase(
        "aiter is building a kernel module",
        (Place("/aiter/jit/core.py", "build_module"),),
        details=frame_details.tell_aiter_module,
        way="build aiter's kernels before the program starts, and keep AITER_REBUILD unset",
        is_build=True,
    ),
    "isa": Phase(
        "compiling a C++ test program to find out what this CPU supports",
        (Place("/torch/_inductor/cpu_vec_isa.py"),),
        way="set TORCHINDUCTOR_VEC_ISA_OK to 1 or 0, so that torch does not test the CPU (read "
        "from torch 2.7 on)",
        is_build=True,
    ),
    "cpp": Phase(
        "compiling C++",
        (
            Place("/torch/_inductor/cpp_builder.py"),
            Place("/torch/_inductor/codecache.py", "compile_file", "_worker_compile_cpp"),
        ),
        way="set CXX to another compiler, or set TORCHDYNAMO_DISABLE=1 to run uncompiled",
        is_build=True,
    ),
    "triton": Phase(
        "compiling a Triton kernel",
        (
            Place("/triton/compiler/"),
            Place("/triton/backends/"),
            Place(
                "/torch/_inductor/runtime/triton_heuristics.py",
                "precompile",
                "_precompile_config",
                "_precompile_worker",
            ),
        ),
        is_build=True,
    ),
    "descent": Phase(
        "coordinate descent tuning",
        (
            Place("/torch/_inductor/runtime/coordinate_descent_tuner.py"),
            Place(
                "/torch/_inductor/runtime/triton_heuristics.py",
                "coordinate_descent_tuning",
                "_coordinate_descent_tuning",
            ),
        ),
        details=frame_details.tell_configs,
        is_search=True,
    ),
    "configs": Phase(
        "autotuning a Triton kernel",
        (
            Place(
                "/torch/_inductor/runtime/triton_heuristics.py",
                "benchmark_all_configs",
                "autotune_to_one_config",
            ),
        ),
        details=frame_details.tell_configs,
        is_search=True,
    ),
    "candidates": Phase(
        "autotuning",
        (
            Place(
                "/torch/_inductor/select_algorithm.py",
                "wait_on_futures",
                "benchmark_in_current_process",
                "benchmark_in_sub_process",
                "benchmark_choices",
                "do_autotuning",
            ),
            Place("/torch/_inductor/autotune_process.py"),
        ),
        details=frame_details.tell_candidates,
        is_search=True,
        calls_libraries=True,
        has_helpers=True,
    ),
    "workers": Phase(
        "waiting for compile workers",
        (Place("/torch/_inductor/async_compile.py", "wait", "_wait_futures", "get_result"),),
        details=frame_details.tell_workers,
        way="set TORCHINDUCTOR_COMPILE_THREADS=1 to compile without workers",
        has_helpers=True,
    ),
    "load": Phase(
        "loading compiled code",
        (
            Place("/torch/_inductor/codecache.py", "load_by_key_path", "load", "_load_library"),
            Place("/torch/_inductor/runtime/compile_tasks.py", "_reload_python_module"),
            Place("/torch/_functorch/_aot_autograd/autograd_cache.py", "load"),
        ),
    ),
    "freezing": Phase(
        "freezing weights (Inductor)",
        (
            Place("/torch/_inductor/freezing.py"),
            Place("/torch/_inductor/constant_folding.py"),
        ),
    ),
    "pads": Phase(
        "deciding whether to pad a GEMM (graph passes of Inductor)",
        (Place("/torch/_inductor/fx_passes/pad_mm.py"),),
        calls_libraries=True,
    ),
    "passes": Phase(
        "graph passes of Inductor",
        (
            Place("/torch/_inductor/fx_passes/"),
            Place("/torch/_inductor/custom_graph_pass.py"),
        ),
    ),
    "matcher": Phase(
        "graph passes of Inductor (pattern matcher)",
        (Place("/torch/_inductor/pattern_matcher.py"),),
    ),
    "codegen": Phase(
        "scheduling and generating code (Inductor)",
        (
            Place("/torch/_inductor/scheduler.py"),
            Place("/torch/_inductor/codegen/"),
            Place("/torch/_inductor/graph.py", "codegen"),
        ),
    ),
    "lowering": Phase(
        "lowering to Inductor's IR",
        (
            Place("/torch/_inductor/lowering.py"),
            Place("/torch/_inductor/ir.py"),
            Place("/torch/_inductor/graph.py"),
        ),
    ),
    "inductor": Phase(
        "Inductor",
        (Place("/torch/_inductor/compile_fx.py"),),
    ),
    "aot": Phase(
        "tracing forward and backward (AOTAutograd)",
        (Place("/torch/_functorch/"),),
    ),
    "backend": Phase(
        "in the backend",
        (Place("/torch/_dynamo/output_graph.py", "call_user_compiler", "_call_user_compiler"),),
        details=frame_details.tell_backend,
    ),
    "guards": Phase(
        "making guards (Dynamo)",
        (Place("/torch/_dynamo/guards.py"),),
    ),
    "dynamo": Phase(
        "tracing (Dynamo)",
        (
            Place("/torch/_dynamo/symbolic_convert.py"),
            Place("/torch/_dynamo/variables/"),
            Place("/torch/_dynamo/output_graph.py"),
            Place("/torch/_dynamo/convert_frame.py"),
        ),
    ),
    "": Phase("torch"),
}


def find_phase(code: "CodeType") -> str:
    """The name of the phase that a function belongs to, or "" if it belongs to none."""
    for name, phase in PHASES.items():
        if any(place.contains(code) for place in phase.places):
            return name
    return ""
