# mypy: disable-error-code="no-any-return, no-untyped-call, untyped-decorator, misc"
"""What docs/claims.md says of a running torch, tried with the torch of this interpreter.

    python experiments/live/claims.py [CHECK ...]

It needs an interpreter with torch; our hook is off. Each check runs in a process of its own, with
empty caches and at most 150 seconds, and prints one line of JSON: what it saw. Without a GPU, the
checks marked ``gpu`` are left out. docs/claims.md says what the results mean. Nothing is judged
here, because the right result differs between versions.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHECKS: dict[str, Callable[[], dict[str, Any]]] = {}
GPU: set[str] = set()
VARIABLES = {
    "variables-win": {
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
    },
    "debug-variable": {"TORCH_COMPILE_DEBUG": "1"},
    "debug-log": {"TORCH_COMPILE_DEBUG": "1"},
    "caches-off": {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
}


def check(
    name: str, gpu: bool = False
) -> Callable[[Callable[[], dict[str, Any]]], Callable[[], dict[str, Any]]]:
    """Registers a check by its name in docs/claims.md."""

    def register(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
        CHECKS[name] = function
        if gpu:
            GPU.add(name)
        return function

    return register


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def error(call: Callable[[], Any]) -> str:
    """The first line of what a call raises."""
    try:
        call()
    except BaseException as raised:
        return f"{type(raised).__name__}: {raised}".splitlines()[0][:160]
    return "nothing raised"


@check("variables-win")
def variables_win() -> dict[str, Any]:
    """Two variables, and what is read after the program wrote the opposite."""
    import torch._inductor.config as config

    before = config.max_autotune, config.force_disable_caches
    config.max_autotune = config.force_disable_caches = False
    after = config.max_autotune, config.force_disable_caches
    return {"max_autotune": [before[0], after[0]], "force_disable_caches": [before[1], after[1]]}


@check("block-in-threads")
def block_in_threads() -> dict[str, Any]:
    """A value written on the main thread, as another thread reads it."""
    import torch._inductor.config as config

    config.max_fusion_size = 7
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(config.max_fusion_size))
    thread.start()
    thread.join()
    return {"written": 7, "read in another thread": seen[0]}


@check("recompile-limit-evicts")
def recompile_limit_evicts() -> dict[str, Any]:
    """Compiles of a function for five sizes where the limit is 2, and of the first size again."""
    import torch
    import torch._dynamo.config as config

    config.cache_size_limit = 2
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(1)
        return graph.forward

    function = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)
    counts = []
    for size in (2, 3, 4, 5, 6, 2, 3):
        function(torch.ones(size))
        counts.append(len(compiled))
    return {"sizes": [2, 3, 4, 5, 6, 2, 3], "compiles so far": counts}


@check("silu-pattern")
def silu_pattern() -> dict[str, Any]:
    """How many patterns are matched in x * sigmoid(x), and in attention written out."""
    import torch
    from torch._dynamo.utils import counters

    found = {}

    def attention(q: Any, k: Any, v: Any) -> Any:
        return (torch.matmul(q, k.transpose(-2, -1)).div(8.0).softmax(dim=-1)).matmul(v)

    x = torch.randn(2, 4, 64, 64, device=device())
    for name, function, arguments in (
        ("x * sigmoid(x)", lambda x: x * torch.sigmoid(x), (x,)),
        ("attention", attention, (x, x, x)),
    ):
        counters.clear()
        with torch.no_grad():
            torch.compile(function)(*arguments)
        found[name] = counters["inductor"]["pattern_matcher_count"]
    return found


def code_of(function: Any, *arguments: Any, **config: Any) -> str:
    """What Inductor generates for a function, under these config values."""
    import torch
    import torch._inductor.config as inductor
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    with torch.no_grad(), inductor.patch({"fx_graph_cache": False, **config}):
        _, codes = run_and_get_code(torch.compile(function), *arguments)
    return "\n".join(codes)


def kernels(code: str) -> int:
    """How many kernels a generated module launches or calls, library calls apart."""
    body = code[code.rindex("def call(") :]
    return len(re.findall(r"^\s+(?:\w+\.run\(|cpp_fused\w*\()", body, re.MULTILINE))


@check("epilogue-fusion")
def epilogue_fusion() -> dict[str, Any]:
    """Kernels beside ATen's GEMM in relu(linear(x)), with epilogue_fusion and without."""
    import torch

    linear = torch.nn.Linear(64, 64).to(device())
    x = torch.randn(8, 64, device=device())

    def function(x: Any) -> Any:
        return torch.relu(linear(x)) * 2

    return {
        str(value): {
            "GEMMs by ATen": len(re.findall(r"extern_kernels\.\w*mm\(", code)),
            "own kernels": kernels(code),
        }
        for value in (True, False)
        for code in [code_of(function, x, epilogue_fusion=value, max_autotune_gemm_backends="ATEN")]
    }


