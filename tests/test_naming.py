"""What tools/naming.py counts, and what it does not count."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import naming

FOLDERS = (
    *("benchmarks", "demo", "deploy", "experiments", "overlay", "rocm_autopatch"),
    *("sitecustomize_stub", "surroundings", "tests", "tools"),
)
SOURCES = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py*"))


def count(directory: Path, **files: str) -> naming.Figures:
    for name, text in files.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".py").write_text(text)
    return naming.measure(directory)


def test_every_file_can_be_read_with_its_type_comments() -> None:
    """A comment that is a type where no type can be keeps such tools from the whole file."""
    for path in (ROOT / "setup.py", *SOURCES):
        if path.suffix in (".py", ".pyi"):
            ast.parse(path.read_text(encoding="utf-8"), str(path), type_comments=True)


def test_a_wrong_type_comment_is_found(tmp_path: Path) -> None:
    with pytest.raises(SyntaxError):
        count(tmp_path, a="_RECORD = {  # type: dict[str, int]\n}\n")


def test_words(tmp_path: Path) -> None:
    found = count(
        tmp_path,
        a="class Graph:\n    def run(self): pass\n    def _run(self):\n        def inner(): pass\n",
        b="async def run_once(): pass\nclass GraphCache: pass\nclass YAMLReader: pass\n",
    )
    assert [one.name for one in found.one_word()] == ["Graph", "run", "_run", "inner"]
    assert found.one_word_share() == pytest.approx(100 * 4 / 7)


def test_several_files(tmp_path: Path) -> None:
    text = "def run(): pass\n"
    found = count(
        tmp_path, a=text + "class A:\n    run = 1\n    def held(self): pass\n" * 2, b=text
    )
    assert found.several_files() == {"run": ["a.py", "b.py"]}
    assert found.several_files_share() == pytest.approx(100 / 3)
    assert list(naming.offenders(found)) == [
        "a.py: 5 of 5",
        *("  1: run, also in b.py", "  2: A", "  4: held", "  5: A", "  7: held"),
        *("b.py: 1 of 1", "  1: run, also in a.py"),
    ]


def test_names_that_others_chose(tmp_path: Path) -> None:
    found = count(
        tmp_path,
        a="class A(io.TextIOBase):\n    def __init__(self): pass\n    def write(self): pass\n"
        "    def told(self):\n        def write(): pass\n",
        b="def find_spec(): pass\nclass B:\n    def write(self): pass\n",
    )
    assert [(one.name, one.line) for one in found.definitions] == [
        *(("A", 1), ("told", 4), ("write", 5), ("B", 2), ("write", 3)),
    ]


def test_each_name_that_others_chose_is_there() -> None:
    text = "".join(path.read_text() for path in naming.PACKAGE.rglob("*.py"))
    names = {name for row in naming.FIXED.values() for name in row}
    assert not [name for name in names if f"def {name}(" not in text]


def test_any(tmp_path: Path) -> None:
    found = count(
        tmp_path,
        graphs__one="from typing import Any\n# Any\nNAME = 'Any'\nx: dict[str, Any] = {}\n",
        graphs__two="y: 'Any' = cast('Any', 1)\n" + "# no\n" * 4,
        plan="z = {}  # type: dict[Any, Any]\ndef run(a: 'list[Any]') -> 'typing.Any': pass\n",
    )
    assert dict(found.any_count) == {"graphs": 3, "plan": 4}
    assert dict(found.lines) == {"graphs": 9, "plan": 2}
    lines = list(naming.table(found))
    assert lines[2] == "| functions and classes whose name is one word | 100 % | 35 % |"
    assert lines[4:] == [
        "| `Any` in 1,000 lines of `plan` | 2000 | 20 |",
        "| `Any` in 1,000 lines of `graphs` | 333 | 40 |",
    ]
