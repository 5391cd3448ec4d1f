"""A YAML text as a tree of nodes. Each node knows its place, so that every error can name it.

Less than YAML: no aliases (a few lines of them expand to gigabytes), no merge keys, no tags but
``!!str``, no duplicate keys (PyYAML silently keeps the last), string keys, bounded size and depth.
PyYAML parses. The type of a plain scalar is decided here: null, booleans, integers and
floating-point numbers as in YAML 1.1, and text for all else, including dates and sexagesimal
numbers (1:30).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Union, overload

from rocm_autopatch import trust
from rocm_autopatch.policy.problem import ERROR, Problem, Problems, collected, quoted

try:
    import yaml
except ModuleNotFoundError:
    # An overlay installs the wheel alone; the built-in policies need no YAML at start.
    raise ImportError("reading a policy needs PyYAML, which is not installed here") from None
except Exception as error:
    # A broken installation raises anything.
    why = f"{type(error).__name__}: {error}"
    raise ImportError(f"reading a policy needs PyYAML, which can't be imported: {why}") from error

# PyYAML takes 3 to 5 microseconds a character and 30 a value: with these limits the slowest
# document takes less than a second (tests/test_policy_limits.py). libyaml is ten times faster, but
# it is not in every PyYAML, and it refuses other documents with other messages. A policy that one
# place accepts must be accepted everywhere.
MAX_BYTES = 128 << 10
MAX_VALUES = 10_000
MAX_DEPTH = 32
# The longest key that YAML accepts without a question mark.
MAX_KEY = 1024
# 64 bits, with a sign or without
SMALLEST, LARGEST = -(1 << 63), (1 << 64) - 1
# Longer than any such number, and short enough to be converted
_LONGEST_NUMBER = 100


class _Wrong:
    """The value of a node that can't be read. The list of problems says why."""


WRONG = _Wrong()
Value = Union[None, bool, int, float, str, "list[Node]", "dict[str, Entry]", _Wrong]


# Not frozen, because a start that reads YAML makes thousands of these.
@dataclass(eq=False)
class Node:
    """A value and where it starts, line and column counted from 1."""

    value: Value
    line: int
    column: int


@dataclass(eq=False)
class Entry:
    """A mapping's key, as a node for its place, and what it maps to."""

    key: Node
    node: Node


def data(node: Node) -> Any:
    """The content of a document, without places."""
    if isinstance(node.value, list):
        return [data(item) for item in node.value]
    if isinstance(node.value, dict):
        return {key: data(entry.node) for key, entry in node.value.items()}
    return node.value


class Room:
    """How much may still be read. The limits are for all files of one start together."""

    def __init__(self) -> None:
        self.bytes = MAX_BYTES
        self.values = MAX_VALUES

    @property
    def shared(self) -> str:
        """What a message adds if other files have used some of it."""
        return " in all, with the files read before it" if self.bytes < MAX_BYTES else ""


def read(
    file: Path,
    problems: Problems | None = None,
    judgement: str = ERROR,
    room: Room | None = None,
) -> Node | None:
    """The document in *file*, None if there is none.

    Without *problems* to add to, raises PolicyError. *judgement* is the severity if others than
    root and this user can change the file: ERROR at a start, which would obey the file; REMARK
    where somebody only looks at it; "" for our own files, which are not judged.
    """
    name = str(file)
    with collected(problems) as found:
        try:
            data, objection = trust.look(name, MAX_BYTES + 1, judged=bool(judgement))
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            found.add(Problem(name, 0, 0, "", f"can't be read: {why}"))
            return None
        if objection:
            said = objection
            if judgement != ERROR:
                said = f"a start on this machine would not obey this file: {objection}"
            found.add(Problem(name, 0, 0, "", said, judgement))
        return parse(data, name, found, room)


@overload
def parse(data: bytes, name: str) -> Node: ...


@overload
def parse(data: bytes, name: str, problems: Problems, room: Room | None) -> Node | None: ...


