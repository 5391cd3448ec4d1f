# mypy: disable-error-code="import-not-found, no-any-return"
"""Checks of one torch in one Python, which run.py calls in each root.

    python checks.py CHECK

prints ``ok``, or what differs. A check runs programs of this file, under our policies and without
us. Each runs in an interpreter of its own and prints what it saw. What torch does by itself is not
written down here: the run without us shows it.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

HERE = Path(__file__).resolve().parent
INDUCTOR, DYNAMO = "torch._inductor.config", "torch._dynamo.config"
MAX = "TORCHINDUCTOR_MAX_AUTOTUNE"
SITE = Path("/etc/rocm-autopatch")
EMPTY = "version: 1\nextends: []\n"
TEAM = """
version: 1
name: team
env:
  LIVE: {set: "1"}
config:
  torch._inductor.config:
    max_autotune: {set: true}
"""
OFF = {"ROCM_AUTOPATCH": "off"}
# What we write to stderr begins so.
OURS = "rocm_autopatch: "
# How many differences of one check are printed.
MOST = 12

Values = dict[str, Any]
Look = Callable[[], None]


# Programs ----------------------------------------------------------------------------------------

PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    """A function that an interpreter of its own runs; it returns what the check wants to see."""
    PROGRAMS[function.__name__] = function
    return function


def report() -> Any:
    import rocm_autopatch

    return rocm_autopatch.status()


def elsewhere(read: Callable[[], Any]) -> Any:
    """What *read* returns in a new thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(read()))
    thread.start()
    thread.join()
    return found[0]


def tried(call: Callable[[], Any]) -> str:
    """What a call returns or raises, as text without addresses."""
    try:
        text = repr(call())
    except Exception as error:
        text = repr(error)
    return re.sub(r"0x[0-9a-f]+", "0x", text)


# By key of torch._inductor.config: strength and value in the policy, and what the programs write.
STRONG: dict[str, tuple[str, Any, Any]] = {
    "max_fusion_size": ("default", 100, 33),
    "triton.multi_kernel": ("default", 1, 2),
    "aggressive_fusion": ("default", True, False),
    "epilogue_fusion": ("set", False, True),
    "triton.unique_kernel_names": ("set", False, True),
    "max_autotune_gemm_backends": ("pin", "ATEN", "TRITON"),
    "triton.cudagraphs": ("pin", False, True),
    "triton.cudagraph_trees": ("pin", False, True),
}
WANTED = {key: wanted for key, (_, wanted, _) in STRONG.items()}
WRITTEN = {key: written for key, (_, _, written) in STRONG.items()}
PINNED = [key for key, (strength, _, _) in STRONG.items() if strength == "pin"]


def values() -> Values:
    import torch._inductor.config as c

    return {key: getattr(c, key) for key in STRONG}


WAYS: dict[str, Callable[[Any, Values, Look], None]] = {}


def way(function: Callable[[Any, Values, Look], None]) -> Callable[[Any, Values, Look], None]:
    """A way to change config values: it looks while the change holds. Marked lines are to blame."""
    WAYS[function.__name__] = function
    return function


@way
def attributes(c: Any, change: Values, look: Look) -> None:
    for key, value in change.items():
        setattr(c, key, value)  #: writes
    look()


@way
def sub_config(c: Any, change: Values, look: Look) -> None:
    for key, value in change.items():
        part, _, name = key.rpartition(".")
        setattr(getattr(c, part) if part else c, name, value)  #: writes
    look()


@way
def in_a_thread(c: Any, change: Values, look: Look) -> None:
    def work() -> None:
        c.load_config(change)  #: writes
        look()

    elsewhere(work)


@way
def in_a_pool(c: Any, change: Values, look: Look) -> None:
    def work() -> None:
        with c.patch(change):  #: writes
            look()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


@way
def in_a_task(c: Any, change: Values, look: Look) -> None:
    async def work() -> None:
        with c.patch(change):  #: writes
            await asyncio.sleep(0)
            look()

    asyncio.run(work())


@way
def load_config(c: Any, change: Values, look: Look) -> None:
    c.load_config(change)  #: writes
    look()


@way
def load_pickled(c: Any, change: Values, look: Look) -> None:
    c.load_config(pickle.dumps(change))  #: writes
    look()


@way
def patch_dict(c: Any, change: Values, look: Look) -> None:
    with c.patch(change):  #: writes
        look()


@way
def patch_keywords(c: Any, change: Values, look: Look) -> None:
    with c.patch(**change):  #: writes
        look()


@way
def patch_key(c: Any, change: Values, look: Look) -> None:
    with ExitStack() as stack:
        for key, value in change.items():
            stack.enter_context(c.patch(key, value))  #: writes
        look()


@way
def patch_function(c: Any, change: Values, look: Look) -> None:
    @c.patch(change)  # type: ignore[untyped-decorator]
    def decorated() -> None:
        look()

    decorated()  #: writes


@way
def patch_test_case(c: Any, change: Values, look: Look) -> None:
    @c.patch(change)
    class Case(unittest.TestCase):
        def runTest(self) -> None:
            look()

    # All frames between this one and the write are unittest's and torch's.
    unittest.TestSuite([Case()]).run(unittest.TestResult())  #: writes


@way
def patch_within_a_patch(c: Any, change: Values, look: Look) -> None:
    with c.patch(change):  #: writes
        with c.patch(max_fusion_size=7):
            pass
        look()


@way
def patch_that_ends_by_an_error(c: Any, change: Values, look: Look) -> None:
    try:
        with c.patch(change):  #: writes
            look()
            raise EOFError
    except EOFError:
        pass