@check("backends-without-search")
def backends_without_search() -> dict[str, Any]:
    """Whether a GEMM is ATen's where the backends are TRITON alone and nothing is searched."""
    import torch

    x = torch.randn(64, 64, device=device())
    code = code_of(lambda x: x @ x, x, max_autotune_gemm_backends="TRITON")
    return {"ATen's": bool(re.search(r"extern_kernels\.mm\(", code))}


@check("fusion", gpu=True)
def fusion() -> dict[str, Any]:
    """How many kernels a program has, by fusion settings."""
    import torch

    x = [torch.randn(1024, 1024, device=device()) for _ in range(8)]

    def independent(*x: Any) -> Any:
        return [torch.sin(one) * 2 for one in x]

    def long_chain(x: Any) -> Any:
        kept = []
        for step in range(75):
            x = torch.sin(x) + step
            kept.append(x * x)
        return kept

    def parallel_linears(x: Any, *w: Any) -> Any:
        return [torch.relu(x @ one) for one in w]

    programs = {
        "8 independent elementwise": (independent, x),
        "75 steps of 2 results": (long_chain, x[:1]),
        "7 parallel linear layers": (parallel_linears, x),
    }
    settings: dict[str, dict[str, Any]] = {
        "as shipped": {},
        "aggressive_fusion": {"aggressive_fusion": True},
        "group_fusion": {"group_fusion": True},
        "max_fusion_size=128": {"max_fusion_size": 128},
        "max_fusion_size=256": {"max_fusion_size": 256},
    }
    return {
        program: {
            name: kernels(code_of(function, *arguments, **config))
            for name, config in settings.items()
        }
        for program, (function, arguments) in programs.items()
    }


@check("benchmark-kernel", gpu=True)
def benchmark_kernel() -> dict[str, Any]:
    """What the generated code of a kernel has more with benchmark_kernel, and who launches it."""
    import torch

    x = torch.randn(1024, 1024, device=device())
    codes = [code_of(lambda x: torch.sin(x) + 1, x, benchmark_kernel=on) for on in (False, True)]
    return {
        "a benchmark in the kernel's code": ["benchmark_all_configs" in code for code in codes],
        "launches in a call": [kernels(code) for code in codes],
    }


@check("debug-snippet")
def debug_snippet() -> dict[str, Any]:
    """The notes' lines that turn logging on, after the import that stands above them."""
    snippet = "import torch._inductor.config as inductor_config\n"
    snippet += "torch._inductor.config.trace.enabled = True\n"
    raised = error(lambda: exec(snippet, {}))

    import torch

    logging.getLogger("torch._inductor").setLevel(logging.DEBUG)
    with open("stderr", "wb") as written:  # torch's handlers keep the stream that they found
        os.dup2(written.fileno(), 2)
    torch.compile(lambda x: x + 1)(torch.ones(3, device=device()))
    said = Path("stderr").read_text()
    return {
        "raises": raised,
        "lines on stderr by setLevel(DEBUG)": len(said.splitlines()),
        "the generated code among them": "def call(" in said,
    }


@check("debug-variable")
def debug_variable() -> dict[str, Any]:
    """What TORCH_COMPILE_DEBUG=1 writes."""
    import torch

    torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(3, device=device()))
    return {"files": sorted({path.name for path in Path("torch_compile_debug").rglob("*.*")})}


@check("debug-log")
def debug_log() -> dict[str, Any]:
    """Where trace.debug_log puts the generated code."""
    import torch
    import torch._inductor.config as config

    config.trace.debug_log = True
    torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(3, device=device()))
    found = {}
    for path in Path("torch_compile_debug").rglob("*"):
        if path.is_file():
            text = path.read_text(errors="replace")
            found[path.name] = {
                "bytes": len(text),
                "has the code": "def call(" in text,
                "says how many kernels": bool(re.search(r"compiled \d+ kernel", text, re.I)),
            }
    return {name: row for name, row in found.items() if row["has the code"] or "log" in name}


