"""Text from outside, such as a policy or an image, on its way to a terminal."""

from __future__ import annotations

import re
import textwrap

# Lines have at most 100 columns with what ends them.
WIDTH = 99
_SPACES = re.compile(r"[\t\n\v\f\r]")


def printable(text: str) -> str:
    """*text* as one harmless line: what is not printable is written as an escape, ``\\x1b``.

    That is what controls a terminal, ends a line, reorders text or can't be encoded
    (``str.isprintable``).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def wrapped(text: str, first: str, rest: str, break_long_words: bool = True) -> list[str]:
    """*text* as harmless lines of at most 99 columns, a newline in it as a blank.

    *first* stands before the first line, *rest* before each other.
    """
    return textwrap.wrap(
        printable(_SPACES.sub(" ", text)),
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
        break_long_words=break_long_words,
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
