"""Text for a terminal: harmless lines of what comes from outside, durations and counts."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap

# Where there is no terminal. With the newline, a line has at most 100 characters.
WIDTH = 99
_NARROWEST = 40
_SPACES = re.compile(r"[\t\n\v\f\r]")


def printable(text: str) -> str:
    """*text* as one harmless line: characters that are not printable become escapes, ``\\x1b``.

    Not printable (``str.isprintable``) is what controls a terminal, ends a line, reorders text or
    can't be encoded.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def wrapped(text: str, first: str, rest: str, break_long_words: bool = True) -> list[str]:
    """*text* as harmless lines of at most columns(). A newline in *text* becomes a blank.

    *first* is put before the first line, *rest* before each other line.
    """
    return textwrap.wrap(
        printable(_SPACES.sub(" ", text)),
        text_columns(),
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=break_long_words,
    )


def text_columns() -> int:
    """How many columns a line of stdout has: COLUMNS, or the terminal's; WIDTH if it is none."""
    if not os.environ.get("COLUMNS") and not (sys.stdout and sys.stdout.isatty()):
        return WIDTH
    return max(_NARROWEST, shutil.get_terminal_size((WIDTH, 0)).columns)


def duration(seconds: float) -> str:
    """Seconds in words: ``0.8 s``, ``42 s``, ``3 min 12 s``, ``2 h 5 min``, ``1 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    large, small, units = (whole // 60, whole % 60, ("min", "s"))
    if whole >= 3600:
        large, small, units = (whole // 3600, whole % 3600 // 60, ("h", "min"))
    return f"{large} {units[0]} {small} {units[1]}" if small else f"{large} {units[0]}"


def counted(number: int, noun: str, plural: str = "s") -> str:
    """A number of things: ``1 graph``, ``1,024 graphs``."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
