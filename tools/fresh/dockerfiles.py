"""The environment of a Dockerfile's image, told from its text; and checkouts to read from."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_INNERMOST = re.compile(
    r"\\\$|\$(?:(?P<plain>\w+)|\{(?P<name>\w+)(?:(?P<how>:[-+]|%%?|##?)(?P<word>[^${}]*))?\})"
)


class Checkout:
    """A repository's files: in a directory, or in a git directory without a work tree."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._bare = not (path / ".git").exists() and (path / "HEAD").is_file()

    def read(self, name: str) -> str:
        """The text of a file, "" if there is none."""
        if self._bare:
            return self._git("show", f"HEAD:{name}")
        file = self._path / name
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def files(self, pattern: str) -> list[str]:
        """The paths that a pattern matches."""
        if self._bare:
            listed = self._git("ls-tree", "-r", "--name-only", "HEAD").splitlines()
            return sorted(fnmatch.filter(listed, pattern))
        found = self._path.glob(pattern)
        return sorted(one.relative_to(self._path).as_posix() for one in found if one.is_file())

    def _git(self, *arguments: str) -> str:
        command = ["git", "--git-dir", str(self._path), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


@dataclass
class Variable:
    """A variable's value, and the line that sets it."""

    value: str
    place: str


@dataclass
class Stage:
    """A stage of a build: what it is from, and its environment."""

    base: str
    environment: dict[str, Variable] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)


def read_stages(
    text: str,
    file: str,
    given: Mapping[str, str],
    outside: Mapping[str, Variable] | None = None,
) -> tuple[dict[str, Stage], dict[str, Variable]]:
    """The stages by their names, the last one also as "", and the arguments before the first.

    *given* are arguments of the build. *outside* is the environment of an image that is no stage.
    """
    stages: dict[str, Stage] = {}
    heads: dict[str, Variable] = {}
    now: Stage | None = None
    for line, word, rest in _instructions(text):
        place = f"{file}:{line}"
        if word == "FROM":
            parts = [one for one in rest.split() if not one.startswith("--")]
            base = expand(parts[0], {name: one.value for name, one in heads.items()})
            below = stages.get(base.lower())
            now = Stage(base, dict(below.environment if below else outside or {}))
            name = parts[2] if len(parts) > 2 else str(len(stages))
            stages[name.lower()] = stages[""] = now
        elif word == "ARG":
            for name, value in _pairs(rest):
                if now is None:
                    heads[name] = Variable(given.get(name, expand(value, _values(heads))), place)
                    continue
                default = expand(value, _known(now)) if value else ""
                before = heads[name].value if name in heads and not value else default
                now.arguments[name] = given.get(name, before)
        elif word == "ENV" and now is not None:
            known = _known(now)
            for name, value in _pairs(rest, old_form=True):
                now.environment[name] = Variable(expand(value, known), place)
    return stages, heads


def _values(variables: Mapping[str, Variable]) -> dict[str, str]:
    return {name: one.value for name, one in variables.items()}


def _known(stage: Stage) -> dict[str, str]:
    """What a name stands for: a variable outranks an argument."""
    return {**stage.arguments, **_values(stage.environment)}


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Each instruction's line, word and rest. Comments and here-documents are left out."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line
        while whole.rstrip().endswith("\\"):
            whole = whole.rstrip()[:-1]
            _, more = next(lines, (0, ""))
            while more.lstrip().startswith("#"):
                _, more = next(lines, (0, ""))
            whole += " " + more.strip()
        word, _, rest = whole.strip().partition(" ")
        word = word.upper()
        if word in ("RUN", "COPY", "ADD"):
            for _, end in _HEREDOC.findall(rest):
                while next(lines, (0, end))[1].strip() != end:
                    pass
        yield number, word, rest.strip()


def _pairs(text: str, old_form: bool = False) -> Iterator[tuple[str, str]]:
    """Names and values of ENV and ARG: A=1 B="2 3", and in the old form A the rest."""
    first = text.split(None, 1)
    if old_form and first and "=" not in first[0]:
        yield first[0], first[1] if len(first) > 1 else ""
        return
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    # A backslash before $ is for expand().
    lexer.escape = ""
    for part in lexer:
        name, _, value = part.partition("=")
        yield name, value


def expand(text: str, known: Mapping[str, str]) -> str:
    """A text with its $NAME and ${NAME...} replaced, the innermost first. What is unknown is ""."""

    def replace(match: re.Match[str]) -> str:
        if match[0] == "\\$":
            return "\0"
        value = known.get(match["plain"] or match["name"], "")
        how, word = match["how"] or "", match["word"] or ""
        if how == ":-":
            return value or word
        if how == ":+":
            return word if value else ""
        return _cut(value, how, word) if how else value

    before = None
    while text != before:
        before, text = text, _INNERMOST.sub(replace, text)
    return text.replace("\0", "$")


def _cut(value: str, how: str, pattern: str) -> str:
    """A value without what a pattern matches at its end (%) or its beginning (#)."""
    sizes = range(len(value) + 1)
    for size in sizes if len(how) == 1 else reversed(sizes):
        kept, cut = (
            (value[: len(value) - size], value[len(value) - size :])
            if how[0] == "%"
            else (value[size:], value[:size])
        )
        if fnmatch.fnmatchcase(cut, pattern):
            return kept
    return value
