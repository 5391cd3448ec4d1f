"""What our patches of torch's caches assume of each torch from 2.4 to 2.15.

They are patches/cache_misses.py, patches/moved_configs.py and patches/truncated_libraries.py. It
reads each torch's files.

    python experiments/matrix/cache_versions.py DIRECTORY [VERSION ...]

DIRECTORY/VERSION/torch holds the Python files of a torch wheel; a version that is missing is
downloaded. A line of the table printed is a fact, and says for which versions it holds how. What is
not as expected is marked with an exclamation mark, and makes the exit status 1.
"""

from __future__ import annotations

import ast
import sys

from capture_versions import Source
from torch_files import facts_table

CODECACHE = "torch/_inductor/codecache.py"
CONFIGS = "torch/_inductor/runtime/autotune_cache.py"
COMPILES = "torch/_inductor/compile_fx.py"


def method(source: Source) -> str:
    """The method that looks a graph up, which must be a static one: we put another in its place."""
    for top in source.tree(CODECACHE).body:
        for node in getattr(top, "body", ()):
            if getattr(node, "name", "") == "_lookup_graph":
                assert isinstance(node, ast.FunctionDef)
                kinds = [ast.unparse(one) for one in node.decorator_list]
                return (
                    f"{' '.join(kinds)} {getattr(top, 'name', '?')}({node.args.args[0].arg}, ...)"
                )
    return "?"


def called(source: Source) -> str:
    """How the method and the function that makes the key are called: by their global names."""
    found = set()
    for node in ast.walk(source.tree(CODECACHE)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name.endswith(("_lookup_graph", "compiled_fx_graph_hash")):
                found.add(name)
    return ", ".join(sorted(found))


def key(source: Source) -> str:
    """What the function that makes the key returns."""
    (function,) = source.functions(CODECACHE, "compiled_fx_graph_hash")
    return ", ".join(
        ast.unparse(node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value
    )


def lines(source: Source) -> str:
    """The form of the lines that tell what is in a key."""
    forms = set()
    for function in ast.walk(source.tree(CODECACHE)):
        if getattr(function, "name", "") == "debug_lines":
            for node in ast.walk(function):
                if isinstance(node, ast.JoinedStr):
                    forms.add("".join(map(_letters, node.values)))
    return " or ".join(sorted(forms)) or "none"


def _letters(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "*"


def loads(source: Source) -> str:
    """The method that loads a compiled kernel (truncated_libraries.py)."""
    for top in source.tree(CODECACHE).body:
        for node in getattr(top, "body", ()):
            if getattr(node, "name", "") == "_load_library":
                assert isinstance(node, ast.FunctionDef)
                kinds = [ast.unparse(one) for one in node.decorator_list]
                arguments = [one.arg for one in node.args.args]
                return f"{' '.join(kinds)} {getattr(top, 'name', '?')}({', '.join(arguments)})"
    return "?"


def keeps(source: Source) -> str:
    """Where a config's path is made or brought back, and that it is kept as the second of a pair.

    The class has to be found by the name that codecache imports (moved_configs.py).
    """
    imported = any(
        isinstance(node, ast.ImportFrom) and "autotune_cache" in [one.name for one in node.names]
        for node in source.tree(CODECACHE).body
    )
    found = []
    for top in source.tree(CONFIGS).body if imported else ():
        if getattr(top, "name", "") != "AutotuneCache":
            continue
        for node in getattr(top, "body", ()):
            if getattr(node, "name", "") in ("create", "__setstate__"):
                kinds = [ast.unparse(one) for one in node.decorator_list]
                found.append(" ".join([*kinds, node.name]))
        for node in ast.walk(top):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.local_cache":
                assert isinstance(node.value, ast.Tuple)
                found.append(f"({', '.join('*' for _ in node.value.elts)})")
    return ", ".join(found) or "none"


def compiles(source: Source) -> str:
    """How the function that compiles a graph is called: by its global name."""
    found = set()
    for node in ast.walk(source.tree(COMPILES)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("fx_codegen_and_compile"):
            found.add(ast.unparse(node.func))
    return ", ".join(sorted(found)) or "nobody calls it"


FACTS = {
    "compiles": compiles,
    "looks up": method,
    "called": called,
    "key": key,
    "lines": lines,
    "loads": loads,
    "keeps": keeps,
}


_KEEPS = {"2.4": "none", "2.5": "none", "2.6": "staticmethod create, (*, *)"}


def expected(version: str) -> dict[str, str]:
    old = version.startswith("2.4.")
    return {
        "compiles": "fx_codegen_and_compile",
        "loads": "classmethod CppCodeCache(cls, path, key)",
        "looks up": "staticmethod FxGraphCache(key, ...)",
        "called": "FxGraphCache._lookup_graph, compiled_fx_graph_hash",
        "key": "key" if old else "(key, debug_lines)",
        "lines": "none" if old else "[*] *: * or [*] *[*]: *",
        # Before 2.8, no graph in a cache has paths of configs.
        "keeps": _KEEPS.get(version[:3], "staticmethod create, __setstate__, (*, *)"),
    }


def main() -> int:
    return facts_table("Lookups of graphs on every torch, as a table.", Source, FACTS, expected)


if __name__ == "__main__":
    sys.exit(main())
