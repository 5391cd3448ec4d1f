"""A YAML text as a tree of nodes that know their place, so that every error can name it.

Safe YAML only, and less of it: no aliases (a few lines of them expand to gigabytes), no duplicate
keys (PyYAML keeps the last without a word), string keys, bounded size and depth.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

from rocm_autopatch.policy.problem import PolicyError, Problem

try:
    import yaml
except ImportError:
    # An overlay installs the wheel alone; the built-in policies need no YAML at start.
    raise ImportError("PyYAML is not installed here, and reading a policy needs it") from None

MAX_BYTES = 1 << 20
MAX_DEPTH = 32

Value = Union[None, bool, int, float, str, "list[Node]", "dict[str, Entry]"]


@dataclass(frozen=True)
class Node:
    """A value and where it starts, line and column counted from 1."""

    value: Value
    line: int
    column: int


@dataclass(frozen=True)
class Entry:
    """A mapping's key, as a node for its place, and what it maps to."""

    key: Node
    node: Node


def read(file: Path) -> Node:
    """The document in *file*; raises PolicyError if it can't be read or is not such YAML."""
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _error(str(file), f"can't be read: {error.strerror or error}") from error
    # It decides what every Python process of the image does.
    if mode & stat.S_IWOTH:
        raise _error(str(file), "everybody may write it: chmod o-w")
    return parse(data, str(file))


def parse(data: bytes, name: str) -> Node:
    """The document in *data*, called *name* in errors; raises PolicyError."""
    if len(data) > MAX_BYTES:
        raise _error(name, f"larger than {MAX_BYTES} bytes")
    try:
        loader = _Loader(data.decode("utf-8-sig"))
        try:
            root = loader.get_single_node()
            if root is None:
                raise _error(name, "the file is empty")
            problems: list[Problem] = []
            node = _convert(loader, root, name, "", problems)
        finally:
            loader.dispose()
    except UnicodeDecodeError as error:
        raise _error(name, f"not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        message = " ".join(filter(None, (error.context, error.problem)))
        raise PolicyError([Problem(name, *place, "", message)]) from error
    except yaml.YAMLError as error:
        raise _error(name, " ".join(str(error).split())) from error
    if problems:
        raise PolicyError(problems)
    return node


def _error(name: str, message: str) -> PolicyError:
    return PolicyError([Problem(name, 1, 1, "", message)])


def _refused(event: yaml.Event, problem: str) -> yaml.MarkedYAMLError:
    mark: Any = event.start_mark
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _refused(
                event, f"aliases are not allowed, write the value of *{event.anchor} out"
            )
        if self.depth >= MAX_DEPTH:
            raise _refused(event, f"nested deeper than {MAX_DEPTH} levels")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _convert(loader: _Loader, node: Any, name: str, path: str, problems: list[Problem]) -> Node:
    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    if isinstance(node, yaml.SequenceNode):
        items = [
            _convert(loader, item, name, f"{path}[{number}]", problems)
            for number, item in enumerate(node.value)
        ]
        return Node(items, line, column)
    if isinstance(node, yaml.MappingNode):
        return Node(_convert_mapping(loader, node, name, path, problems), line, column)
    try:
        value = loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: a timestamp such as 2026-02-30, which the resolver takes for a date
        problem = getattr(error, "problem", None) or str(error)
        problems.append(Problem(name, line, column, path, problem))
        value = None
    if not isinstance(value, (type(None), bool, int, float, str)):
        value = node.value  # dates and such: a policy has no use for them but as text
    return Node(value, line, column)


def _convert_mapping(
    loader: _Loader, node: Any, name: str, path: str, problems: list[Problem]
) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key_node, value_node in node.value:
        key = _convert(loader, key_node, name, path, problems)
        if not isinstance(key.value, str):
            message = f"expected a text as key, found {key_node.value!r}"
            if isinstance(key.value, bool):
                message += " (YAML reads on, off, yes and no as true and false: quote it)"
            problems.append(Problem(name, key.line, key.column, path, message))
            continue
        inner = f"{path}.{key.value}" if path else key.value
        if key.value in entries:
            first = entries[key.value].key.line
            problems.append(
                Problem(name, key.line, key.column, inner, f"given twice, first in line {first}")
            )
            continue
        entries[key.value] = Entry(key, _convert(loader, value_node, name, inner, problems))
    return entries
