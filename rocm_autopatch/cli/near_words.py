"""What was meant by a wrong word."""

from __future__ import annotations

from collections.abc import Sequence


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """What is added to a message about a wrong *word*, "" if nothing that is known is close."""
    import difflib  # Only a mistake needs it.

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