@way
def closure_patcher(c: Any, change: Values, look: Look) -> None:
    undo = c._make_closure_patcher(**change)()  #: writes
    look()
    undo()


@way
def mock_patch(c: Any, change: Values, look: Look) -> None:
    with ExitStack() as stack:
        for key, value in change.items():
            part, _, name = key.rpartition(".")
            owner = getattr(c, part) if part else c
            stack.enter_context(mock.patch.object(owner, name, value))  #: writes
        look()


@way
def options(c: Any, change: Values, look: Look) -> None:
    import torch

    with looking(c, look):
        compiled = torch.compile(lambda x: x + 1, options=dict(change))  #: writes
        compiled(torch.ones(3))  #: writes


@way
def config_patches(c: Any, change: Values, look: Look) -> None:
    import torch
    from torch._inductor.compile_fx import compile_fx

    def backend(graph: Any, inputs: Any) -> Any:
        return compile_fx(graph, inputs, config_patches=dict(change))  #: writes

    with looking(c, look):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))


@contextmanager
def looking(c: Any, look: Look) -> Iterator[None]:
    """Look once in the midst of each compile of this thread."""
    c.post_grad_custom_post_pass = lambda graph: look()
    yield
    c.post_grad_custom_post_pass = None


def marked(function: Callable[..., Any]) -> list[int]:
    lines, first = inspect.getsourcelines(function)
    return [n for n, line in enumerate(lines, first) if line.endswith("#: writes\n")]


def refused() -> dict[str, list[Any]]:
    """Who wrote to pinned values, by key, whatever the count."""
    return {
        row["name"].removeprefix(INDUCTOR + "."): sorted(
            [Path(one["file"]).name, one["line"], one["value"]] for one in row["refused"]
        )
        for row in report()["config"]
        if row.get("refused")
    }


@program
def strong() -> Any:
    """Each way in a fork, in which nothing has been written yet."""
    import torch._inductor.config as c

    # Before the forks, so that none of them imports it anew.
    importlib.import_module("torch._inductor.compile_fx")

    def pooled() -> Values:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(values).result()

    first = {"here": values(), "in a thread": elsewhere(values), "in a pool": pooled()}
    seen: Values = {"at first": {"reads": first, "refused": refused()}}
    for name in WAYS:
        read, write = os.pipe()
        if not os.fork():
            with open(write, "w") as stream:
                json.dump(one_way(name, c), stream)
            os._exit(0)
        os.close(write)
        with open(read) as stream:
            seen[name] = json.load(stream)
        os.wait()
    return seen


def one_way(name: str, c: Any) -> Any:
    reads: Values = {}

    def look() -> None:
        reads["inside"] = values()
        reads["meanwhile, in a thread"] = elsewhere(values)

    try:
        WAYS[name](c, WRITTEN, look)
    except Exception as error:
        return {"reads": {"error": {"error": repr(error)}}, "refused": {}}
    reads["after"] = values()
    reads["after, in a thread"] = elsewhere(values)
    return {"reads": reads, "refused": refused()}


@program
def asked_by_mode() -> Any:
    import torch
    import torch._inductor.config as c

    seen = []

    def look() -> None:
        seen.append([c.max_autotune, c.coordinate_descent_tuning])

    with looking(c, look):
        compiled = torch.compile(lambda x: x + 1, mode="max-autotune-no-cudagraphs")  #: writes
        compiled(torch.ones(3))
    look()
    return seen, refused()


@program
def quick() -> Any:
    """What a start did, without torch."""
    found = report()
    return {
        "pid": os.getpid(),
        "active": found["active"],
        "reason": found["reason"],
        "errors": found["errors"],
        "env": [[row["name"], row["status"]] for row in found["env"]],
        "variables": {k: v for k, v in sorted(os.environ.items()) if re.match("TORCH|HIP|SGL", k)},
    }


@program
def environment() -> Any:
    """Variables and modules of an interpreter that nobody asked for a report."""
    ours = sorted(name for name in sys.modules if name.startswith("rocm_autopatch"))
    shown = {name: value for name, value in sorted(os.environ.items()) if name != "LC_CTYPE"}
    return shown, ours, len(sys.meta_path)


@program
def autotune() -> Any:
    import torch._inductor.config as c

    return c.max_autotune, c.max_autotune_gemm_backends, c.triton.cudagraph_trees


MODES = ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "default", None)


def routes() -> dict[str, Callable[[Any, Any], Any]]:
    """By name, the ways to ask for a mode: each compiles and calls, with a mode and an input."""
    import torch
    from torch import compile as early

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1

    def f(x: Any) -> Any:
        return x + 1

    def decorating(mode: Any, x: Any) -> Any:
        @torch.compile(mode=mode)  # type: ignore[untyped-decorator]
        def decorated(x: Any) -> Any:
            return x + 1

        return decorated(x)

    def in_place(mode: Any, x: Any) -> Any:
        module = Module()
        module.compile(mode=mode)
        return module(x)

    return {
        "called": lambda mode, x: torch.compile(f, mode=mode)(x),
        "by keywords": lambda mode, x: torch.compile(
            model=f, mode=mode, backend="inductor", fullgraph=True, dynamic=False
        )(x),
        "decorating": decorating,
        "from torch import compile": lambda mode, x: early(f, mode=mode)(x),
        "of a module": lambda mode, x: torch.compile(Module(), mode=mode)(x),
        "Module.compile": in_place,
        "in a thread": lambda mode, x: elsewhere(lambda: torch.compile(f, mode=mode)(x)),
        "backend=None": lambda mode, x: torch.compile(f, backend=None, mode=mode)(x),
        "backend='eager'": lambda mode, x: torch.compile(f, backend="eager", mode=mode)(x),
    }


