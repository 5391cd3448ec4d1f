"""What the ranks patch assumes of each torch from 2.4 to 2.15, on its real files.

    python experiments/matrix/ranks_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. A line of the table printed is a fact, and says for which versions it holds how. What is
not as expected is marked with an exclamation mark, and makes the exit status 1. The store's methods
are written in C++: what is read of them is which ones torch's own Python files call.
"""

from __future__ import annotations

import ast
import sys

from capture_versions import Source
from torch_files import facts_table

HOME = "torch/distributed/distributed_c10d.py"
PACKAGE = "torch/distributed/__init__.py"
CALLS_STORES = "torch/distributed/elastic/utils/store.py"
USED = ("init_process_group", "get_rank", "get_world_size", "_get_default_store")
METHODS = ("multi_get", "set", "add")


def functions(source: Source) -> str:
    """Those that the patch uses, at the top of their module."""
    names = {getattr(node, "name", "") for node in source.tree(HOME).body}
    return ", ".join(name for name in USED if name in names)


def returns(source: Source) -> str:
    """What _get_default_store looks the store up in."""
    (function,) = source.functions(HOME, "_get_default_store")
    return " and ".join(
        ast.unparse(node.value) for node in function.body if isinstance(node, ast.Assign)
    )


def taken(source: Source) -> str:
    """How the package takes the names: after the module was executed, so it gets ours."""
    return ", ".join(
        f"from {'.' * node.level}{node.module} import *"
        for node in ast.walk(source.tree(PACKAGE))
        if isinstance(node, ast.ImportFrom)
        and node.module == "distributed_c10d"
        and node.names[0].name == "*"
    )


def methods(source: Source) -> str:
    """Methods of a store that torch calls itself."""
    called = {
        node.func.attr
        for node in ast.walk(source.tree(CALLS_STORES))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and getattr(node.func.value, "id", "") == "store"
    }
    return ", ".join(name for name in METHODS if name in called)


def restarts(source: Source) -> str:
    """Where torchrun says how often it has restarted its workers."""
    file = source.directory / "torch/distributed/elastic/agent/server/local_elastic_agent.py"
    return "worker_env" if "TORCHELASTIC_RESTART_COUNT" in file.read_text() else "?"


FACTS = {
    "functions": functions,
    "default store": returns,
    "taken": taken,
    "methods": methods,
    "restarts": restarts,
}


def expected(version: str) -> dict[str, str]:
    return {
        "functions": ", ".join(USED),
        "default store": "_get_default_group() and _world.pg_map[default_pg]",
        "taken": "from .distributed_c10d import *",
        "methods": ", ".join(METHODS),
        "restarts": "worker_env",
    }


def main() -> int:
    return facts_table("The ranks patch on every torch, as a table.", Source, FACTS, expected)


if __name__ == "__main__":
    sys.exit(main())
