"""What the recompiles patch assumes of each torch from 2.4 to 2.15, on its real files.

    python experiments/matrix/recompile_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. A line of the table printed is a fact, and says for which versions it holds how. What is
not as expected is marked with an exclamation mark, and makes the exit status 1.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from capture_versions import CONVERT_FRAME, Source
from torch_files import facts_table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rocm_autopatch.patches import recompiles

CACHE_SIZE = "torch/_dynamo/cache_size.py"


def limit(source: Source) -> str:
    """The name of the limit, and torch's own value."""
    for node in source.tree("torch/_dynamo/config.py").body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Name) and target.id in recompiles.LIMITS:
            assert isinstance(node, ast.Assign)
            return f"{target.id} = {ast.unparse(node.value)}"
    return "?"


def asked(source: Source) -> str:
    """Where convert_frame asks whether the limit is exceeded, by the function's global name."""
    return ", ".join(
        f"{node.func.id} in {getattr(top, 'name', '?')}"
        for top in source.tree(CONVERT_FRAME).body
        for node in ast.walk(top)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in recompiles.QUESTIONS
    )


def first_argument(source: Source) -> str:
    """What it is asked of: an object that knows how many compiles there are."""
    for name in recompiles.QUESTIONS:
        for function in source.functions(CACHE_SIZE, name):
            return ast.unparse(function.args.args[0])
    return "?"


def counts(source: Source) -> str:
    """The fields and methods of that object that the patch uses."""
    tree = source.tree(CACHE_SIZE)
    (size,) = (n for n in tree.body if getattr(n, "name", "") == "CacheSizeRelevantForFrame")
    assert isinstance(size, ast.ClassDef)
    names = {getattr(node, "name", "") for node in size.body}
    names |= {getattr(getattr(node, "target", None), "id", "") for node in size.body}
    wanted = (
        "num_cache_entries_with_same_id_matched_objs",
        "will_compilation_exceed_specific_limit",
    )
    return ", ".join(name for name in wanted if name in names)


def local_variables(source: Source) -> str:
    """The variables of _compile that hold the code, fullgraph, and the guard that failed."""
    (function,) = source.functions(CONVERT_FRAME, "_compile")
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    names |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    wanted = ("code", "locals", "one_graph", "recompile_reason", "recompile_reasons")
    return ", ".join(name for name in wanted if name in names)


FACTS = {
    "torch's own limit": limit,
    "asked": asked,
    "of": first_argument,
    "which has": counts,
    "local variables": local_variables,
}


def expected(version: str) -> dict[str, str]:
    old = version.startswith(("2.4.", "2.5.", "2.6."))
    return {
        "torch's own limit": f"{recompiles.LIMITS[old]} = 8",
        "asked": f"{recompiles.QUESTIONS[old]} in _compile",
        "of": "cache_size: CacheSizeRelevantForFrame",
        "which has": "num_cache_entries_with_same_id_matched_objs, "
        "will_compilation_exceed_specific_limit",
        "local variables": "code, locals, one_graph, recompile_reason" + ("s" if old else ""),
    }


def main() -> int:
    return facts_table("The recompiles patch on every torch, as a table.", Source, FACTS, expected)


if __name__ == "__main__":
    sys.exit(main())
