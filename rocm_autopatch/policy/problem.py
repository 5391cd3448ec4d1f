"""What is wrong with a policy, and where."""

from __future__ import annotations

from dataclasses import dataclass

from rocm_autopatch.text import printable


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a file: place counted from 1, key path, and what to do about it.

    Line and column are 0 where it is the file itself.
    """

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f":{self.line}:{self.column}" if self.line else ""
        where = f"{self.path}: " if self.path else ""
        # A key of a YAML file may hold anything; a problem is one line.
        return printable(f"{self.file}{place}: {where}{self.message}")


class PolicyError(Exception):
    """A policy can't be used; ``problems`` has all that is known to be wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        self.problems = problems

    def __str__(self) -> str:
        more = len(self.problems) - 1
        return f"{self.problems[0]}" + (f" (and {more} more)" if more else "")