@contextmanager
def recording() -> Iterator[list[Any]]:
    """The options that Inductor is asked to compile with, in place of compiling."""
    import torch._inductor.compile_fx as fx

    asked: list[Any] = []

    def compile_fx(graph: Any, inputs: Any, config_patches: Any = None, **_: Any) -> Any:
        asked.append(dict(sorted((config_patches or {}).items())))
        return graph.forward

    with mock.patch.object(fx, "compile_fx", compile_fx):
        yield asked


@program
def asked_modes() -> Any:
    import torch

    x, seen = torch.ones(3), {}
    with recording() as asked:
        for route, call in routes().items():
            for mode in MODES:
                torch._dynamo.reset()
                asked.clear()
                told = tried(lambda call=call, mode=mode: call(mode, x).tolist())  # type: ignore[misc]
                seen[f"{route}, {mode}"] = [told, list(asked)]
    uses = {row["name"]: row["uses"] for row in report()["compile_modes"]}
    return seen, uses


@program
def other_calls() -> Any:
    """Calls that are none of ours: each prints or raises what it does without us."""
    import torch

    def f(x: Any) -> Any:
        return x + 1

    def nested(x: Any) -> Any:
        return torch.compile(f, mode="reduce-overhead")(x)

    def backend(graph: Any, inputs: Any, mode: Any = None, options: Any = None) -> Any:
        asked.append([mode, options])
        return graph.forward

    c, x = torch.compile, torch.ones(3)
    calls: dict[str, Callable[[], Any]] = {
        "no such mode": lambda: c(f, mode="no-such-mode")(x),
        "a mode of another type": lambda: c(f, mode=3)(x),
        "an unhashable mode": lambda: c(f, mode=[])(x),
        "an empty mode": lambda: c(f, mode="")(x),
        "mode and options": lambda: c(f, mode="reduce-overhead", options={"max_fusion_size": 3}),
        "two positional": lambda: c(f, "default"),
        "options": lambda: c(f, options={"triton.cudagraphs": True, "max_fusion_size": 3})(x),
        "options with a dash": lambda: c(f, options={"max-fusion-size": 3})(x),
        "no options": lambda: c(f, options={})(x),
        "no such option": lambda: c(f, options={"no_such_option": False})(x),
        "an option of another type": lambda: c(f, options={"max_fusion_size": "x"})(x),
        "a backend with a mode": lambda: c(f, backend=backend, mode="reduce-overhead")(x),
        "a backend with options": lambda: c(f, backend=backend, options={"a": 1})(x),
        "eager": lambda: c(f, backend="eager")(x),
        "eager with options": lambda: c(f, backend="eager", options={"a": 1})(x),
        "no such backend": lambda: c(f, backend="no-such-backend")(x),
        "no such backend, a mode": lambda: c(f, backend="no-such", mode="reduce-overhead")(x),
        "nested": lambda: c(nested, backend="eager")(x),
        "nested, fullgraph": lambda: c(nested, backend="eager", fullgraph=True)(x),
        "explain": lambda: torch._dynamo.explain(nested)(x).graph_break_count,
        "disabled": lambda: c(f, mode="reduce-overhead", disable=True)(x),
        "signature": lambda: (str(inspect.signature(c)), c.__module__, c.__qualname__),
        "doc": lambda: c.__doc__,
        "modes": lambda: torch._inductor.list_mode_options(),
        "options known": lambda: torch._inductor.list_options(),
    }
    seen = {}
    with recording() as asked:
        for name, call in calls.items():
            torch._dynamo.reset()
            asked.clear()
            seen[name] = [tried(call), list(asked)]
    return seen


SAFE: tuple[str, ...] = ("max_autotune", "coordinate_descent_tuning", "max_autotune_gemm_backends")
SAFE += ("triton.cudagraphs", "triton.cudagraph_trees", "memory_planning")


def safe_values() -> list[Any]:
    import torch._dynamo.config as d
    import torch._inductor.config as c

    limits = [name for name in ("recompile_limit", "cache_size_limit") if hasattr(d, name)]
    return [*(getattr(c, key) for key in SAFE), *{getattr(d, name) for name in limits}]


@program
def compiled() -> Any:
    """A small model in the main thread and in a worker, as a program writes it."""
    import torch
    import torch._inductor.config as c
    from torch._dynamo.utils import counters

    def work(mode: Any) -> Any:
        seen: list[Any] = []
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU()).eval()
        x = torch.randn(4, 16)
        torch._dynamo.reset()
        with torch.no_grad(), looking(c, lambda: seen.append(safe_values())):
            same = torch.allclose(torch.compile(model, mode=mode)(x), model(x), atol=1e-5)
        return [mode, same, seen]

    done = [work(None), work("reduce-overhead")]
    c.triton.cudagraphs = True
    c.max_autotune_gemm_backends = "TRITON"
    done += [work("default"), elsewhere(lambda: work(None))]
    done += [elsewhere(lambda: work("max-autotune"))]
    return done, counters["stats"]["unique_graphs"], report()["errors"]


def job(saved: Any = None) -> Any:
    """What a compile worker sees."""
    import torch._inductor.config as c

    with c.patch(saved or {}):
        inside = values()
    found = report()
    return {
        "pid": os.getpid(),
        "variable": os.environ.get(MAX),
        "values": [values(), elsewhere(values)],
        "with the parent's config": inside,
        "active": [found["active"], found["policy"], found["errors"]],
    }


