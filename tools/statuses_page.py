"""Make docs/exit-statuses.md from what the commands state of themselves.

python tools/statuses_page.py > docs/exit-statuses.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.cli import command_line, statuses
from rocm_autopatch.cli.command import CHOSEN

HEAD = """\
# Exit statuses

Made by `make docs` from what each [command](commands.md) says of itself; a test fails when it is
stale.

## Of every command

| status | meaning |
|---|---|
| 0 | done |
| 1 | something is wrong with what was asked about, or stdout is a full disk or a closed pipe |
| 2 | wrong usage: stderr says what is wrong |
| 130 | interrupted (Ctrl-C) |
| 128 + N | signal N ended the command, or the one that it ran: 137 is SIGKILL, 143 SIGTERM |

## Of each command

| command | status | meaning |
|---|---|---|"""
# What all commands have stands above.
_EVERY = ("wrong usage", "interrupted")
FOOT = """\
## Of a program under the package
The package changes no program's exit status, also if its own start fails. These end a compile or a
program, and only because somebody asked for it:

| what asks for it | what happens | status, if the program does not catch it |
|---|---|---|
| [`abort_after`](watchdog.md#abort_after-ending-a-compile) of the watchdog | `CompileTimeout` in the thread that compiles | 1 |
| the same, if the thread runs no Python | SIGABRT ends the process | 134 |
| [`ROCM_AUTOPATCH_CACHE=require`](caches.md#when-something-does-not-fit) | an exception before a graph is compiled that is not there | 1 |
| [`ROCM_AUTOPATCH_RANKS=abort`](patches.md#ranks-ranks-of-one-job-that-compile-differently) | `DifferentRanks` in each rank | 1 |
| [`capture: guard`](patches.md) | an exception before a compile inside a graph capture | 1 |

## Of the build of an image
`overlay/install.sh`, which [`Dockerfile.overlay`](overlay.md#overlay-image) runs, ends with 1 if
anything is wrong, and one line says what. `deploy/image/tree.py` ends with 1 if nothing was written,
and with 2 for wrong usage."""


def page() -> Iterator[str]:
    """The lines of the page."""
    yield from HEAD.splitlines()
    for parser in parsers(command_line.make_parser()):
        if parser.get_default(CHOSEN) is None:
            continue  # It only has commands below it.
        name = f"`{parser.prog.removeprefix('rocm-autopatch ')}`"
        for status, meaning in statuses.stated_statuses(parser).items():
            if meaning not in _EVERY:
                yield f"| {name} | {status} | {meaning} |"
                name = ""
    yield from ("", *FOOT.splitlines())


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from parsers(inner)


if __name__ == "__main__":
    print("\n".join(page()))
