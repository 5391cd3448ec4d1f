"""What our messages advise, tried: run by a Python with any torch, without us.

    python tests/advice.py NAME [full]

It raises, or ends with another status than 0, if advice does not do on this torch what is said of
it. With ``full``, programs compile with ``fullgraph=True``. ENVIRONMENT has what a trial needs in
its environment before Python starts. tests/test_advice.py and
experiments/matrix/advice_versions.py run it; the latter with the oldest and the newest torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

# By the name of a trial, what the advice says to set, or what was set before it was unset.
ENVIRONMENT: dict[str, dict[str, str]] = {
    "uncompiled": {"TORCHDYNAMO_DISABLE": "1"},
    "scalars": {"TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS": "1"},
    "shapes": {"TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS": "1"},
    "threads": {"TORCHINDUCTOR_COMPILE_THREADS": "1"},
    "isa": {"TORCHINDUCTOR_VEC_ISA_OK": "0"},
    "graphs": {"TORCHINDUCTOR_FX_GRAPH_CACHE": "1"},
    "directory": {"TORCHINDUCTOR_CACHE_DIR": f"/tmp/advice-{os.getuid()}-{os.getpid()}"},
    "logs": {"TORCH_LOGS": "recompiles"},
}
# Variables that the advice says to unset: the key of Inductor's config that each turns on.
UNSET = {
    "TORCHINDUCTOR_MAX_AUTOTUNE": "max_autotune",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM": "max_autotune_gemm",
    "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE": "max_autotune_pointwise",
    "TORCHINDUCTOR_COORDINATE_DESCENT_TUNING": "coordinate_descent_tuning",
    "TORCHINDUCTOR_FREEZING": "freezing",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "force_disable_caches",
}
# What the watchdog says to pin, each to false.
PINS = (
    *("max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning", "freezing"),
    *("pattern_matcher", "shape_padding"),
)
FULL = sys.argv[2:] == ["full"]


def compiled(function: Any, **options: Any) -> Any:
    import torch

    options.setdefault("backend", "eager")
    return torch.compile(function, fullgraph=FULL, **options)


def torch_release() -> tuple[int, ...]:
    import torch.version

    return tuple(map(int, torch.version.__version__.split(".")[:2]))


def graph_count() -> int:
    """How many graphs Dynamo has made since the last reset."""
    import torch._dynamo.utils

    return int(torch._dynamo.utils.counters["stats"].get("unique_graphs", 0))


def uncompiled() -> None:
    import torch

    assert compiled(lambda x: torch.relu(x) + 1)(torch.ones(3)).tolist() == [2.0] * 3
    assert graph_count() == 0


def scalars() -> None:
    import torch

    def item(x: Any) -> Any:
        return x * x.sum().item()

    def listed(x: Any) -> Any:
        first, second = (x + 1).long().tolist()
        return x * first + second

    for function in (item, listed):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled(function)(torch.ones(2))
        assert (graph_count(), not torch._dynamo.utils.counters["graph_break"]) == (1, True)


def shapes() -> None:
    import torch

    compiled(lambda x: torch.nonzero(x) + 1)(torch.ones(2))
    assert (graph_count(), not torch._dynamo.utils.counters["graph_break"]) == (1, True)


def threads() -> None:
    import torch
    import torch._inductor.config as config

    assert config.compile_threads == 1
    compiled(lambda x: torch.relu(x) + 1, backend="inductor")(torch.ones(300))
    with open(f"/proc/self/task/{os.getpid()}/children") as stream:
        assert stream.read().split() == []


def isa() -> None:
    import importlib

    import torch._inductor.config as config

    if torch_release() < (2, 7):
        return  # The message says so.
    assert config.cpp.vec_isa_ok is False
    try:
        isas = importlib.import_module("torch._inductor.cpu_vec_isa")
    except ImportError:
        isas = importlib.import_module("torch._inductor.codecache")  # up to torch 2.4
    assert not isas.pick_vec_isa()


def graph_cache() -> None:
    import torch._inductor.config as config

    assert config.fx_graph_cache is True


def directory() -> None:
    import torch

    place = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    try:
        compiled(lambda x: torch.relu(x) + 1, backend="inductor")(torch.ones(300))
        assert os.listdir(place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def compiler() -> None:
    """CXX names the C++ compiler, here a script that takes note of being asked."""
    place = tempfile.mkdtemp()
    try:
        script = os.path.join(place, "c++")
        asked = os.path.join(place, "asked")
        real = shutil.which("g++")
        with open(script, "w", encoding="utf-8") as stream:
            stream.write(f'#!/bin/sh\necho >> {asked}\nexec {real} "$@"\n')
        os.chmod(script, 0o755)
        os.environ.update(CXX=script, TORCHINDUCTOR_CACHE_DIR=os.path.join(place, "caches"))
        import torch

        compiled(lambda x: torch.relu(x) + 1, backend="inductor")(torch.ones(300))
        assert os.path.exists(asked)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def gradients() -> None:
    import torch

    function = compiled(lambda x: x * 2)
    with torch.no_grad():
        for _ in range(3):
            function(torch.ones(2))
    assert graph_count() == 1


def logs() -> None:
    sizes(dynamic=False)


def sizes(**options: Any) -> int:
    """Compile for five sizes; how many graphs it took."""
    import torch

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    function = compiled(lambda x: x + x.shape[0], **options)
    for size in range(3, 8):
        function(torch.ones(size))
    return graph_count()


def dynamic() -> None:
    import torch

    assert sizes(dynamic=False) == 5
    assert sizes(dynamic=True) == 1
    # The second size makes it dynamic.
    assert sizes() == 2
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    function = compiled(lambda x: x + x.shape[0])
    for size in range(3, 8):
        tensor = torch.ones(size)
        torch._dynamo.mark_dynamic(tensor, 0)
        function(tensor)
    assert graph_count() == 1


def static() -> None:
    import torch

    seen: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        seen.extend(one for one in inputs if isinstance(one, torch.SymInt))
        return module.forward

    for size in range(3, 6):
        compiled(lambda x: x + x.shape[0], backend=backend, dynamic=False)(torch.ones(size))
    assert not seen


def numbers() -> None:
    import torch

    def count_compiles(values: Any, function: Any, **options: Any) -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        step = compiled(function, **options)
        for value in values:
            step(torch.ones(2), value)
        return graph_count()

    assert count_compiles(range(3, 8), lambda x, n: x + n, dynamic=True) == 1
    assert count_compiles(map(torch.tensor, range(3, 8)), lambda x, n: x + n, dynamic=False) == 1


def attribute() -> None:
    import torch

    class Counts(torch.nn.Module):  # type: ignore[misc,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.number = 2

        def forward(self, x: Any) -> Any:
            return x + self.number

    def count_compiles() -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        module = Counts()
        step = compiled(module, dynamic=True)
        for _ in range(5):
            module.number += 1
            step(torch.ones(2))
        return graph_count()

    if not hasattr(torch._dynamo.config, "allow_unspec_int_on_nn_module"):
        return  # The message says: from torch 2.7 on.
    assert count_compiles() == 5
    torch._dynamo.config.allow_unspec_int_on_nn_module = True
    assert count_compiles() == 1


def limit() -> None:
    import torch._dynamo.config as config

    new = hasattr(config, "recompile_limit")
    setattr(config, "recompile_limit" if new else "cache_size_limit", 64)

    def times(x: Any, n: int) -> Any:
        return x * n

    import torch

    step = compiled(times, dynamic=False)
    config.automatic_dynamic_shapes = False
    for number in range(20):
        step(torch.ones(2), number)
    assert graph_count() == 20


def branch() -> None:
    import torch

    def where(x: Any) -> Any:
        return torch.where(x.sum() > 0, x + 1, x - 1)

    def cond(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))

    for function in (where, cond):
        torch._dynamo.reset()
        assert compiled(function)(torch.ones(2)).tolist() == [2.0, 2.0]
        assert not torch._dynamo.utils.counters["graph_break"]


def prints() -> None:
    import torch

    torch._dynamo.config.reorderable_logging_functions.add(print)

    def speaks(x: Any) -> Any:
        x = x + 1
        print("said")
        return x * 2

    compiled(speaks)(torch.ones(2))
    assert (graph_count(), not torch._dynamo.utils.counters["graph_break"]) == (1, True)


def operation() -> None:
    import torch

    def own(x: Any) -> Any:
        return torch.from_numpy(x.numpy() + 1)

    own.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    made = torch.library.custom_op("advice::own", own, mutates_args=())
    made.register_fake(torch.empty_like)
    for function in (made, torch.ops.advice.own):
        torch._dynamo.reset()
        assert compiled(lambda x, call=function: call(x) * 2)(torch.ones(2)).tolist() == [4.0] * 2
        assert not torch._dynamo.utils.counters["graph_break"]


def pins() -> None:
    import torch
    import torch._inductor.config as config

    for key in PINS:
        assert isinstance(getattr(config, key), bool), key
        setattr(config, key, False)
    compiled(lambda x: torch.relu(x) + 1, backend="inductor")(torch.ones(300))


def unset() -> None:
    # In processes of their own: a config reads variables when it is imported.
    code = "import sys, torch._inductor.config as config\n"
    code += "print(*[getattr(config, key) for key in sys.argv[1:]])"
    env = {name: text for name, text in os.environ.items() if name not in UNSET}
    for value, seen in (("1", "True"), ("", "False")):
        given = {**env, **(dict.fromkeys(UNSET, value) if value else {})}
        command = [sys.executable, "-c", code, *UNSET.values()]
        told = subprocess.check_output(command, env=given, text=True).split()
        assert told == [seen] * len(UNSET), (value, told)


# The trials that share a process: they set what they need themselves.
HERE = (dynamic, static, numbers, branch, operation, pins, gradients)
TRIALS: dict[str, tuple[Callable[[], Any], ...]] = {
    "here": HERE,
    # Each changes the configuration.
    "attribute": (attribute,),
    "limit": (limit,),
    "prints": (prints,),
    "compiler": (compiler,),
    "unset": (unset,),
    "graphs": (graph_cache,),
    **{name: (globals()[name],) for name in ENVIRONMENT if name != "graphs"},
}
# What a trial has to write to stderr.
SAID = {"logs": "Recompiling function"}
# By what a message names, the trial that does it, or why there is none.
NEEDS_ROCM = "it speaks to a library of ROCm, which needs an AMD GPU"
COVERED = {
    "TORCHDYNAMO_DISABLE": "uncompiled",
    "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS": "scalars",
    "TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS": "shapes",
    "TORCHINDUCTOR_COMPILE_THREADS": "threads",
    "TORCHINDUCTOR_VEC_ISA_OK": "isa",
    "TORCHINDUCTOR_FX_GRAPH_CACHE": "graphs",
    "TORCHINDUCTOR_CACHE_DIR": "directory",
    "TORCH_LOGS": "logs",
    "CXX": "compiler",
    **dict.fromkeys(UNSET, "unset"),
    "torch.compile": "here",
    "torch._dynamo.mark_dynamic": "here",
    "torch.where": "here",
    "torch.cond": "here",
    "torch.no_grad": "here",
    "torch.ops.LIBRARY.NAME": "here",
    "torch.library.custom_op": "here",
    "torch._inductor.config": "here",
    "torch._dynamo.config.allow_unspec_int_on_nn_module": "attribute",
    "torch._dynamo.config.recompile_limit": "limit",
    "torch._dynamo.config.reorderable_logging_functions.add": "prints",
    "PYTORCH_TUNABLEOP_TUNING": NEEDS_ROCM,
    "AITER_REBUILD": NEEDS_ROCM,
    "torch.backends.cudnn.benchmark": NEEDS_ROCM,
    "torch.compiler.disable": "it says what the program does, and not what to do",
}


def failures(python: str) -> Iterator[str]:
    """Run every trial with an interpreter, with and without fullgraph; what failed."""
    for name in TRIALS:
        for full in ((), ("full",)):
            env = {key: text for key, text in os.environ.items() if key not in UNSET}
            env.update(ENVIRONMENT.get(name, {}), ROCM_AUTOPATCH="off")
            done = subprocess.run(
                [python, __file__, name, *full], env=env, capture_output=True, text=True
            )
            if done.returncode or SAID.get(name, "") not in done.stderr:
                last = (done.stderr.strip().splitlines() or ["?"])[-1]
                yield f"{name} {' '.join(full)}: status {done.returncode}, {last}"


def main() -> None:
    for trial in TRIALS[sys.argv[1]]:
        try:
            if len(TRIALS[sys.argv[1]]) > 1:
                import torch._dynamo.utils

                torch._dynamo.reset()
                torch._dynamo.utils.counters.clear()
            trial()
        except Exception as error:
            raise SystemExit(f"{trial.__name__}: {type(error).__name__}: {error}") from error


if __name__ == "__main__":
    main()