def parse(
    data: bytes, name: str, problems: Problems | None = None, room: Room | None = None
) -> Node | None:
    """The document in *data*, called *name* in problems; None if there is none.

    Without *problems* to add to, raises PolicyError. What is wrong has WRONG as its value.
    """
    with collected(problems) as found:
        room = room or Room()
        if len(data) > room.bytes:
            found.add(_problem(name, f"larger than {MAX_BYTES} bytes{room.shared}"))
            return None
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            before = data[: error.start].decode("utf-8-sig")
            message = f"not UTF-8: {error.reason} at byte {error.start}"
            found.add(Problem(name, *_place(before), "", message))
            return None
        try:
            loader = yaml.SafeLoader(text)
        except yaml.reader.ReaderError as error:
            message = f"unacceptable character #x{ord(text[error.position]):04x}: {error.reason}"
            found.add(Problem(name, *_place(text[: error.position]), "", message))
            return None
        try:
            return _Composer(loader, name, found, room).document()
        finally:
            loader.dispose()
            room.bytes -= len(data)


def _problem(name: str, message: str) -> Problem:
    return Problem(name, 1, 1, "", message)


def _place(before: str) -> tuple[int, int]:
    """Line and column of what comes after *before*."""
    return before.count("\n") + 1, len(before) - before.rfind("\n")


class _End(Exception):
    """The rest can't be read. The list of problems says why."""


class _Open(NamedTuple):
    """A collection whose end has not come yet, the event it began with, and the key before a value:
    as a node, and as a text, None if it is none."""

    start: Any
    node: Node
    key: Node | None = None
    text: str | None = None


class _Composer:
    """The tree of one document, from the parser's events."""

    def __init__(self, loader: yaml.SafeLoader, name: str, problems: Problems, room: Room) -> None:
        self.loader: Any = loader
        self.name = name
        self.problems = problems
        self.room = room
        # The way to the value at hand: .KEY or [NUMBER] each.
        self.way: list[str] = []

    def document(self) -> Node | None:
        try:
            self.event()
            if isinstance(self.event(), yaml.StreamEndEvent):
                self.problems.add(_problem(self.name, "the file is empty"))
                return None
            root = self.tree()
            self.event()
            event = self.event()
            if not isinstance(event, yaml.StreamEndEvent):
                message = "expected a single document in the stream but found another document"
                self.problem(event.start_mark, message)
            return root
        except _End:
            return None

    def event(self) -> Any:
        try:
            return self.loader.get_event()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark or self.loader.get_mark()
            self.way = []
            self.problem(mark, " ".join(filter(None, (error.context, error.problem))))
        except (ValueError, OverflowError):
            # PyYAML asks chr() for "\U00110000".
            self.way = []
            self.problem(self.loader.get_mark(), "this escape stands for no character")
        raise _End

    def problem(self, mark: Any, message: str) -> None:
        path = "".join(self.way)
        path = path[1:] if path.startswith(".") else path
        self.problems.add(Problem(self.name, mark.line + 1, mark.column + 1, path, message))

    def wrong(self, event: Any, message: str) -> _Wrong:
        self.problem(event.start_mark, message)
        return WRONG

    def tree(self) -> Node:
        """The next value with all that is in it.

        Without recursion: the parser is always called from the same depth, and as fast.
        """
        opened: list[_Open] = []
        while True:
            event = self.event()
            if isinstance(event, yaml.CollectionEndEvent):
                self.way.pop()
                start, node = opened.pop()[:2]
            else:
                start, node = event, self.node(event)
                if isinstance(node.value, (list, dict)):
                    opened.append(_Open(start, node))
                    self.way.append("[0]" if isinstance(node.value, list) else "")
                    continue
            if not opened:
                return node
            opened[-1] = self.put(opened[-1], start, node)

    def put(self, into: _Open, event: Any, node: Node) -> _Open:
        """Put a value into the collection that it stands in, or a key before its value comes."""
        whole = into.node.value
        if isinstance(whole, list):
            whole.append(node)
            self.way[-1] = f"[{len(whole)}]"
            return into
        assert isinstance(whole, dict)
        if into.key is None:
            text = self.key(event, node)
            self.way[-1] = f".{'?' if text is None else text}"
            if text in whole:
                first = whole[text].key.line
                self.problem(event.start_mark, f"given twice, first in line {first}")
            return into._replace(key=node, text=text)
        if into.text is not None:
            whole.setdefault(into.text, Entry(into.key, node))
        self.way[-1] = ""
        return into._replace(key=None)

    def node(self, event: Any) -> Node:
        """The scalar or alias of an event, or the collection that begins there, still empty."""
        self.room.values -= 1
        if self.room.values < 0:
            self.way = []
            message = f"more than {MAX_VALUES} keys and values{self.room.shared}"
            self.problem(event.start_mark, message)
            raise _End
        mark = event.start_mark
        return Node(self.value(event), mark.line + 1, mark.column + 1)

    def value(self, event: Any) -> Value:
        if isinstance(event, yaml.AliasEvent):
            said = f"aliases are not allowed: write the value of *{event.anchor} here"
            return self.wrong(event, said)
        tag = event.tag
        if isinstance(event, yaml.ScalarEvent):
            if tag in (None, "!", "tag:yaml.org,2002:str"):
                return self.scalar(event)
            return self.wrong(event, _tag(tag))
        if len(self.way) >= MAX_DEPTH:
            self.way = []
            self.problem(event.start_mark, f"nested deeper than {MAX_DEPTH} levels")
            raise _End
        if tag not in (None, "!"):
            self.wrong(event, _tag(tag))
        return [] if isinstance(event, yaml.SequenceStartEvent) else {}

    def scalar(self, event: Any) -> Value:
        text: str = event.value
        # A lone surrogate comes from an escape, "\ud800".
        if "\0" in text or not _is_encodable(text):
            return self.wrong(
                event, "a NUL or a lone surrogate: neither a file nor a variable can hold it"
            )
        if event.tag is None and event.implicit[0]:
            value = plain(text)
            return self.wrong(event, value.message) if isinstance(value, _Unfit) else value
        return text

    def key(self, event: Any, key: Node) -> str | None:
        """A key's text, None if it is none."""
        if isinstance(key.value, str):
            if len(key.value) > MAX_KEY:
                self.problem(event.start_mark, f"a key of more than {MAX_KEY} characters")
            elif key.value == "<<" and event.style is None:
                self.problem(
                    event.start_mark, "merge keys are not allowed: write the keys themselves"
                )
            return key.value[:MAX_KEY]
        if not isinstance(key.value, _Wrong):
            found = "a list" if isinstance(key.value, list) else "a mapping"
            if isinstance(event, yaml.ScalarEvent):
                found = quoted(event.value)
            message = f"expected a text as key, found {found}"
            if isinstance(key.value, bool):
                message += " (YAML reads on, off, yes and no as true and false: quote it)"
            self.problem(event.start_mark, message)
        return None