@program
def pools() -> Any:
    import checks  # what __main__ has, a worker could not unpickle
    import torch._inductor.config as c
    from torch._inductor.compile_worker import subproc_pool

    kinds = getattr(subproc_pool, "SubprocKind", None)
    seen = {}
    for kind in list(kinds) if kinds else [None]:
        pool = subproc_pool.SubprocPool(1, **({"kind": kind} if kind else {}))
        saved = c.save_config_portable()
        seen[str(kind)] = [
            pool.submit(checks.job).result(),
            pool.submit(checks.job, saved).result(),
        ]
        pool.shutdown()
    return os.getpid(), seen


@program
def async_compiled() -> Any:
    """A compile whose kernels are built in Inductor's own pool, or all of which is elsewhere."""
    import torch
    import torch._inductor.compile_fx as fx

    def f(x: Any) -> Any:
        return (x @ x).relu().sum(0) + torch.sin(x)

    x = torch.randn(8, 8)
    same = torch.allclose(torch.compile(f, options={"triton.cudagraphs": True})(x), f(x), atol=1e-5)
    stats = getattr(getattr(fx, "FxCompile", None), "_compile_stats", {})
    return same, report()["errors"], sorted(cls.__name__ for cls in stats)


def compile_fx_modes() -> Any:
    import torch._inductor.compile_fx as fx

    return [mode.name for mode in getattr(fx, "FxCompileMode", ())]


PROGRAMS["compile_fx_modes"] = compile_fx_modes

RENAMED = {
    "recompile_limit": "cache_size_limit",
    "accumulated_recompile_limit": "accumulated_cache_size_limit",
}


@program
def limits() -> Any:
    """How often one function is compiled anew, and the limit by each name that torch has."""
    import torch
    import torch._dynamo.config as d

    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def read() -> Values:
        names = [name for pair in RENAMED.items() for name in pair]
        return {name: getattr(d, name) for name in names if name in d._config}

    compiled = torch.compile(lambda x: x + 1, backend=backend, dynamic=False)
    for size in range(2, 14):
        compiled(torch.ones(size))
    reads = [read(), elsewhere(read)]
    written = {}
    for name in read():
        setattr(d, name, 6)
        written[name] = read()
        with d.patch({name: 5}):
            written[f"{name} patched"] = read()
    rows = {
        row["name"].removeprefix(DYNAMO + "."): [
            row["status"], row["reason"].partition(";")[0], row["after"],
            sorted({Path(one["file"]).name for one in row.get("refused", ())}),
        ]
        for row in report()["config"]
    }  # fmt: skip
    return len(graphs), reads, written, rows


@program
def as_it_is() -> Any:
    """All of torch that we might have touched, and a compile by the cache of another process."""
    import torch
    import torch._dynamo.config as d
    import torch._dynamo.convert_frame as frame
    import torch._functorch.config as f
    import torch._inductor.config as c
    import torch.compiler
    from torch._dynamo.utils import counters

    modules = [c, d, f, getattr(torch.compiler, "config", f)]
    functions = [torch.compile, torch._TorchCompileInductorWrapper.apply_mode, frame._compile]
    seen = {
        "hashes": [module.get_hash().hex() for module in modules],
        "code": [module.codegen_config() for module in modules],
        "kinds": [
            [str(type(module)), str(type(module._config)), str(type(module.__dict__["_config"]))]
            for module in modules
        ],
        "entries": sorted({str(type(entry)) for m in modules for entry in m._config.values()}),
        "overrides": str(type(c._config["triton.cudagraphs"].user_override)),
        "functions": tried(
            lambda: [(f.__code__.co_filename, inspect.signature(f), vars(f)) for f in functions]
        ),
        "finders": tried(lambda: sys.meta_path),
    }
    torch.compile(lambda x: (x @ x).relu() + 1)(torch.ones(4, 4))
    seen["cache"] = [counters["inductor"][f"fxgraph_cache_{n}"] for n in ("miss", "hit", "bypass")]
    return seen


@program
def ordinary() -> Any:
    """Ordinary compiles: a frame, a graph break, an error in a graph, a recompile, an export."""
    import torch
    import torch._dynamo.convert_frame as frame
    from torch._dynamo.utils import counters

    def breaks(x: Any) -> Any:
        x = x + 1
        torch._dynamo.graph_break()
        return x * 2

    def wrong(x: Any) -> Any:
        return (x + 1)[9, 9, 9]

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    x = torch.ones(4)
    compiled = torch.compile(breaks, backend="eager")
    calls: dict[str, Callable[[], Any]] = {
        "a model": lambda: torch.allclose(torch.compile(model)(x), model(x)),
        "a break": lambda: compiled(x).tolist(),
        "a recompile": lambda: compiled(torch.ones(5)).tolist(),
        "fullgraph": lambda: torch.compile(breaks, backend="eager", fullgraph=True)(x),
        "an error": lambda: torch.compile(wrong, backend="eager")(x),
        "explain": lambda: torch._dynamo.explain(breaks)(x).graph_break_count,
        "in a thread": lambda: elsewhere(lambda: torch.compile(breaks, backend="eager")(x)),
        "export": lambda: str(torch._dynamo.export(wrong)(torch.ones(9, 9, 9)).graph_module.code),
        "signature": lambda: (str(inspect.signature(frame._compile)), frame._compile.__module__),
    }
    seen = {name: tried(call) for name, call in calls.items()}
    seen["counters"] = repr(sorted(counters["stats"].items()))
    return seen


