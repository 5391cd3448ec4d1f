"""What a wheel leaves out of the package's sources: what no program reads.

That is comments, docstrings, and types of arguments, results and what functions assign, with their
imports. They are a quarter of the wheel, and a start pays for the imports. Code keeps its lines, so
a traceback's numbers are those of the repository, which has the whole text.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

_FOR_TYPES = "TYPE_CHECKING"
# What users call: help() shows all of it.
PUBLIC = ("__init__.py", "graphs/__init__.py", "graphs/wrapper.py")


class LeanSourceError(Exception):
    """The code would be another one. It is a defect of this module."""


def lean_source(source: str, public: bool = False) -> str:
    """A module's *source* without comments, and unless it is *public* also without other things.

    Those are docstrings, annotations of and in functions, and what is under ``if TYPE_CHECKING:``.
    An annotation stays that has more than one line. Comments stay that state types, for mypy. Of
    the module's docstring, the first paragraph stays: commands print some. A docstring stays that
    is all that a class or function has.
    """
    lines = source.splitlines(keepends=True)
    for row, column in _comments(source):
        lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    if not public:
        tree = ast.parse(source)
        for row, first, last in sorted(_annotations(tree, lines), reverse=True):
            # Columns are counted in bytes.
            line = lines[row - 1].encode()
            lines[row - 1] = (line[:first] + line[last:]).decode()
        for unread in (*_unread_texts(tree), *_for_types(tree)):
            last = unread.end_lineno or unread.lineno
            lines[unread.lineno - 1 : last] = ["\n"] * (last - unread.lineno + 1)
        _shorten_first(tree, lines, source)
    lean = "".join(lines)
    if _code(lean) != _code(source):
        raise LeanSourceError("the code without its comments is not the same code")
    return lean


def lean_cpp(source: str) -> str:
    """C++ without the comments that have lines of their own; code keeps its lines."""
    return re.sub(r"^[ \t]*//.*$", "", source, flags=re.MULTILINE)


def lean_yaml(source: str) -> str:
    """YAML without the comments that have lines of their own; the rest keeps its lines."""
    return re.sub(r"^[ \t]*#.*$", "", source, flags=re.MULTILINE)


def _comments(source: str) -> Iterator[tuple[int, int]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# type:"):
            yield token.start


def _annotations(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, int, int]]:
    """The row of each annotation of a function, and from and to which columns it goes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            name = node.col_offset + len(node.arg.encode())
            if node.lineno == node.annotation.end_lineno:
                yield node.lineno, name, node.annotation.end_col_offset or name
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns:
            row, to = node.returns.lineno, node.returns.end_col_offset
            before = lines[row - 1].encode()[: node.returns.col_offset]
            if row == node.returns.end_lineno and before.rstrip(b" (").endswith(b"->"):
                yield row, len(before[: before.rindex(b"->")].rstrip()), to or 0
    for one in _typed_assignments(tree):
        row, to = one.annotation.lineno, one.annotation.end_col_offset or 0
        name = one.target.end_col_offset or 0
        line = lines[row - 1].encode()
        is_plain = line[name : one.annotation.col_offset].strip() == b":"
        if is_plain and row == one.target.lineno and line[to:].startswith(b" ="):
            yield row, name, to


def _typed_assignments(node: ast.AST, inside: bool = False) -> Iterator[ast.AnnAssign]:
    """Those of functions that assign something: nobody can read these types. A class keeps its."""
    for child in ast.iter_child_nodes(node):
        if inside and isinstance(child, ast.AnnAssign) and child.value:
            yield child
        is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
        yield from _typed_assignments(
            child, is_function or (inside and not isinstance(child, ast.ClassDef))
        )


def _is_text(node: ast.AST) -> bool:
    """Whether it is a statement that is nothing but a string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _for_types(tree: ast.Module) -> Iterator[ast.stmt]:
    """The blocks that run nowhere, and the name of their condition if nothing else reads it."""
    blocks = [one for one in tree.body if _is_for_types(one)]
    yield from blocks
    names = [one for one in ast.walk(tree) if isinstance(one, ast.Name) and one.id == _FOR_TYPES]
    yield from (one for one in tree.body if _is_condition(one) and len(names) == len(blocks) + 1)


def _is_condition(node: ast.AST) -> bool:
    """Whether it is ``TYPE_CHECKING = False``, which type checkers take for true."""
    return isinstance(node, ast.Assign) and ast.unparse(node) == f"{_FOR_TYPES} = False"


def _is_for_types(node: ast.AST) -> bool:
    """Whether it is a block that runs nowhere: ``if TYPE_CHECKING:`` without an ``else``."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == _FOR_TYPES
        and not node.orelse
    )


def _unread_texts(tree: ast.Module) -> Iterator[ast.stmt]:
    """The docstrings of classes, functions and attributes, but where there is nothing else."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and len(body) > 1:
            module = isinstance(node, ast.Module)
            yield from (one for one in body[module:] if _is_text(one))


def _shorten_first(tree: ast.Module, lines: list[str], source: str) -> None:
    """Leave the first paragraph of the module's docstring."""
    first = tree.body[0] if tree.body and _is_text(tree.body[0]) else None
    text = ast.get_source_segment(source, first) if first else None
    if first is None or text is None or not text.startswith('"""') or "\n\n" not in text:
        return
    last = first.lineno + text[: text.index("\n\n")].count("\n")
    lines[last - 1] = lines[last - 1].rstrip() + '"""\n'
    lines[last : first.end_lineno] = ["\n"] * ((first.end_lineno or last) - last)


def _code(source: str) -> str:
    """The code with the lines where it begins, and without what may be left out, to compare."""
    tree = ast.parse(source)
    # A place for its type is no place for another statement.
    for one in [*_typed_assignments(tree)]:
        vars(one).pop("annotation")
        vars(one).update(targets=[vars(one).pop("target")], type_comment=None)
        vars(one).pop("simple")
        one.__class__ = ast.Assign  # type: ignore[assignment]
    for node in ast.walk(tree):
        # A class may have ended with a text, and what follows an annotation is in another column.
        for name in ("col_offset", "end_lineno", "end_col_offset"):
            vars(node).pop(name, None)
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        body = getattr(node, "body", None)
        if isinstance(body, list):
            left_out = (_is_text, _is_for_types, _is_condition)
            body[:] = [one for one in body if not any(is_one(one) for is_one in left_out)]
    return ast.dump(tree, include_attributes=True)
