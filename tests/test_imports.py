"""Imports go one way: the rooms have an order, and there are no circles, also in functions.

A room is a module or folder of the package: the first part of a module's name below it, and the
first two in ``measure``.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

NAME = "rocm_autopatch"
# A room imports only from those before it.
ORDER = (
    *("__init__", "failure", "late_site", "trust", "policy_dirs", "plan", "support"),
    *("startup", "image", "evidence"),
    "switches",
    *(
        "graphs",
        "patches",
        "fresh_interpreter",
        "compiling_gpu",
        "policy",
        "record",
        "compile_report",
        "caches",
        "probe",
    ),
    *("measure", "measure.ab", "measure.prove", "measure.tune", "cli", "__main__"),
)
# A start imports these from rooms that come later, in a function, when it needs them.
# docs/design.md has the same list.
BACK_UP = {
    ("__init__", "late_site"),
    ("__init__", "startup"),
    ("__init__", "record"),
    ("__init__", "compile_report"),
    ("startup", "patches"),
    ("startup", "image"),
    ("startup", "evidence"),
    ("startup", "policy"),
}


def modules() -> dict[str, Path]:
    """Each module of the package and its file."""
    found = {}
    for file in (ROOT / NAME).rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def imports(node: ast.AST, lazy: bool = False) -> Iterator[tuple[str, bool]]:
    """Each module of ours that is imported, and whether in a function; not if TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and getattr(child.test, "id", "") == "TYPE_CHECKING":
            continue
        names = []
        if isinstance(child, ast.Import):
            names = [alias.name for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            assert child.module, ast.unparse(child)
            inner = [f"{child.module}.{alias.name}" for alias in child.names]
            names = [name if name in MODULES else child.module for name in inner]
        yield from ((name, lazy) for name in names if name.partition(".")[0] == NAME)
        inside = lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from imports(child, inside)


def edges() -> Iterator[tuple[str, str, bool]]:
    """Who imports what, and whether in a function."""
    for module, file in MODULES.items():
        for name, lazy in imports(ast.parse(file.read_text(encoding="utf-8"))):
            if name != module:
                yield module, name, lazy


def room(module: str) -> str:
    parts = [*module.split("."), "__init__"]
    return ".".join(parts[1:3]) if parts[1] == "measure" and len(parts) > 3 else parts[1]


def test_each_module_has_its_place() -> None:
    assert {room(module) for module in MODULES} == set(ORDER)


def test_one_way() -> None:
    place = {name: number for number, name in enumerate(ORDER)}
    wrong = set()
    used = set()
    for module, name, lazy in edges():
        pair = (room(module), room(name))
        if place[pair[0]] < place[pair[1]]:
            used.add(pair)
            if pair not in BACK_UP or not lazy:
                wrong.add((module, name))
    assert not wrong
    assert used == BACK_UP


def test_no_circles() -> None:
    graph: dict[str, set[str]] = {}
    for module, name, _ in edges():
        # BACK_UP has the imports against the order.
        if (room(module), room(name)) not in BACK_UP:
            graph.setdefault(module, set()).add(name)
    graphlib.TopologicalSorter(graph).prepare()  # A CycleError names the modules.


def test_the_page_has_the_list() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    listed = re.findall(r"^- `(\w+)` imports ((?:`\w+`(?:, )?)+)", page, re.MULTILINE)
    assert {(one, other) for one, row in listed for other in re.findall(r"\w+", row)} == BACK_UP
