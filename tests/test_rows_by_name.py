"""Rows of a plan are read by the names of their fields, and what is a patch's own stands in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch import patches, plan
from rocm_autopatch.policy import document, load, lower, schema
from tests.conftest import ROOT

PACKAGE = ROOT / "rocm_autopatch"
# What the sources call a row of a plan, or what a baked plan says of a file.
ROWS = {"row", "rule", "entry", "was"}
# Rows of these are others.
OTHERS = {"caches", "compile_report", "evidence", "graphs", "image", "measure", "probe"}
EVERY_PART = b"""\
version: 1
env: {A: {set: b, since: '2.6', why: w}, B: {delete_empty: true}}
config: {torch._inductor.config: {max_autotune: {pin: true, switch: S}, freezing: {set: true}}}
compile_modes: {lite: graphs}
patches: {capture: {use: guard}, watchdog: {warn_after: 5, until: '2.9'}}
caches: /srv/caches
"""


def sources() -> Iterator[tuple[Path, ast.Module]]:
    """Each file of the package."""
    for path in PACKAGE.rglob("*.py"):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text(encoding="utf-8"))


def numbered(tree: ast.Module) -> Iterator[int]:
    """The line of each row of which a field is read by its number."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in ROWS:
            bounds = [node.slice]
            if isinstance(node.slice, ast.Slice):
                bounds = [bound for bound in (node.slice.lower, node.slice.upper) if bound]
            numbers = (ast.walk(bound) for bound in bounds)
            if any(isinstance(getattr(one, "value", None), int) for few in numbers for one in few):
                yield node.lineno


def compared(tree: ast.Module, name: str) -> Iterator[int]:
    """The line of each comparison with a text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            if any(getattr(side, "value", None) == name for side in sides):
                yield node.lineno


def test_no_row_is_read_by_a_number() -> None:
    found = [
        f"{path}:{line}"
        for path, tree in sources()
        if path.parts[0] not in OTHERS
        for line in numbered(tree)
    ]
    assert found == []


def test_the_patch_of_config_is_asked_for_nowhere_else() -> None:
    own = Path("patches", "config")
    found = [
        f"{path}:{line}"
        for path, tree in sources()
        if own not in path.parents
        for line in compared(tree, "config")
    ]
    assert found == []


@pytest.mark.parametrize("text", ["row[0]", "rule[-1]", "was[:-4]", "[entry[1] for entry in x]"])
def test_a_number_is_seen(text: str) -> None:
    assert list(numbered(ast.parse(text))) == [1]
    assert not list(numbered(ast.parse("row['name'], rows[0], row[name]")))


def test_a_comparison_is_seen() -> None:
    assert list(compared(ast.parse("name == 'config'"), "config")) == [1]
    assert not list(compared(ast.parse("report['config'] == name"), "config"))


def test_each_row_has_the_fields_that_are_named() -> None:
    policy = schema.read_policy(document.parse(EVERY_PART, "f"), "f", "f")
    parts = [lower.lower([policy]), *(lower.lower(load.layers(load.top(n))) for n in load.names())]
    for made in parts:
        rows: list[tuple[tuple[str, ...], tuple[Any, ...]]]
        rows = [(plan.ENV_FIELDS, row) for row in (*made["env"], *made["empty"])]
        rows += [(plan.OVERRULED_FIELDS, row) for row in made["overruled"]]
        rows += [(plan.CACHES_FIELDS, row) for row in made["caches"]]
        for name, _, entries in made["patches"]:
            fields = (*patches.load(name).FIELDS, *plan.RANGE_FIELDS)
            rows += [(fields, entry) for entry in entries]
        for fields, row in rows:
            named = plan.named_fields(fields, row)
            assert len(row) == len(fields) == len(named), row
            assert all(isinstance(named[end], tuple) for end in plan.RANGE_FIELDS), row
    (caches,) = parts[0]["caches"]
    assert plan.named_fields(plan.CACHES_FIELDS, caches)["use"] == "/srv/caches"
    assert all(parts[0][key] for key in ("env", "empty", "overruled", "patches"))
