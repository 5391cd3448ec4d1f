"""What the watchdog assumes of each torch from 2.4 to 2.15, on its real files, without torch.

    python experiments/matrix/watchdog_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. Each line of the printed table is a fact, and says what it is in which versions. Facts
are the ways into a compile that are patched, and the functions and locals that show a phase. What
is not as expected is marked with an exclamation mark, and makes the exit status 1.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from pathlib import Path

from capture_versions import Source, arguments, by_name, calls, choke_point
from torch_files import facts_table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rocm_autopatch import switches
from rocm_autopatch.patches import watchdog
from rocm_autopatch.patches.watchdog import phases

COMPILE_FX = "torch/_inductor/compile_fx.py"
TUNER = "torch/_inductor/runtime/triton_heuristics.py"
SEARCH = "torch/_inductor/select_algorithm.py"
ASYNC = "torch/_inductor/async_compile.py"


def graph_called(source: Source) -> str:
    """Whether fx_codegen_and_compile is always looked up by its global name, outside itself."""
    uses = 0
    for top in source.tree(COMPILE_FX).body:
        if getattr(top, "name", "") != "fx_codegen_and_compile":
            uses += sum(
                isinstance(node, ast.Name) and node.id == "fx_codegen_and_compile"
                for node in ast.walk(top)
            )
    imports = [
        str(path)
        for path, text in source.named("fx_codegen_and_compile")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom)
        and any(name.name == "fx_codegen_and_compile" for name in node.names)
    ]
    defined = len(source.functions(COMPILE_FX, "fx_codegen_and_compile"))
    return "by name" if defined == 1 and uses and not imports else f"{defined}, {uses}, {imports}"


def graph_arguments(source: Source) -> str:
    """Whether the graph comes first, and is_backward by keyword."""
    (function,) = source.functions(COMPILE_FX, "fx_codegen_and_compile")
    return "yes" if function.args.args[0].arg == "gm" else function.args.args[0].arg


def tuner_methods(source: Source) -> str:
    """Which of the tuner's patched methods are there, and called on the instance."""
    tree = source.tree(TUNER)
    (tuner,) = (n for n in tree.body if getattr(n, "name", "") == "CachingAutotuner")
    assert isinstance(tuner, ast.ClassDef)
    names = {getattr(node, "name", "") for node in tuner.body}
    found = [name for name in watchdog._TUNERS if name in names and calls(tree, f"self.{name}")]
    return ", ".join(found)


def compile_id(source: Source) -> str:
    """How the id of a compile is known: as a keyword of _compile, and of this thread's context."""
    sent = calls(source.tree("torch/_dynamo/convert_frame.py"), "_compile")
    keyword = any(word.arg == "compile_id" for call in sent for word in call.keywords)
    context = source.tree("torch/_guards.py")
    named = any(
        isinstance(node, ast.FunctionDef) and node.name == "current_compile_id"
        for node in ast.walk(context)
    )
    return "yes" if keyword and named else f"{keyword}, {named}"


def locals_of(path: str, *wanted: str) -> Callable[[Source], str]:
    """Which names some function of a file binds."""

    def read(source: Source) -> str:
        bound = set()
        for node in ast.walk(source.tree(path)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
        return ", ".join(name for name in wanted if name in bound)

    return read


def phases_named(source: Source) -> str:
    """The phases of which no row names a file and function that this torch has."""
    told = set()
    for name, phase in phases.PHASES.items():
        if any(has_place(source, place) for place in phase.places):
            told.add(name)
    missing = set(phases.PHASES) - told - {""}
    return ", ".join(sorted(missing)) or "none"


def has_place(source: Source, place: phases.CodePlace) -> bool:
    """Whether this torch has a place. What is not torch's counts as there."""
    if not place.path.startswith("/torch/"):
        return True
    path = place.path[1:]
    if path.endswith("/"):
        return (source.directory / path).is_dir()
    if not (source.directory / path).is_file():
        return False
    names = {
        node.name
        for node in ast.walk(source.tree(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    return not place.functions or not names.isdisjoint(place.functions)


def keys(source: Source) -> str:
    """The settings of our hints that torch._inductor.config lacks."""
    text = (source.directory / "torch/_inductor/config.py").read_text(encoding="utf-8")
    found = [row.key for row in switches.SWITCHES if row.stops]
    return ", ".join(key for key in found if f"\n{key}" not in text) or "none"


READ: dict[str, Callable[[Source], str]] = {
    "_compile is bound in its module": choke_point,
    "called by its global name in": by_name,
    "code first, skip by keyword": arguments,
    "compile_id by keyword and context": compile_id,
    "fx_codegen_and_compile is called": graph_called,
    "the graph comes first": graph_arguments,
    "CachingAutotuner, on itself": tuner_methods,
    "phases without a place": phases_named,
    "candidates: choices, timings, futures": locals_of(
        SEARCH, "choices", "timings", "futures", "name", "input_nodes"
    ),
    "workers: key, kernels, scope": locals_of(ASYNC, "key", "kernels", "scope"),
    "config_patches in compile_fx": locals_of(COMPILE_FX, "config_patches"),
    "keys that are not there": keys,
}


def expected(name: str) -> dict[str, str]:
    """The cells of a version."""
    release = tuple(int(part) for part in name.split(".")[:2])
    return {
        "_compile is bound in its module": "once",
        "called by its global name in": "ConvertFrameAssert, replay",
        "code first, skip by keyword": "yes",
        "compile_id by keyword and context": "yes",
        "fx_codegen_and_compile is called": "by name",
        "the graph comes first": "yes",
        "CachingAutotuner, on itself": "autotune_to_one_config, coordinate_descent_tuning",
        # The test of the CPU was in codecache.py then: it is C++ like the rest.
        "phases without a place": "isa" if release < (2, 5) else "none",
        "candidates: choices, timings, futures": "choices, timings, futures, name, input_nodes",
        "workers: key, kernels, scope": "key, scope" if release < (2, 7) else "key, kernels, scope",
        "config_patches in compile_fx": "config_patches",
        "keys that are not there": "none",
    }


def main() -> int:
    return facts_table("The watchdog on every torch, as a table.", Source, READ, expected)


if __name__ == "__main__":
    sys.exit(main())