@program
def captured() -> Any:
    """The capture patch on the record, and a compile while this thread's stream says it captures.

    Nothing captures on a CPU: torch.cuda only says so here.
    """
    import torch
    import torch._dynamo.convert_frame as frame

    found = report()
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    available = torch.cuda.is_available

    def is_available() -> bool:
        return sys._getframe(1).f_code.co_name == "trace_frame" or available()

    with (
        mock.patch.object(torch.cuda, "is_initialized", return_value=True),
        mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True),
        # The two below are what torch's own check asks, too.
        mock.patch.object(torch.cuda, "is_available", is_available),
        mock.patch.object(torch._C, "_cuda_isCurrentStreamCapturing", print, create=True),
    ):
        told = tried(lambda: compiled(torch.ones(3)).tolist())
    after = tried(lambda: compiled(torch.ones(3)).tolist())
    rows = [[row[k] for k in ("name", "after", "status", "reason")] for row in found["capture"]]
    patches = [[row["name"], row["status"]] for row in found["patches"]]
    ours = "rocm_autopatch" in frame._compile.__code__.co_filename
    return {
        "rows": rows,
        "patches": patches,
        "errors": found["errors"],
        "wrapped": ours,
        "told": told,
        "after": after,
        "uses": [row["uses"] for row in report()["capture"]],
    }


# Checks ------------------------------------------------------------------------------------------


class Ran(NamedTuple):
    """What a program showed, our lines on its stderr, and all of it."""

    shown: Any
    said: list[str]
    stderr: str


class Check:
    """A directory for the programs of a check, and what differs so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.differences: list[str] = []

    def expect(self, what: str, got: object, want: object) -> None:
        if got != want:
            self.differences.append(f"{what}: {got!r}, not {want!r}")

    def same(self, what: str, ours: dict[str, Any], off: dict[str, Any]) -> None:
        self.expect(f"{what}: what was looked at", sorted(ours), sorted(off))
        for name in ours.keys() & off.keys():
            self.expect(f"{what}: {name}, and with off", ours[name], off[name])

    def policy(self, text: str) -> dict[str, str]:
        """The variables that name a policy with this text."""
        path = self.directory / "live.yaml"
        path.write_text(text)
        return {"ROCM_AUTOPATCH_POLICY": str(path)}

    def config(self, **modules: dict[str, Any]) -> dict[str, str]:
        """The variables that name a policy of config values, inductor= and dynamo=."""
        names = {"inductor": INDUCTOR, "dynamo": DYNAMO}
        config = {names[name]: entries for name, entries in modules.items()}
        head = {"version": 1, "name": "live", "extends": []}
        return self.policy(json.dumps({**head, "config": config}))

    def start(
        self, *words: str, python: str = sys.executable, **env: str
    ) -> subprocess.CompletedProcess[str]:
        base = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "LC_ALL": "C.UTF-8",
            "TMPDIR": str(self.directory),
        }
        return subprocess.run(
            [python, *words], env={**base, **env}, capture_output=True, text=True, check=False
        )

    def run(self, name: str, python: str = sys.executable, **env: str) -> Ran:
        """What a program shows; compiles start from an empty cache, unless *env* names one."""
        if "TORCHINDUCTOR_CACHE_DIR" not in env:
            cache = self.directory / "cache"
            shutil.rmtree(cache, ignore_errors=True)
            env["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
        env = {"TORCH_LOGS": "-all", "PYTHONWARNINGS": "ignore", **env}
        done = self.start(__file__, "--program", name, python=python, **env)
        if done.returncode:
            tail = "\n".join(done.stderr.splitlines()[-12:])
            self.differences.append(f"program {name}: status {done.returncode}\n{tail}")
            raise Stopped
        said = [line for line in done.stderr.splitlines() if line.startswith(OURS)]
        if any(line.startswith(f"{OURS}nothing ") for line in said):
            self.differences.append(f"program {name}: {said[0]}")
            raise Stopped
        return Ran(json.loads(done.stdout.splitlines()[-1]), said, done.stderr)


class Stopped(Exception):
    """A check can't go on; why is among its differences."""


def release() -> tuple[int, int]:
    from importlib.util import find_spec

    places = getattr(find_spec("torch"), "submodule_search_locations", None)
    text = Path(places[0], "version.py").read_text() if places else ""
    major, minor = re.findall(r"^__version__ = '(\d+)\.(\d+)", text, re.MULTILINE)[0]
    return int(major), int(minor)


