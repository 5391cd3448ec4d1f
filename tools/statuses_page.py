"""Make the list of exit statuses in docs/commands.md from what the commands state of themselves.

python tools/statuses_page.py docs/commands.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.cli import command_line, statuses
from rocm_autopatch.cli.command import CHOSEN

BEGIN, END = "<!-- This list is made by make docs. -->\n", "<!-- End of the list. -->\n"
# What all commands have, or nearly all, stands above the list in the page.
_EVERY = ("done", "wrong usage", "interrupted", "something is wrong with what was asked for")


def page(text: str) -> str:
    """The text of the page with the list as it is today. Raises ValueError if it has no place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return before + begin + "".join(f"{line}\n" for line in own_statuses()) + end + after


def own_statuses() -> Iterator[str]:
    """The lines of the list."""
    for parser in parsers(command_line.make_parser()):
        if parser.get_default(CHOSEN) is None:
            continue  # It only has commands below it.
        stated = statuses.stated_statuses(parser).items()
        own = [f"{status}: {meaning}" for status, meaning in stated if meaning not in _EVERY]
        name = parser.prog.removeprefix("rocm-autopatch ")
        if own:
            yield f"- `{name}`: {'. '.join(own)}"


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
