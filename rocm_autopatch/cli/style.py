"""Colour on a terminal, and nowhere else: what is piped or redirected is plain, byte for byte.

Not with NO_COLOR set to anything (https://no-color.org), nor on a terminal that is TERM=dumb.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

from rocm_autopatch.cli import terminal

_CODES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_COLOURS = {
    **dict.fromkeys(("applied", "harmless", "applies"), "green"),
    **dict.fromkeys(("given", "observed", "kept", "waiting", "slows", "unknown"), "yellow"),
    **dict.fromkeys(("failed", "hangs", "crashes"), "red"),
    **dict.fromkeys(("unchanged", "skipped", "policy", "not read", "overridden"), "cyan"),
}
_STATUS = "applied|given|unchanged|waiting|observed|kept|skipped|failed"
# Where a word is a status, and not a word of a sentence: "[pin applied, safe]", "config of
# torch._inductor.config: applied", "safe: default False  (overridden), FILE".
_PLACES = re.compile(
    rf"(\[(?:default|delete|set|pin|use) )({_STATUS})(?=, |\])"
    rf"|^((?:patch |  )[a-z_]+ of [\w.]+: )({_STATUS})\b"
    r"|(  \()(applies|overridden)(?=\), )"
)


def colour_wanted(stream: TextIO) -> bool:
    """Whether what is written to *stream* is to have colours."""
    return (
        stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "") != "dumb"
    )


def colour_word(text: str) -> str:
    """A status or verdict in its colour; *text* as it is where stdout has none."""
    colour = _COLOURS.get(text.strip())
    return terminal.colour(_CODES[colour], text) if colour and colour_wanted(sys.stdout) else text


def colour_verdict(line: str, good: bool) -> str:
    """A line of the verdict, in colour where stdout has any."""
    return (
        terminal.colour(_CODES["green" if good else "yellow"], line)
        if colour_wanted(sys.stdout)
        else line
    )


def colour_statuses(line: str) -> str:
    """A report's line with its status in colour, as ``record.lines`` and ``explain`` put it."""
    # The why of an entry, and what is folded, stand deeper than what has a status.
    if line.startswith("    ") or not colour_wanted(sys.stdout):
        return line

    def colour(found: re.Match[str]) -> str:
        before, status = (group for group in found.groups() if group)
        return f"{before}{colour_word(status)}"

    return _PLACES.sub(colour, line)
