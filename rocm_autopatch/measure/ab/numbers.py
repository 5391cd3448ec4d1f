"""The numbers that a program prints, each with a label and a unit.

The label of a number identifies it in other runs. It is the words before the number on its line,
from the last comma or bar on, or its path in a line of JSON. If a label is printed several times,
the last number counts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rocm_autopatch.measure.ab import WrongRequest

WALL = "wall time"
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_NUMBER = re.compile(
    rf"([-+]?(?:{_DIGITS}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
    r"([%xX]|[a-zA-Z\u00b5\u03bc]{1,8}(?:/[a-zA-Z]{1,8})?)?"
)
_UNIT = re.compile(r"%|[a-zA-Z\u00b5\u03bc]{1,8}(?:\^?[23])?(?:/[a-zA-Z]{1,8})?")
_UNIT_IN_LABEL = re.compile(r"\s*[(\[]([a-zA-Z\u00b5\u03bc%]{1,8}(?:/[a-zA-Z]{1,8})?)[)\]]$")
# Words of a log line that are not about the number: levels, times, file:line.
_ASIDE = re.compile(r"\W*(?:DEBUG|INFO|WARNING|ERROR)\W*|[^a-zA-Z]*|.*:\d+\W*")
# A comma, a bar or the next NAME=VALUE ends a part of a line.
_PART = re.compile(r"[,;](?=\s|$)|\||\s(?=[^\s=]+=[^\s=])")
_LONGEST_LABEL = 60
# Characters that may be around a number or a unit.
_AROUND = "()[],.;"


@dataclass(frozen=True)
class NumberLabel:
    """What a number measures: its label, and its unit if one was printed."""

    name: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True)
class NumberPattern:
    """A regular expression with one group, which is the number."""

    name: str
    pattern: re.Pattern[str]

    def find(self, text: str) -> float | None:
        """The last number that matches in *text*."""
        found = None
        for match in self.pattern.finditer(text):
            value = _parse_number(match[1]) if match[1] is not None else None
            found = found if value is None else value
        return found


def parse_pattern(text: str) -> NumberPattern:
    """The pattern in ``REGEX``; a named group names the metric. Raises Wrong."""
    try:
        compiled = re.compile(text, re.MULTILINE)
    except re.error as error:
        raise WrongRequest(f"--number {text}: {error}") from None
    if compiled.groups != 1:
        raise WrongRequest(
            f"--number {text}: it needs exactly one group in parentheses, which is the number"
        )
    return NumberPattern(next(iter(compiled.groupindex), text), compiled)


def find_numbers(
    stdout: str, stderr: str = "", patterns: Sequence[NumberPattern] = ()
) -> dict[NumberLabel, float]:
    """The numbers that a run printed: those of *patterns*, or without patterns all with a label.

    A pattern is searched in stdout, and then in stderr if stdout does not have it.
    """
    if not patterns:
        return dict(_labelled_numbers(stdout))
    found = {}
    for one in patterns:
        value = one.find(stdout)
        if value is None:
            value = one.find(stderr)
        if value is not None:
            found[NumberLabel(one.name)] = value
    return found


def _labelled_numbers(text: str) -> Iterator[tuple[NumberLabel, float]]:
    document = _json_in_text(text)
    if document is not None:
        yield from _number_leaves("", document)
        return
    for line in text.splitlines():
        document = _json_in_text(line)
        if document is not None:
            yield from _number_leaves("", document)
            continue
        for part in _PART.split(line):
            yield from _in_words(part)


def _json_in_text(text: str) -> Any:
    """The mapping or list in a text; None if it has none."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _number_leaves(path: str, node: Any) -> Iterator[tuple[NumberLabel, float]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _number_leaves(f"{path}.{key}" if path else str(key), value)
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _number_leaves(f"{path}[{index}]", value)
    elif isinstance(node, (int, float)) and not isinstance(node, bool) and math.isfinite(node):
        yield NumberLabel(path), float(node)


def _in_words(part: str) -> Iterator[tuple[NumberLabel, float]]:
    words = part.replace("=", ": ").split()
    label: list[str] = []
    place = -1
    while place + 1 < len(words):
        place += 1
        match = _NUMBER.fullmatch(words[place].strip("()[]{}<>:'\"").rstrip(".,;"))
        value = _parse_number(match[1]) if match else None
        if not match or value is None:
            label.append(words[place])
            continue
        name, unit = _plain_label(label), match[2] or ""
        label.append("#")
        if not unit and _is_unit(words[place + 1 : place + 3]):
            place += 1
            unit = words[place].strip(_AROUND)
        inside = _UNIT_IN_LABEL.search(name)
        if inside:
            name = name[: inside.start()]
            unit = unit or inside[1]
        named = re.search("[a-zA-Z]", name) and not name.endswith("pid")
        if named and len(name) <= _LONGEST_LABEL:
            yield NumberLabel(name, unit), value


def _is_unit(following: Sequence[str]) -> bool:
    """Whether the first word after a number is its unit, as in "3.2 s" and not in "step 3 took"."""
    if not following or not _UNIT.fullmatch(following[0].strip(_AROUND)):
        return False
    after = following[1] if len(following) > 1 else ""
    number = _NUMBER.fullmatch(after.strip(_AROUND))
    return bool(not after or number or after.endswith(":") or "/" in following[0])


def _plain_label(label: Sequence[str]) -> str:
    """A label without the times, process numbers and levels of a log."""
    if label and label[-1].endswith(":") and "#" in label:
        label = label[len(label) - label[::-1].index("#") :]  # "p50: 3 p99: 7"
    words = [word.rstrip(":") for word in label if word == "#" or not _ASIDE.fullmatch(word)]
    while words and words[0] == "#":
        words.pop(0)
    return " ".join(words)


def _parse_number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
