"""Messages that a test expects whole. tests/__snapshots__ has their texts, one file for each test
file, so that whoever improves the wording finds them together. ``make messages`` renews them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from syrupy.extensions.amber import AmberDataSerializer, AmberSnapshotExtension

from tests.conftest import ROOT, Interpreter

if TYPE_CHECKING:
    from syrupy.assertion import SnapshotAssertion
    from syrupy.location import PyTestLocation

NOTHING = "(nothing)"
# What differs from run to run, or from one Python to the next.
UNSTABLE = [
    (re.compile(r"lib/python3\.\d+"), "lib/python<VERSION>"),
    (re.compile(r"cpython-3\d+"), "cpython-<VERSION>"),
    (re.compile(r"\bPython 3\.\d+(\.\d+)?"), "Python <VERSION>"),
    (re.compile(r"\b(process|pid) \d+"), r"\1 <PID>"),
]
PYTHON = re.compile(r"(?<=[\[-])3\.\d+(-|(?=\]))")


class PlainText(AmberDataSerializer):
    """A text as it is, where syrupy would write the repr of a string."""

    VERSION = "plain-text"

    @classmethod
    def serialize(cls, data: Any, **_: Any) -> str:
        return str(data)


class OneForAllPythons(AmberSnapshotExtension):
    serializer_class = PlainText

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: int | str = 0) -> str:
        """Without the version of Python that the test is parametrized with."""
        name = super().get_snapshot_name(test_location=test_location, index=index)
        return PYTHON.sub("", name).replace("-]", "]").replace("[]", "")


def stable(text: str, paths: dict[str, str]) -> str:
    for path in sorted(paths, key=len, reverse=True):
        text = text.replace(path, paths[path])
    for pattern, name in UNSTABLE:
        text = pattern.sub(name, text)
    return text.removesuffix("\n") or NOTHING


def line_on(text: str, word: str) -> str:
    """The line of *text* that has *word*; no other line may have it."""
    (line,) = [line for line in text.splitlines() if word in line]
    return line


class Golden:
    """Compares texts with those on file."""

    def __init__(self, snapshot: SnapshotAssertion, arguments: dict[str, Any]) -> None:
        self._snapshot = snapshot.use_extension(OneForAllPythons)
        self._arguments = arguments

    def __call__(self, text: str, name: str | None = None, **paths: object) -> None:
        """*name* tells the texts of one test apart. FILE=path shows *path* as <FILE>."""
        known = {str(ROOT): "<CHECKOUT>"}
        for argument, value in self._arguments.items():
            if isinstance(value, Interpreter):
                known[str(value.path.parent.parent)] = "<ENVIRONMENT>"
            elif argument == "tmp_path":
                known[str(value)] = "<DIRECTORY>"
        known.update({str(path): f"<{shown}>" for shown, path in paths.items()})
        assert stable(text, known) == self._snapshot(name=name)