def check_start(check: Check) -> None:
    """Gate, variables, the switch and the one line, as in an image with its variables."""
    image = json.loads((HERE / "image_env.json").read_text())["env"]
    check.expect("the image's variable", image.get(MAX), "1")
    done = check.start("-m", "rocm_autopatch", "status", "--json", **image)
    check.expect("status", done.returncode, 0)
    status = json.loads(done.stdout)
    check.expect("active", [status["active"], status["policy"]], [True, "safe"])
    check.expect("errors", status["errors"], [])
    check.expect("notes", status["notes"], [])
    facts = {name: fact["value"] for name, fact in status["facts"].items()}
    check.expect("facts", [facts["accelerator"], facts["torch"][-8:]], ["rocm", "+rocm7.0"])
    removed = {row["name"]: row for row in status["env"] if row["action"] == "delete"}
    for name, row in removed.items():
        got = row["before"], row["after"], row["status"]
        there = name in image
        want = (image.get(name), None, "applied" if there else "unchanged")
        check.expect(name, got, want)
    for section in ("config", "compile_modes"):
        for row in status[section]:
            check.expect(row["name"], [row["status"], row["after"]], ["applied", row["wanted"]])
    check.expect(
        "rows", [len(status[s]) > 1 for s in ("env", "config", "compile_modes")], [True] * 3
    )
    check.expect("patches", {row["status"] for row in status["patches"]}, {"applied"})

    ours, off = check.run("quick", **image), check.run("environment", **image, **OFF)
    check.expect("variable", ours.shown["variables"].get(MAX), None)
    check.expect("lines", len(ours.said), 1)
    check.expect("all of stderr", ours.stderr, ours.said[0] + "\n")
    variables, modules, _ = off.shown
    given = {name: variables.get(name) for name in image}
    check.expect("off: variables", given, image)
    added = [name for name in variables if name.startswith("ROCM_AUTOPATCH")]
    check.expect("off: variables of ours", added, ["ROCM_AUTOPATCH"])
    check.expect("off: modules", [modules, off.stderr], [["rocm_autopatch"], ""])
    check.expect("values", check.run("autotune", **image).shown, [False, "ATEN", False])
    kept = check.run("autotune", ROCM_AUTOPATCH_KEEP=MAX, **image).shown
    check.expect("values, variable kept", kept, [True, "ATEN", False])
    shipped = check.run("autotune", **image, **OFF).shown
    check.expect("values, off", [shipped[0], shipped[2]], [True, True])

    asked = f"import os; print(os.environ.get({MAX!r}))"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {asked!r}])"
    for flags in ((), ("-I",), ("-E",), ("-s",), ("-W", "error"), ("-X", "utf8")):
        for code in (asked, child):
            done = check.start(*flags, "-c", code, **{MAX: "1"})
            lines = done.stderr.splitlines()
            got = done.stdout, len(lines), [line.startswith(OURS) for line in lines]
            check.expect(f"python {' '.join(flags)}: {code}", got, ("None\n", 1, [True]))
    untouched = check.start("-S", "-c", asked, **{MAX: "1"})
    check.expect("python -S", [untouched.stdout, untouched.stderr], ["1\n", ""])
    check_site(check)
    policy = check.policy(EMPTY + 'name: live\nenv: {LIVE: {set: "1"}}\n')
    line = check.start("-c", "pass", **policy, LIVE="0").stderr.partition(";")[0]
    check.expect("line", line, f"{OURS}policy live applies (image: not named): set LIVE")
    for python in sorted(HERE.glob("python3.*/bin/python")):
        check_without_torch(check, python)


def check_site(check: Check) -> None:
    """A policy and an image's name for everybody, in the root's own /etc.

    Our .pth file is read before Debian's packages are on sys.path, and PyYAML is one of them.
    """
    SITE.mkdir()
    try:
        (SITE / "image").write_text("team/serving:1\n")
        (SITE / "team.yaml").write_text(TEAM)
        seen = check.run("autotune", **{MAX: "1"}).shown
        check.expect("/etc: values", seen, [True, "ATEN", False])
        asked = f"""
import json, os, sys, rocm_autopatch
found = rocm_autopatch.status()
print(json.dumps([found["policies"], found["errors"], found["facts"]["image"]["value"],
                  os.environ.get({MAX!r}), os.environ.get("LIVE"), sys.path]))
"""
        plain = check.start("-I", "-c", "import sys, json; print(json.dumps(sys.path))", **OFF)
        for flags in ((), ("-I",)):
            ran = check.start(*flags, "-c", asked, **{MAX: "1"})
            *got, path = json.loads(ran.stdout or "[0]")
            want = [["safe", "team"], [], "team/serving:1", None, "1"]
            check.expect(f"/etc {flags}", [got, len(ran.stderr.splitlines())], [want, 1])
            got = [one for one in path if one] if isinstance(path, list) else path
            check.expect(f"/etc {flags}: sys.path", got, json.loads(plain.stdout))
    finally:
        shutil.rmtree(SITE)


def check_without_torch(check: Check, python: Path) -> None:
    """A Python without a torch, and then with one that is no more than its label."""
    (site,) = python.parent.parent.glob("lib/python3*/site-packages")
    names = ("rocm_autopatch.pth", "rocm_autopatch.start")
    check.expect("start-up files", [(site / name).is_file() for name in names], [True, True])
    bare = check.run("quick", str(python), **{MAX: "1"})
    seen = bare.shown
    got: Any = seen["active"], seen["reason"], seen["variables"].get(MAX), bare.stderr
    why = "no torch found: sys.path has no torch/version.py when the hook runs"
    check.expect("without torch", got, (False, why, "1", ""))
    stand_in = check.directory / "stand-in" / "torch"
    stand_in.mkdir(parents=True)
    (stand_in / "__init__.py").write_text("from torch import version\n")
    (stand_in / "version.py").write_text("__version__ = '2.14.1+rocm7.0'\nhip = '7.0.51831'\n")
    env = {MAX: "1", "PYTHONPATH": str(stand_in.parent)}
    hidden = {name: site / f"{name}.hidden" for name in names}
    for left in (names, names[:1], names[1:], ()):
        for name in names:
            if name not in left:
                (site / name).rename(hidden[name])
        try:
            ran = check.run("quick", str(python), **env)
        finally:
            for name in names:
                if name not in left:
                    hidden[name].rename(site / name)
        seen = ran.shown
        acts = bool(left)
        where = f"with {' and '.join(left) or 'neither'}"
        got = (
            seen["active"],
            seen["variables"].get(MAX),
            len(ran.said),
            len(ran.stderr.splitlines()),
        )
        check.expect(where, got, (acts, None if acts else "1", int(acts), int(acts)))
        rows = [name for name, _ in seen["env"]]
        check.expect(f"{where}: rows, each once", len(rows), len(set(rows)))
        check.expect(f"{where}: {MAX}", [MAX, "applied"] in seen["env"], acts)
        if acts:
            check.expect(f"{where}: errors", seen["errors"], [])
    switched = check.run("quick", str(python), **env, **OFF)
    check.expect("off", [switched.shown["variables"].get(MAX), switched.stderr], ["1", ""])
    isolated = check.start("-I", "-c", "import sys; print('rocm_autopatch' in sys.modules)")
    check.expect("-I, the root's own", isolated.stdout, "True\n")


