"""What docs/claims.md says of torch's own source, on the Python files of torch 2.4 to 2.15.

    python experiments/matrix/claims_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. Each line of the printed table is a fact, and says what it is in which versions. The
defaults are those of the version's own config modules, executed without the rest of torch and
labelled as a ROCm build. What is not as docs/claims.md has it is marked with an exclamation mark,
and makes the exit status 1.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch_files import DYNAMO, INDUCTOR, child, directories, load, table

DEFAULTS = {
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "max_autotune_gemm_backends": "ATEN,TRITON,CPP",
    "coordinate_descent_tuning": False,
    "triton.cudagraphs": False,
    "triton.cudagraph_trees": True,
    "triton.multi_kernel": 0,
    "memory_planning": False,
    "epilogue_fusion": True,
    "pattern_matcher": True,
    "reorder_for_locality": True,
    "aggressive_fusion": False,
    "group_fusion": False,
    "max_fusion_size": 64,
    "benchmark_kernel": False,
    "shape_padding": True,
    "freezing": False,
    "trace.enabled": False,
    "trace.debug_log": False,
}
# Variables that the tuning notes name: what reads them would have to be in one of these files.
NOT_READ = (
    "INDUCTOR_COORD_DESCENT",
    "INDUCTOR_BENCHMARK_KERNEL",
    "INDUCTOR_GROUP_FUSION",
    "INDUCTOR_AGGRESSIVE_FUSION",
    "INDUCTOR_MAX_FUSION_SIZE",
    "INDUCTOR_FREEZING",
    "HIP_CACHE_ENABLED",
)


def files(directory: Path) -> dict[str, str]:
    """The texts of a version's Python files, by their place below torch/."""
    root = directory / "torch"
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(root.glob("**/*.py"))
    }


def function(text: str, name: str) -> str:
    """The source of a function or of a class, in one form for all versions."""
    found = (
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name
    )
    return ast.unparse(next(found))


def readers(sources: dict[str, str], key: str) -> str:
    """The files in which Inductor reads a key of its config."""
    pattern = re.compile(rf"\bconfig\.{key}\b")
    found = [
        path
        for path, text in sources.items()
        if path.startswith("_inductor/")
        and f"config.{key}" in text
        and any(pattern.search(line.partition("#")[0]) for line in text.splitlines())
    ]
    return ", ".join(path[len("_inductor/") :] for path in found) or "none"


def variables(sources: dict[str, str]) -> str:
    """Which of the notes' variables any file of torch names."""
    found = [
        name
        for name in NOT_READ
        if any(
            name in text and re.search(rf"(?<![A-Z]){name}\b", text) for text in sources.values()
        )
    ]
    return ", ".join(found) or "none"


def aten_without_search(sources: dict[str, str]) -> str:
    """Whether ATen's GEMMs are used without a search where it is not among the backends."""
    names: dict[str, Any] = {
        "config": SimpleNamespace(max_autotune=False, max_autotune_gemm=False),
        "use_max_autotune": lambda: False,
        "_use_autotune_backend": lambda name: False,
    }
    exec(function(sources["_inductor/utils.py"], "use_aten_gemm_kernels"), names)
    return "yes" if names["use_aten_gemm_kernels"]() else "no"


def epilogues(sources: dict[str, str]) -> str:
    """Whether every function of the scheduler that reads epilogue_fusion is about templates."""
    found = [
        node.name
        for node in ast.walk(ast.parse(sources["_inductor/scheduler.py"]))
        if isinstance(node, ast.FunctionDef)
        and re.search(r"config\.epilogue_fusion\b", text := ast.unparse(node))
        and "template" not in text
    ]
    return ", ".join(found) or "yes"


def timeout(sources: dict[str, str], defaults: dict[str, Any]) -> str:
    """How many seconds a search waits for its candidates to be compiled."""
    if defaults["precompilation_timeout_seconds"] is not None:
        return str(defaults["precompilation_timeout_seconds"])
    for node in ast.walk(ast.parse(sources["_inductor/select_algorithm.py"])):
        if isinstance(node, ast.arguments):
            given = dict(zip([a.arg for a in node.args[::-1]], node.defaults[::-1]))
            if "precompilation_timeout_seconds" in given:
                return str(eval(ast.unparse(given["precompilation_timeout_seconds"])))
    return "none"


def capture_begins(sources: dict[str, str]) -> str:
    """What torch.cuda.graph does before a capture."""
    text = function(function(sources["cuda/graphs.py"], "graph"), "__enter__")
    return ", ".join(name for name in ("synchronize", "empty_cache") if f"cuda.{name}()" in text)


def read_defaults(directory: Path) -> dict[str, Any]:
    """Defaults, in this process."""
    load(directory)
    inductor, dynamo = sys.modules[INDUCTOR], sys.modules[DYNAMO]

    def value(module: Any, key: str) -> Any:
        for part in key.split("."):
            module = getattr(module, part)
        return module

    found = {key: value(inductor, key) for key in DEFAULTS}
    found["precompilation_timeout_seconds"] = getattr(
        inductor, "precompilation_timeout_seconds", None
    )
    config: Any = dynamo
    name = "recompile_limit" if "recompile_limit" in config._config else "cache_size_limit"
    found["limit"] = f"{name} {getattr(dynamo, name)}"
    return found


def cells(directory: Path) -> dict[str, str]:
    """The cells of a version as they are."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}
    env = {**bare, "ROCM_AUTOPATCH": "off"}
    defaults = child(directory, "defaults", env)
    other = {key: value for key, value in defaults.items() if DEFAULTS.get(key, value) != value}
    sources = files(directory)
    return {
        "defaults": "as listed" if not other else str(other),
        "recompile limit": defaults["limit"],
        "seconds to compile candidates": timeout(sources, defaults),
        "group_fusion is read by": readers(sources, "group_fusion"),
        "aggressive_fusion is read by": readers(sources, "aggressive_fusion"),
        "variables of the notes, named": variables(sources),
        "ATen's GEMMs without a search": aten_without_search(sources),
        "epilogue_fusion is of templates": epilogues(sources),
        "torch.cuda.graph begins by": capture_begins(sources),
    }


def expected(name: str) -> dict[str, str]:
    """The cells of a version."""
    release = tuple(int(part) for part in name.split(".")[:2])
    return {
        "defaults": "as listed",
        "recompile limit": "cache_size_limit 8" if release < (2, 7) else "recompile_limit 8",
        "seconds to compile candidates": "3600" if release < (2, 11) else "300",
        "group_fusion is read by": "none",
        "aggressive_fusion is read by": "choices.py, scheduler.py"
        if release >= (2, 6)
        else "scheduler.py",
        "variables of the notes, named": "none",
        "ATen's GEMMs without a search": "yes",
        "epilogue_fusion is of templates": "yes",
        "torch.cuda.graph begins by": "synchronize, empty_cache",
    }


def main() -> int:
    versions, what = directories("docs/claims.md against every torch, as a table.")
    if what:
        print(json.dumps(read_defaults(versions[0])))
        return 0
    return table({directory.name: cells(directory) for directory in versions}, expected)


if __name__ == "__main__":
    sys.exit(main())
