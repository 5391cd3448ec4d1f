"""A long program that a test or an experiment runs is a file, which ruff reads, and no literal."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

# A literal may have so many lines: what a reader takes in at a glance.
LONGEST = 10
SOURCES = sorted(path for name in ("tests", "experiments") for path in (ROOT / name).rglob("*.py"))
# What YAML or a table has none of, though it may parse.
DOES_SOMETHING = (ast.Assign, ast.Call, ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the text of each string that is no docstring; x stands for what is put in."""
    skipped = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Expr):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(map(id, ast.walk(node)))
            parts = [one.value if isinstance(one, ast.Constant) else "x" for one in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def is_program(text: str) -> bool:
    """Whether a text is Python that does something, perhaps after % has put something in."""
    try:
        tree = ast.parse(textwrap.dedent(re.sub("%[rsd]", "x", text)))
    except (SyntaxError, ValueError):
        return False
    return any(isinstance(node, DOES_SOMETHING) for node in ast.walk(tree))


def long_programs(source: str) -> list[tuple[int, int]]:
    """The line of each long program in a literal, and how many lines it has."""
    return [
        (line, length)
        for line, text in literals(ast.parse(source))
        if (length := text.strip("\n").count("\n") + 1) > LONGEST and is_program(text)
    ]


def test_long_programs_are_files() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: a program of {length} lines in a literal"
        for path in SOURCES
        for line, length in long_programs(path.read_text(encoding="utf-8"))
    ]
    assert found == [], "make each a file in programs/, see tests/programs/__init__.py"


BODY = "import os\n" + "print(os.name)\n" * LONGEST


@pytest.mark.parametrize(
    "source",
    [
        f"CODE = '''\n{BODY}'''\n",
        f"def test():\n    '''A docstring.'''\n    call(f'''\n{BODY}print({{1}})\n''')\n",
        f"CODE = '''\n{textwrap.indent(BODY, '    ')}'''\n",
        f"CODE = '''\n{BODY}print(%r)\n''' % 1\n",
        "CODE = (\n"
        + "".join(f"    {line!r}\n" for line in BODY.splitlines(keepends=True))
        + ")\n",
    ],
    ids=["plain", "f-string", "indented", "percent", "lines"],
)
def test_each_kind_is_found(source: str) -> None:
    assert [length for _, length in long_programs(source)] in ([LONGEST + 1], [LONGEST + 2])


@pytest.mark.parametrize(
    "source",
    [
        f"'''A docstring.\n\n{BODY}'''\n",
        f"CODE = '''{BODY.partition(chr(10))[2]}'''\n",
        "POLICY = '''\nversion: 1\nextends: []\n" + "name: team\n" * LONGEST + "'''\n",
        "TEXT = '''\n" + "A sentence of a message.\n" * (LONGEST + 1) + "'''\n",
    ],
    ids=["docstring", "ten lines", "YAML", "text"],
)
def test_nothing_else_is_found(source: str) -> None:
    assert long_programs(source) == []