def check_strengths(check: Check) -> None:
    """default, set and pin, against each way of writing that there is."""
    entries = {key: {strength: wanted} for key, (strength, wanted, _) in STRONG.items()}
    ours = check.run("strong", **check.config(inductor=entries))
    off = check.run("strong", **OFF).shown
    first = [
        line.startswith(f"{OURS}policy live applies (image: not named)") for line in ours.said[:1]
    ]
    check.expect("first line", first, [True])
    check.expect("ways", sorted(ours.shown), sorted({"at first", *WAYS}))
    shipped = off["at first"]["reads"]["here"]
    for key in STRONG:
        differs = shipped[key] != WANTED[key] or WRITTEN[key] != WANTED[key]
        check.expect(f"{key}: a value that can be told", differs, True)
    for name, seen in ours.shown.items():
        reads, bare = seen["reads"], off[name]["reads"]
        check.expect(f"{name}: places", sorted(reads), sorted(bare))
        if name != "at first":
            written = bare.get("inside", {}).get("max_fusion_size")
            check.expect(f"{name}: with off, inside", written, WRITTEN["max_fusion_size"])
        for place in reads.keys() & bare.keys():
            for key, got in reads[place].items():
                # A pin holds. Where torch by itself reads what was written, so do we, and where it
                # reads what it ships, we read the policy's value.
                want: Any = WANTED.get(key, "")
                if key not in PINNED and bare[place][key] != shipped[key]:
                    want = bare[place][key]
                # What torch ships and a program writes may be the same: then the place decides.
                elif key not in PINNED and shipped[key] == WRITTEN[key]:
                    marks = bare[place]["max_fusion_size"] == WRITTEN["max_fusion_size"]
                    want = WRITTEN[key] if marks else WANTED[key]
                check.expect(f"{name}, {place}, {key}", got, want)
        blamed: dict[str, Any] = {}
        if name != "at first":
            lines = marked(WAYS[name])
            blamed = {k: [["checks.py", n, repr(WRITTEN[k])] for n in lines] for k in PINNED}
        check.expect(f"{name}: refused", seen["refused"], blamed)
    entries = {
        "max_autotune": {"default": False},
        "coordinate_descent_tuning": {"pin": False},
    }
    values, blame = check.run("asked_by_mode", **check.config(inductor=entries)).shown
    check.expect("mode=", values, [[True, False], [False, False]])
    blame_lines = [["checks.py", line, "True"] for line in marked(asked_by_mode)]
    check.expect("mode=: refused", blame, {"coordinate_descent_tuning": blame_lines})


def check_modes(check: Check) -> None:
    """What a mode stands for under safe, by each way to ask for it, and what is not ours."""
    ours, uses = check.run("asked_modes").shown
    off, _ = check.run("asked_modes", **OFF).shown
    check.expect("calls", list(ours), list(off))
    becomes = {
        "reduce-overhead": "default",
        "max-autotune": "max-autotune-no-cudagraphs",
    }
    counted = dict.fromkeys(becomes, 0)
    for call, seen in ours.items():
        route, _, mode = call.rpartition(", ")
        want = off[call]
        # A compile by Inductor has options to show.
        if mode in becomes and want[1]:
            want = off[f"{route}, {becomes[mode]}"]
            counted[mode] += 1
        check.expect(call, seen, want)
    reached = [name for name, seen in off.items() if name.startswith("called") and seen[1]]
    check.expect("called: reaches Inductor", len(reached), len(MODES))
    check.expect("by torch, reduce-overhead", off["called, reduce-overhead"][1], CUDAGRAPHS)
    check.expect("by us, reduce-overhead", ours["called, reduce-overhead"][1], [{}])
    check.expect("uses", uses, counted)
    calls, without = check.run("other_calls"), check.run("other_calls", **OFF)
    said, native = (ast.literal_eval(ran.shown.pop("modes")[0]) for ran in (calls, without))
    check.expect("said of modes", said, {**native, **{m: native[b] for m, b in becomes.items()}})
    check.same("a call", calls.shown, without.shown)
    check.expect("mode and options", "ither mode or options" in str(calls.shown), True)


CUDAGRAPHS = [{"triton.cudagraphs": True}]


def check_compiles(check: Check) -> None:
    """Real compiles under safe with an image's variable, in the main thread and in workers."""
    done, graphs, errors = check.run("compiled", **{MAX: "1"}).shown
    calm = [False, False, "ATEN", False, False, False, 128]
    wanted = [[mode, True, [calm]] for mode in (None, "reduce-overhead", "default", None)]
    wanted.append(["max-autotune", True, [[True, True, *calm[2:]]]])
    for got, want in zip(done, wanted, strict=True):
        check.expect(f"mode {want[0]}", got, want)
    check.expect("graphs, errors", [graphs, errors], [len(wanted), []])


