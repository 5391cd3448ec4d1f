"""What is wrong with a policy, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from rocm_autopatch.support.text import printable

ERROR, REMARK = "error", "remark"
# The most problems that are reported. Once they are mended, the next ones are.
MOST = 100
# A value that a message quotes is cut to this number of characters.
_LONGEST = 100

# What a message ends with, where that costs: "did you mean ...?" is looked for only of those shown.
Hint = Callable[[], str]


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a file: place counted from 1, key path, and what to do about it.

    Line and column are 0 if the problem is the file itself. A ``remark`` is not an error.
    """

    file: str
    line: int
    column: int
    path: str
    message: str
    severity: str = ERROR

    def __str__(self) -> str:
        place = f":{self.line}:{self.column}" if self.line else ""
        mark = "" if self.severity == ERROR else f"{self.severity}: "
        parts = filter(None, (f"{self.file}{place}", self.path, f"{mark}{self.message}"))
        return printable(": ".join(parts))


class PolicyError(Exception):
    """A policy can't be used; ``problems`` has what is known to be wrong with it.

    Of more than MOST problems the last says how many are left out; ``count`` counts them all.
    """

    def __init__(self, problems: Sequence[Problem], count: int = 0) -> None:
        super().__init__(problems)
        self.problems = list(problems)
        self.count = count or len(problems)

    def __str__(self) -> str:
        more = self.count - 1
        return f"{self.problems[0]}" + (f" (and {more} more)" if more else "")


class Problems:
    """All problems, collected by the readers: none of them stops at the first."""

    def __init__(self) -> None:
        self._found: dict[Problem, Hint | None] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(self, problem: Problem, hint: Hint | None = None) -> None:
        """Add a problem; *hint* gives what its message ends with. A second equal one is dropped."""
        self._found.setdefault(problem, hint)

    @property
    def errors(self) -> int:
        return sum(problem.severity == ERROR for problem in self._found)

    def shown(self) -> list[Problem]:
        """The first MOST of them, file by file, line by line; then how many are left out."""
        files = {file: place for place, file in enumerate(dict.fromkeys(p.file for p in self))}
        found = sorted(self, key=lambda p: (files[p.file], p.line, p.column))
        shown = []
        for problem in found[:MOST]:
            hint = self._found[problem]
            shown.append(replace(problem, message=problem.message + hint()) if hint else problem)
        left = found[MOST:]
        if left:
            severity = ERROR if any(p.severity == ERROR for p in left) else REMARK
            shown.append(Problem(left[0].file, 0, 0, "", f"and {len(left)} more", severity))
        return shown

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def finish(self) -> None:
        """Raise PolicyError if there is an error."""
        if self.errors:
            raise PolicyError(self.shown(), len(self))


@contextmanager
def collected(into: Problems | None) -> Iterator[Problems]:
    """Where to put problems: *into*. If it is None, PolicyError is raised for them at the end."""
    problems = Problems() if into is None else into
    yield problems
    if into is None:
        problems.finish()


def similar_name(name: str, known: Iterable[str]) -> str:
    """What the message on a wrong name ends with, "" if no known one is close."""
    import difflib  # A policy without errors needs it not.

    close = difflib.get_close_matches(name, [*known], n=1)
    return f": did you mean {close[0]}?" if close else ""


def quoted(text: str) -> str:
    """A text from a policy as a message quotes it."""
    return repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")