@check("caches-off")
def caches_off() -> dict[str, Any]:
    """Two compiles of one function in one cache directory: which files are written anew."""
    import torch

    def compile_once() -> dict[str, float]:
        torch.compiler.reset()
        torch.compile(lambda x: torch.sin(x) + 1)(torch.ones(3, device=device()))
        cache = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        return {str(p): p.stat().st_mtime for p in cache.rglob("*") if p.is_file()}

    first = compile_once()
    second = compile_once()
    anew = {Path(name).suffix for name, at in second.items() if first.get(name) != at}
    kept = {Path(name).suffix for name, at in second.items() if first.get(name) == at}
    return {"written anew": sorted(anew), "served again": sorted(kept)}


@check("safe-compile")
def safe_compile() -> dict[str, Any]:
    """The notes' replacement of torch.compile."""
    import torch

    original: Any = torch.compile

    def replacement(model: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("mode") in (None, "reduce-overhead"):
            kwargs["mode"] = "default"
        return original(model, **kwargs)

    return {
        "options": error(lambda: replacement(lambda x: x, options={"max_autotune": False})),
        "options without it": error(lambda: original(lambda x: x, options={"max_autotune": False})),
    }


@check("compile-fx-wrapped")
def compile_fx_wrapped() -> dict[str, Any]:
    """Whether a replaced torch._inductor.compile_fx.compile_fx is what torch.compile calls."""
    import torch
    import torch._inductor.compile_fx as module

    original: Any = module.compile_fx
    seen: list[int] = []

    def counted(graph: Any, *arguments: Any, **more: Any) -> Any:
        seen.append(len(graph.graph.nodes))
        return original(graph, *arguments, **more)

    module.compile_fx = counted

    def function(x: Any) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    torch.compile(function)(torch.ones(3, device=device()))
    return {"nodes of each graph": seen}


@check("vendor-ops")
def vendor_ops() -> dict[str, Any]:
    """Graph breaks: a disabled function, a C function behind Python, a registered operator."""
    import torch

    twice = torch.library.custom_op(
        "claims::twice",
        lambda x: torch.exp(x.log()) * 2,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
    )
    twice.register_fake(torch.empty_like)

    @torch._dynamo.disable
    def disabled(x: Any) -> Any:
        return x * 2

    def wrapper(x: Any) -> Any:
        if math.prod(x.shape) > 2:
            return torch.ops.claims.twice.default(x)
        return x

    def behind_c(x: Any) -> Any:
        select.select([], [], [], 0)
        return x * 2

    found = {}
    for name, function in (
        ("@dynamo.disable", disabled),
        ("C function", behind_c),
        ("torch.ops", torch.ops.claims.twice.default),
        ("Python around torch.ops", wrapper),
    ):
        torch.compiler.reset()
        explained = torch._dynamo.explain(lambda x, call=function: call(x + 1) + 1)(torch.ones(3))
        found[name] = explained.graph_break_count
    return found


@check("clamp-tanh")
def clamp_tanh() -> dict[str, Any]:
    """tanh and exp by exponentials in float32, with inputs clamped to 10 and without."""
    import torch

    x = torch.tensor([5.0, 10.0, 50.0])

    def tanh(x: Any) -> Any:
        e = torch.exp(2 * x)
        return (e - 1) / (e + 1)

    return {
        "tanh": [round(v, 6) for v in tanh(x).tolist()],
        "tanh, clamped": [round(v, 6) for v in tanh(x.clamp(-10, 10)).tolist()],
        "exp(12), clamped": round(torch.exp(torch.tensor(12.0).clamp(-10, 10)).item()),
        "exp(12)": round(torch.exp(torch.tensor(12.0)).item()),
    }


@check("replay-other-shape")
def replay_other_shape() -> dict[str, Any]:
    """copy_() of an input of another shape into a static one of 4 x 8."""
    import torch

    static = torch.zeros(4, 8)
    shapes = ((3, 8), (4, 7), (1, 8), (8,), (1,))
    return {str(shape): error(lambda s=shape: static.copy_(torch.ones(s))) for shape in shapes}


@check("memory-planning", gpu=True)
def memory_planning() -> dict[str, Any]:
    """Compiling with memory_planning: graphs of growing size, and what they need."""
    import torch
    import torch._inductor.config as config

    found: dict[str, Any] = {}
    for steps in (50, 200, 400):
        weight = torch.randn(64, 64, device="cuda") / 8

        def function(x: Any, weight: Any = weight, steps: int = steps) -> Any:
            kept = []
            for step in range(steps):
                x = torch.relu(x @ weight)
                if step % 8 == 0:
                    kept.append(x)
            return sum(kept) + x

        x = torch.randn(4096, 64, device="cuda")
        for planning in (False, True):
            torch.compiler.reset()
            began = time.perf_counter()
            row: dict[str, Any] = {}
            with torch.no_grad(), config.patch({"memory_planning": planning}):
                compiled = torch.compile(function)
                row["raises"] = error(lambda compiled=compiled, x=x: compiled(x))
                row["seconds"] = round(time.perf_counter() - began, 1)
                if row["raises"] == "nothing raised":
                    row["right"] = torch.allclose(compiled(x), function(x), rtol=1e-3, atol=1e-3)
                    torch.cuda.reset_peak_memory_stats()
                    compiled(x)
                    row["peak, MB"] = round(torch.cuda.max_memory_allocated() / 1e6)
            found[f"{steps} GEMMs, {'on' if planning else 'off'}"] = row
    return found


@check("graph-in-place", gpu=True)
def graph_in_place() -> dict[str, Any]:
    """A capture that changes a tensor which is not of the graph's pool."""
    import torch

    state, x = torch.zeros(4, device="cuda"), torch.ones(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        state.add_(x)
    for _ in range(3):
        graph.replay()
    return {"added in 3 replays": state.tolist()}


@check("graph-synchronize", gpu=True)
def graph_synchronize() -> dict[str, Any]:
    """What waits for the GPU in a capture."""
    import torch

    def capture(call: Callable[[], Any]) -> str:
        def run() -> None:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                call()

        return error(run)

    x = torch.ones(4, device="cuda")
    return {
        "synchronize()": capture(torch.cuda.synchronize),
        ".item()": capture(lambda: x.sum().item()),
    }


@check("graph-shared-pool", gpu=True)
def graph_shared_pool() -> dict[str, Any]:
    """Two graphs in one pool, the first one's result read after the second was replayed."""
    import torch

    x = torch.arange(1024.0, device="cuda")
    pool = torch.cuda.graph_pool_handle()

    def capture(factor: int) -> tuple[Any, Any]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            between = (x * factor).sin()
            result = between + factor
            del between
        return graph, result

    torch.cuda.synchronize()
    (one, first), (two, second) = capture(1), capture(2)
    found = {}
    for name, order in (("in order", (one, two)), ("the other way round", (two, one))):
        for graph in order:
            graph.replay()
        torch.cuda.synchronize()
        found[name] = [
            torch.allclose(result, (x * factor).sin() + factor)
            for result, factor in ((first, 1), (second, 2))
        ]
    return {"both results right": found}


@check("graph-memory", gpu=True)
def graph_memory() -> dict[str, Any]:
    """Memory in MB around a capture and a replay of a chain of GEMMs."""
    import torch

    x = torch.randn(2048, 2048, device="cuda")

    def function(x: Any) -> Any:
        for _ in range(8):
            x = torch.relu(x @ x / 2048)
        return x

    function(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    seen = {"before": torch.cuda.memory_reserved() // 2**20}
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(x)
    seen["captured"] = torch.cuda.memory_reserved() // 2**20
    for _ in range(3):
        graph.replay()
    seen["replayed"] = torch.cuda.memory_reserved() // 2**20
    return seen


@check("graph-cold", gpu=True)
def graph_cold() -> dict[str, Any]:
    """A first call of a compiled function within a capture."""
    import torch

    x = torch.randn(64, 64, device="cuda")
    compiled = torch.compile(lambda x: torch.softmax(x @ x, -1))

    def capture() -> None:
        with torch.no_grad(), torch.cuda.graph(torch.cuda.CUDAGraph()):
            compiled(x)

    return {"raises": error(capture)}


def main(names: list[str]) -> None:
    import torch

    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(json.dumps({"torch": torch.__version__, "on": where}))
    for name in names or CHECKS:
        if name in GPU and where == "CPU":
            continue
        with tempfile.TemporaryDirectory() as work:
            done = subprocess.run(
                ["timeout", "150", sys.executable, str(Path(__file__).resolve()), "--one", name],
                env={
                    **os.environ,
                    **VARIABLES.get(name, {}),
                    "ROCM_AUTOPATCH": "off",
                    "TORCHINDUCTOR_CACHE_DIR": f"{work}/cache",
                },
                cwd=work,
                capture_output=True,
                text=True,
            )
        lines = (done.stdout if done.returncode == 0 else done.stderr).splitlines()
        seen = {"failed": [done.returncode, *lines[-1:]]}
        if done.returncode == 0:
            seen = json.loads(lines[-1])
        print(json.dumps({name: seen}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(CHECKS[sys.argv[2]]()))
    else:
        main(sys.argv[1:])