def check_workers(check: Check) -> None:
    """Inductor's own processes."""
    entries = {key: {strength: wanted} for key, (strength, wanted, _) in STRONG.items()}
    policy = check.config(inductor=entries)
    path = Path(policy["ROCM_AUTOPATCH_POLICY"])
    path.write_text(json.dumps({**json.loads(path.read_text()), "env": {MAX: {"delete": True}}}))
    more = {MAX: "1", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    ran = check.run("pools", **policy, **more)
    pid, seen = ran.shown
    check.expect("pools", bool(seen), True)
    for kind, (bare, with_config) in seen.items():
        for found in (bare, with_config):
            check.expect(f"{kind}: a process of its own", found["pid"] != pid, True)
            check.expect(f"{kind}: variable", found["variable"], None)
            check.expect(f"{kind}: values", found["values"], [WANTED, WANTED])
            check.expect(f"{kind}: inside", found["with the parent's config"], WANTED)
            check.expect(f"{kind}: active", found["active"], [True, "live", []])
    check.expect("lines", len(ran.said), 1)
    same, errors, _ = check.run("async_compiled", **policy, **more).shown
    check.expect("with threads", [same, errors], [True, []])
    if "SUBPROCESS" in check.run("compile_fx_modes", **OFF).shown:
        more["TORCHINDUCTOR_FX_COMPILE_MODE"] = "SUBPROCESS"
        same, errors, kinds = check.run("async_compiled", **policy, **more).shown
        check.expect("in a subprocess", [same, errors, kinds], [True, [], ["_SubprocessFxCompile"]])


def check_renamed(check: Check) -> None:
    """What torch 2.7 renamed, asked for by either name and at each strength."""
    new = release() >= (2, 7)
    graphs, shipped, _, _ = check.run("limits", **OFF).shown
    check.expect("with off", [graphs, shipped[0]["cache_size_limit"]], [8, 8])
    check.expect("names", "recompile_limit" in shipped[0], new)
    for pair in zip(RENAMED, RENAMED.values(), strict=True):
        for key in pair:
            for strength in ("default", "set", "pin"):
                where = f"{key}: {strength}"
                policy = check.config(dynamo={key: {strength: 3}})
                graphs, reads, written, rows = check.run("limits", **policy).shown
                if pair[0] == "recompile_limit":
                    check.expect(f"{where}: compiles", graphs, 3)
                names = set(pair) if new else {pair[1]}
                want = {name: 3 if name in names else old for name, old in shipped[0].items()}
                check.expect(f"{where}: reads", reads, [want, want])
                for name, found in written.items():
                    got = {found[n] for n in names}
                    if name.partition(" ")[0] in names:
                        wrote = 5 if name.endswith("patched") else 6
                        check.expect(f"{where}: {name}", got, {3 if strength == "pin" else wrote})
                # One key, by its new name, whichever a policy uses.
                ((name, (status, reason, after, blamed)),) = rows.items()
                check.expect(f"{where}: row", [name, status], [pair[0], "applied"])
                check.expect(f"{where}: blamed", blamed, ["checks.py"] * (strength == "pin"))
                if strength == "pin" or release() >= (2, 12):
                    check.expect(f"{where}: after", after, 3)
                if strength == "pin" or not new:
                    says = "" if new else f"this torch calls the key {pair[1]}"
                    check.expect(f"{where}: reason", reason, says)


def check_empty(check: Check) -> None:
    """A policy that says nothing changes nothing."""
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(check.directory / "shared"), "PYTHONHASHSEED": "0"}
    off = check.run("as_it_is", **cache, **OFF)
    ours = check.run("as_it_is", **cache, **check.policy(EMPTY))
    cached = ours.shown.pop("cache"), off.shown.pop("cache")
    check.expect("cache of compiles", cached, ([0, 1, 0], [1, 0, 0]))
    check.same("torch", ours.shown, off.shown)
    check.expect("said", ours.said, [])
    shown, _, finders = check.run("environment", **check.policy(EMPTY)).shown
    _, _, without = check.run("environment", **OFF).shown
    check.expect("finders", finders, without)
    check.expect("variables", [name for name in shown if "SAID" in name], [])


def check_capture(check: Check) -> None:
    """capture: guard is applied before torch 2.14, which has such a check itself."""
    policy = check.policy(EMPTY + "name: live\npatches: {capture: guard}\n")
    ours, off = check.run("ordinary", **policy), check.run("ordinary", **OFF)
    check.same("a compile", ours.shown, off.shown)
    seen = check.run("captured", **policy).shown
    guards = release() < (2, 14)
    ((name, after, status, reason),) = seen["rows"]
    check.expect("row", [name, after], ["capture", "guard" if guards else "off"])
    check.expect("row, status", status, "applied" if guards else "skipped")
    says = "has no such check" if guards else "torch itself raises since 2.14"
    check.expect(f"reason {reason!r}", says in reason, True)
    check.expect("patches", seen["patches"], [["capture", "applied"]])
    check.expect("errors", seen["errors"], [])
    check.expect("torch's function is wrapped", seen["wrapped"], guards)
    check.expect(f"raises, {seen['told']}", "RuntimeError(" in seen["told"], True)
    check.expect("by us", "rocm_autopatch, capture: guard" in seen["told"], guards)
    check.expect("after the capture", seen["after"], "[2.0, 2.0, 2.0]")
    check.expect("uses", seen["uses"], [int(guards)])


CHECKS = {
    name.removeprefix("check_"): function
    for name, function in list(globals().items())
    if name.startswith("check_") and name not in ("check_site", "check_without_torch")
}


def main() -> int:
    """Run a check, or a program of one."""
    if sys.argv[1] == "--program":
        print(json.dumps(PROGRAMS[sys.argv[2]]()))
        return 0
    with tempfile.TemporaryDirectory() as directory:
        check = Check(Path(directory))
        with suppress(Stopped):
            CHECKS[sys.argv[1]](check)
    shown = check.differences[:MOST]
    if len(check.differences) > MOST:
        shown.append(f"and {len(check.differences) - MOST} more")
    print("\n".join(shown) or "ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
