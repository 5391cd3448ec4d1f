"""What was found in a place, and what one reading tells of the cause.

Writes by sitecustomize, .pth files and frameworks are seen when they happen. investigation.py
compares readings for the rest.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rocm_autopatch.probe.answers import (
    ConfigWrite,
    FailedImport,
    PlainValue,
    VariableWrite,
)
from rocm_autopatch.probe.reading import ChildReading

VARIABLE, SITE, IMPORT, TORCH, UNSEEN = "variable", "site", "import", "torch", "unseen"


@dataclass(frozen=True)
class ValueCulprit:
    """What made a value differ. ``kind`` is one of the above.

    ``variables`` are NAME=VALUE. There are several if none of them alone makes the difference.
    ``file`` and ``line`` are the place of the write. ``by`` is the line of a .pth file or
    sitecustomize that led there. ``module`` is the module that was being imported.
    """

    kind: str
    variables: tuple[str, ...] = ()
    file: str = ""
    line: int = 0
    by: str = ""
    module: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def __str__(self) -> str:
        by = f", by {self.by}" if self.by else ""
        if self.kind == VARIABLE:
            where = f", set in {self.place}{by}" if self.file else ""
            return " and ".join(self.variables) + where
        if self.kind == TORCH:
            return f"torch's own source, {self.place}"
        what = f"import {self.module}" if self.kind == IMPORT else "a start-up file of this Python"
        if self.kind == SITE and self.file:
            return f"{self.place}{by}"
        return f"{what}, {self.place}{by}" if self.file else f"{what}; the place was not seen"


@dataclass(frozen=True)
class ImportCrash:
    """An import that fails: the error, and its cause: a variable (NAME=VALUE), SITE or TORCH.

    ``set_by`` is the place in a start-up file that set the variable; "" if it was set before.
    """

    module: str
    error: str
    file: str
    line: int
    culprit: str
    set_by: str = ""

    @property
    def variable(self) -> tuple[str, str]:
        """Name and value of the variable; two empty texts if the cause is not a variable."""
        name, equals, value = self.culprit.partition("=")
        return (name, value) if equals else ("", "")


@dataclass(frozen=True)
class ConfigDifference:
    """A config value that is not what this torch ships.

    ``thread`` is what a new thread reads, which may be another value.
    """

    key: str
    shipped: object
    value: PlainValue
    thread: PlainValue
    culprit: ValueCulprit


@dataclass
class PlaceFindings:
    """What a place does to a process without us.

    ``first`` is what was read first, ``reading`` is without the variables that crash it.
    ``compared`` says what the values were compared with. ``clean`` has the values of torch itself,
    without variables and start-up files.
    """

    reading: ChildReading
    first: ChildReading
    clean: ChildReading | None = None
    differences: list[ConfigDifference] = field(default_factory=list)
    crashes: list[ImportCrash] = field(default_factory=list)
    compared: str = ""
    children: int = 0


def first_failure(seen: ChildReading) -> FailedImport | None:
    """The first failed import of torch or its config modules, if any."""
    return next((one for one in seen.failed if one["import"].split(".")[0] == "torch"), None)


def failure_identity(failed: FailedImport | None) -> tuple[str, str, str, int] | None:
    """What makes two failures the same."""
    return failed and (failed["import"], failed["error"], failed["file"], failed["line"])


def lacks_torch(seen: ChildReading) -> bool:
    failed = first_failure(seen)
    return bool(failed and failed.get("missing"))


def is_same_value(one: object, other: object) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def is_different(values: Mapping[str, object], key: str, value: object) -> bool:
    return key in values and not is_same_value(values[key], value)


def written_variables(seen: ChildReading) -> dict[str, VariableWrite]:
    """The variables that start-up files and frameworks set, each with its last write."""
    root = str(Path(str(seen.torch.get("file", "/"))).parent) + "/"
    return {
        write["name"]: write
        for write in seen.found.get("env_writes", ())
        if not (root != "//" and write["file"].startswith(root))
    }


def last_write(seen: ChildReading, key: str) -> ConfigWrite | None:
    """The write that a config value comes from, if one was seen."""
    reads = (seen.values[key], seen.threads.get(key, seen.values[key]))
    for write in reversed(seen.found["writes"]):
        if write["name"] == key and any(is_same_value(write["value"], value) for value in reads):
            return write
    return None


def blame_write(seen: ChildReading, write: ConfigWrite) -> ValueCulprit:
    root = str(Path(str(seen.torch["file"])).parent) + "/"
    kind, _, module = write["stage"].partition(" ")
    if module == "torch":
        # A start-up file may have installed a hook that waits for torch.
        kind = TORCH if write["file"].startswith(root) else SITE
    return ValueCulprit(kind, (), write["file"], write["line"], write["by"], module)


def find_assignment(file: str, key: str) -> int:
    """The line of a config module's source that sets *key* last; 0 if it isn't found."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return 0
    return max((line for name, line in _iter_assigned(tree.body, "") if name == key), default=0)


def _iter_assigned(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, int]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _iter_assigned(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, (ast.If, ast.Try)):
            yield from _iter_assigned([*statement.body, *statement.orelse], prefix)
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, (ast.Name, ast.Attribute)):
                    yield f"{prefix}{ast.unparse(target)}", statement.lineno
