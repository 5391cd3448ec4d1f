"""Text from outside, such as a policy or an image, on its way to a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    """*text* as one harmless line: what is not printable is written as an escape, ``\\x1b``.

    That is what controls a terminal, ends a line, reorders text or can't be encoded
    (``str.isprintable``).
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
