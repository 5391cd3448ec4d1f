"""How easily a reader finds a name of the package: how many names are one word, how many stand in
several files, and how often a type is Any.

python tools/naming.py                    the figures, and the names behind them, file by file
python tools/naming.py CONTRIBUTING.md    write the figures into the page

What counts:

- A definition is a ``def`` or a ``class`` anywhere in a file of ``rocm_autopatch/``: functions,
  functions in functions, methods, properties, classes. Variables, arguments and modules don't
  count.
- Names that Python fixes (``__enter__``) and those that ``FIXED`` lists don't count: others chose
  them.
- Words are what underscores and capitals separate. Underscores before a name don't count:
  ``_run`` and ``Graph`` are one word, ``run_once`` and ``GraphCache`` are two.
- One word: its share of all definitions of functions and classes, methods among them.
- Several files: the share of different names that are defined in more than one file, with the
  underscores before them (``run`` and ``_run`` are two names).
- ``Any``: how often it stands in a type or a cast, also in a text or a comment that is a type, for
  each 1,000 lines of a room. A room is a module or folder of the package, as in
  tests/test_imports.py.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "rocm_autopatch"
BEGIN, END = "<!-- These figures are made by make docs. -->\n", "<!-- End of the figures. -->\n"
# In percent, and for each 1,000 lines: what the figures shall come below.
ONE_WORD_AIM, SEVERAL_FILES_AIM = 35, 8
ANY_AIM, ANY_AIM_NEAR_TORCH, NEAR_TORCH = 20, 40, ("graphs", "patches")
# Names that an outside protocol fixes, by the last name of a base class that has them; those by ""
# count as fixed in every place, because what calls them asks for no class.
FIXED = {
    "": ("find_spec", "exec_module"),  # importlib
    "ArgumentParser": ("error",),
    "Module": ("forward",),  # torch.nn
    "ModuleSpec": ("loader",),
    "RawIOBase": ("read",),
    "TextIOBase": ("encoding", "fileno", "flush", "isatty", "writable", "write"),
    "TorchDispatchMode": ("is_infra_mode",),
    "dict": ("update",),
}


@dataclass(frozen=True)
class Definition:
    """A function, method or class. ``file`` is below the package; ``line`` counts from 1."""

    name: str
    file: str
    line: int

    @property
    def is_one_word(self) -> bool:
        return len(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", self.name)) == 1


@dataclass
class Figures:
    """What was counted. ``any_count`` and ``lines`` have a number for each room."""

    definitions: list[Definition] = field(default_factory=list)
    any_count: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lines: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def one_word(self) -> list[Definition]:
        return [one for one in self.definitions if one.is_one_word]

    def several_files(self) -> dict[str, list[str]]:
        """Each name that is defined in more than one file, and these files."""
        files: dict[str, set[str]] = defaultdict(set)
        for one in self.definitions:
            files[one.name].add(one.file)
        return {name: sorted(found) for name, found in sorted(files.items()) if len(found) > 1}

    def one_word_share(self) -> float:
        """In percent."""
        return 100 * len(self.one_word()) / len(self.definitions)

    def several_files_share(self) -> float:
        """In percent."""
        return 100 * len(self.several_files()) / len({one.name for one in self.definitions})

    def any_rate(self, room: str) -> float:
        """How often Any stands in a room, for each 1,000 lines."""
        return 1000 * self.any_count[room] / self.lines[room]


def measure(package: Path = PACKAGE) -> Figures:
    """The figures of all Python files below *package*. Raises SyntaxError if one is not valid."""
    found = Figures()
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package)
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, type_comments=True)
        room = file.parts[0].removesuffix(".py")
        found.definitions += _definitions(tree, (), str(file))
        found.any_count[room] += sum(_any_count(node) for node in ast.walk(tree))
        found.lines[room] += text.count("\n")
    return found


def _definitions(node: ast.AST, bases: tuple[str, ...], file: str) -> Iterator[Definition]:
    for child in ast.iter_child_nodes(node):
        inner = bases
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name, dunder = child.name, re.fullmatch(r"__\w+__", child.name)
            if not dunder and not any(name in FIXED.get(base, ()) for base in ("", *bases)):
                yield Definition(name, file, child.lineno)
            inner = ()
            if isinstance(child, ast.ClassDef):
                inner = tuple(ast.unparse(base).rpartition(".")[2] for base in child.bases)
        yield from _definitions(child, inner, file)


def _any_count(node: ast.AST) -> int:
    """How often a node itself says Any: as a name, in a comment, or in a text that is a type."""
    if isinstance(node, ast.Name):
        return node.id == "Any"
    if isinstance(node, ast.Attribute):
        return node.attr == "Any"
    texts = [getattr(node, "type_comment", None)]
    types = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "cast":
        types += node.args[:1]
    for one in filter(None, types):
        texts += [getattr(part, "value", None) for part in ast.walk(one)]
    return sum(len(re.findall(r"\bAny\b", text)) for text in texts if isinstance(text, str))


def any_aim(room: str) -> int:
    return ANY_AIM_NEAR_TORCH if room in NEAR_TORCH else ANY_AIM


def table(found: Figures) -> Iterator[str]:
    """The lines of the table in the page: both shares, and the rooms that say Any too often."""
    yield "| measure | now | aim: below |"
    yield "|---|---:|---:|"
    share = found.one_word_share()
    yield f"| functions and classes whose name is one word | {share:.0f} % | {ONE_WORD_AIM} % |"
    share = found.several_files_share()
    yield f"| names that are defined in several files | {share:.0f} % | {SEVERAL_FILES_AIM} % |"
    rates = {room: round(found.any_rate(room)) for room in found.lines}
    for room, rate in sorted(rates.items(), key=lambda row: (-row[1], row[0])):
        if rate >= any_aim(room):
            yield f"| `Any` in 1,000 lines of `{room}` | {rate} | {any_aim(room)} |"


def page(text: str, found: Figures) -> str:
    """The text of the page with these figures. Raises ValueError if it has no place for them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return before + begin + "".join(f"{line}\n" for line in table(found)) + end + after


def offenders(found: Figures) -> Iterator[str]:
    """The names of one word or of several files, file by file, the file with most first."""
    several = found.several_files()
    files: dict[str, list[Definition]] = defaultdict(list)
    for one in found.definitions:
        if one.is_one_word or one.name in several:
            files[one.file].append(one)
    for file, named in sorted(files.items(), key=lambda row: (-len(row[1]), row[0])):
        total = sum(one.file == file for one in found.definitions)
        yield f"{file}: {len(named)} of {total}"
        for one in named:
            others = [other for other in several.get(one.name, ()) if other != file]
            where = f", also in {' '.join(others)}" if others else ""
            yield f"  {one.line}: {one.name}{'' if one.is_one_word else ' (words)'}{where}"


def main(arguments: Sequence[str]) -> None:
    found = measure()
    if not arguments:
        print(*table(found), "", *offenders(found), sep="\n")
    for name in arguments:
        path = Path(name)
        path.write_text(page(path.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