def _tag(tag: str) -> str:
    short = tag.replace("tag:yaml.org,2002:", "!!", 1)
    return f"the tag {quoted(short)[1:-1]} is not allowed, only !!str is"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True)
class _Unfit:
    message: str


_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **{
        form: value
        for words, value in (("yes true on", True), ("no false off", False))
        for word in words.split()
        for form in (word, word.title(), word.upper())
    },
    **{
        f"{sign}.{word}": -math.inf if sign == "-" else math.inf
        for sign in ("", "+", "-")
        for word in ("inf", "Inf", "INF")
    },
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
}
# As PyYAML has them, but for sexagesimal numbers (1:30): a long one takes quadratic time.
_INT = re.compile(
    r"[-+]?(?:(?P<bin>0b[01_]+)|(?P<oct>0[0-7_]+)|(?P<dec>0|[1-9][0-9_]*)|(?P<hex>0x[0-9a-fA-F_]+))"
)
_FLOAT = re.compile(
    r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
)
_BASES = {"bin": 2, "oct": 8, "dec": 10, "hex": 16}


def plain(text: str) -> bool | int | float | str | _Unfit | None:
    """What a scalar without quotes and tag is; _Unfit for a number that is too large or long."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    integer = _INT.fullmatch(text)
    if not integer and not _FLOAT.fullmatch(text):
        return text
    if len(text) > _LONGEST_NUMBER:
        return _Unfit(f"a number of more than {_LONGEST_NUMBER} characters: put it in quotes")
    digits = text.replace("_", "")
    if not integer:
        number = float(digits)
        return number if math.isfinite(number) else _Unfit("too large a number: put it in quotes")
    try:
        whole = int(digits, _BASES[str(integer.lastgroup)])
    except ValueError:  # 0x_ has no digit
        return text
    if not SMALLEST <= whole <= LARGEST:
        return _Unfit("a number that does not fit in 64 bits: put it in quotes")
    return whole
