"""torch's compilers and Triton above the stand-in: drivers, benchmarks, captures.

A module is changed right after a program has imported it, so that a program which compiles nothing
does not pay for it.
"""

from __future__ import annotations

import functools
import importlib.abc
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from .connection import has_memory
from .gpus import GpuFacts
from .kernel_file import read_resources

# Milliseconds that each benchmark of Inductor and Triton measures: all candidates tie, and the
# first one wins. It has no meaning besides.
TIE_MS = 1.0
# Benchmarks by the file of torch that asked for them, and captures that were left out.
measured: Counter[str] = Counter()
captures: Counter[str] = Counter()


class StaticLauncher:
    """Stands in for torch's static launcher, which loads Triton's binaries from their files."""

    # torch 2.11 unloads none, and is told the function; torch 2.13 is told its module, too.
    unloads = True

    @classmethod
    def _load_kernel(cls, path: str, name: str, shared: int, device: int) -> tuple[int, ...]:
        with open(path, "rb") as stream:
            registers, spills = read_resources(stream.read())
        return (1, 1, registers, spills) if cls.unloads else (1, registers, spills)

    @staticmethod
    def _unload_kernel(module: int) -> None:
        pass

    @staticmethod
    def _launch_kernel(*arguments: object) -> None:
        pass


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function with a module right after the module was executed."""

    def __init__(self, actions: dict[str, Callable[[ModuleType], None]]) -> None:
        self.actions = actions

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        action = self.actions.pop(name, None)
        if action is None:
            return None
        for finder in [one for one in sys.meta_path if one is not self]:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _then(spec.loader, action)
                return spec
        return None


def _then(loader: Any, action: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def execute_and_act(module: ModuleType) -> None:
        execute(module)
        action(module)

    loader.exec_module = execute_and_act


def lead_compilers(gpu: GpuFacts) -> None:
    """Lead the compilers of this process to the stand-in for *gpu*."""
    c_extension: Any = torch._C
    real = getattr(c_extension, "_StaticCudaLauncher", None)
    StaticLauncher.unloads = real is None or hasattr(real, "_unload_kernel")
    c_extension._StaticCudaLauncher = StaticLauncher
    c_extension._dynamo.guards._empty_strided_cuda = _empty_strided
    actions: dict[str, Callable[[ModuleType], None]] = {
        "triton.backends": functools.partial(_lead_triton, gpu)
    }
    if has_memory():
        actions["torch._inductor.compile_fx"] = _skip_captures
        actions["torch._inductor.codecache"] = _forget_choices
        actions["torch._inductor.runtime.autotune_cache"] = _forget_configs
        actions["torch._inductor.runtime.benchmarking"] = _let_tie
        actions["torch._dynamo.utils"] = _keep_metrics
    for name in [name for name in actions if name in sys.modules]:
        actions.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(actions))


def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    # In C++ it would pass by the operators, and its memory might have been used before.
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _lead_triton(gpu: GpuFacts, backends: Any) -> None:
    """Let Triton have one backend, with our driver."""
    from .triton_driver import StandInDriver

    name = "amd" if gpu.vendor == "amd" else "nvidia"
    compiler = backends.backends[name].compiler
    backends.backends.clear()
    backends.backends[name] = backends.Backend(compiler=compiler, driver=StandInDriver)


def _skip_captures(compile_fx: Any) -> None:
    """Call what would be captured as a graph: the compile before is the same, and so is its key."""

    def cudagraphify(model: Callable[..., Any], *arguments: object, **options: object) -> Any:
        captures["graphs"] += 1
        return model

    compile_fx.cudagraphify = cudagraphify


def _forget_choices(codecache: Any) -> None:
    """Keep no choice that was made without measuring: a GPU measures for itself."""

    def forget_choice(self: object, *arguments: object, **options: object) -> None:
        pass

    for cache in (codecache.PersistentCache, codecache.LocalCache, codecache.CacheBase):
        if "update_local_cache" in vars(cache):
            cache.update_local_cache = forget_choice
    codecache.LocalCache.set_value = forget_choice


def _forget_configs(autotune_cache: Any) -> None:
    """The same for the configs of one kernel."""

    # By torch's own name, since its compile workers pickle the method.
    def save(self: object, *arguments: object, **options: object) -> None:
        pass

    autotune_cache.AutotuneCache.save = save


def _let_tie(benchmarking: Any) -> None:
    """Measure nothing."""

    def benchmark(*arguments: object, **options: object) -> float:
        caller = sys._getframe(1).f_code.co_filename
        measured[caller.rpartition("/")[2]] += 1
        return TIE_MS

    for name in ("benchmark", "benchmark_gpu"):
        setattr(benchmarking.benchmarker, name, benchmark)


def _keep_metrics(utils: Any) -> None:
    """Dynamo keeps the metrics of 64 compiles; processes.py reads them at the end."""
    if hasattr(utils, "set_compilation_metrics_limit"):
        utils.set_compilation_metrics_limit(10_000)
