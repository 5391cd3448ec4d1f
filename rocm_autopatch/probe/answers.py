"""What the interpreters of a probe answer, as JSON: the types of it.

child.py answers a ChildAnswer, scan.py a FileWords or FileMentions. Both run as scripts and import
nothing of ours, so only a type checker imports this module there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict, Union

if TYPE_CHECKING:
    from typing import Any

# A config value as child.py makes it plain: what JSON has, also in lists and dicts.
PlainValue = Union[None, bool, int, float, str, list["PlainValue"], dict[str, "PlainValue"]]


class WritingPlace(TypedDict):
    """The file and line that wrote, and the line of .pth or sitecustomize that led there."""

    file: str
    line: int
    by: str


class ConfigWrite(WritingPlace):
    """A write to a config value, and the stage of the process in which it was made."""

    name: str
    value: PlainValue
    stage: str


class VariableWrite(WritingPlace):
    """The same of a variable."""

    name: str
    value: str
    stage: str


class ConfigChange(TypedDict):
    """A config value that is another one after a stage."""

    name: str
    stage: str


class VariableRead(TypedDict):
    """FILE:LINE of the first read of a variable, and whether a config module reads it."""

    place: str
    config: bool


class ModuleValues(TypedDict):
    """The values of a config module."""

    file: str
    values: dict[str, PlainValue]


class ModuleReading(ModuleValues, total=False):
    """The same, with those values that differ in a new thread."""

    threads: dict[str, PlainValue]


_FailedPlace = TypedDict("_FailedPlace", {"import": str, "error": str, "file": str, "line": int})


class FailedImport(_FailedPlace, total=False):
    """An import that failed, and the variable that was read last before. ``missing``: no torch."""

    missing: bool
    last_read: str


class TorchFound(TypedDict, total=False):
    """The torch of a process; {} if there is none."""

    file: str
    version: str
    hip: str | None
    cuda: str | None


class ChildTaskText(TypedDict):
    """What a child is asked (``reading.ChildTask``)."""

    hook: bool
    site: bool
    without: list[str]
    imports: list[str]
    path: list[str]
    torch: bool


class ChildAnswer(TypedDict, total=False):
    """What a child found; {} if it died. ``report`` is that of our hook, None without it."""

    path: list[str]
    python: str
    torch: TorchFound
    modules: dict[str, ModuleReading]
    failed: list[FailedImport]
    changes: list[ConfigChange]
    writes: list[ConfigWrite]
    env_writes: list[VariableWrite]
    reads: dict[str, VariableRead]
    started: dict[str, str]
    environ: dict[str, str]
    installed: dict[str, str]
    report: Mapping[str, Any] | None


class _FileKind(TypedDict):
    kind: str
    words: list[str]


class FileWords(_FileKind, total=False):
    """What may be names of variables in a file (``scan.name_words``)."""

    asks: bool
    said: list[str]
    runs: list[str]
    prefixes: list[str]


# By name, the line of the first mention and its form. JSON makes a list of the two.
Mentions = dict[str, tuple[int, str]]


class FileMentions(TypedDict):
    """What a source does with the variables that it names (``scan.read_names``)."""

    reads: Mentions
    sets: Mentions
    named: Mentions


class NamesInCode(TypedDict):
    """Names that stand in the instructions of a library (``scan.find_in_code``)."""

    names: list[str]


class ScanTask(TypedDict):
    """What scan.py is asked: a job for each of some files."""

    job: str
    files: list[str]
    names: list[str]
