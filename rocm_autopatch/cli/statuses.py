"""Exit statuses: each command states its own once, for its help and for docs/commands.md."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from rocm_autopatch.support.processes import INTERRUPTED

# A status, or words where it is not ours, to what it means.
Statuses = Mapping["int | str", str]

# Those of a command that has no more to say of them.
WRONG_OR_DONE: Statuses = {0: "done", 1: "something is wrong with what was asked for"}
# Those of a command that runs another one.
PASSED_ON: Statuses = {"COMMAND's own": "it was run", "126 or 127": "COMMAND can't be run"}


def state_statuses(parser: argparse.ArgumentParser, meanings: Statuses) -> None:
    """Give a command its exit statuses. Those that all commands have are added."""
    every: Statuses = {**meanings, 2: "wrong usage", INTERRUPTED: "interrupted"}
    parser.set_defaults(statuses=every)
    sentence = "; ".join(f"{status}: {meaning}" for status, meaning in every.items())
    parser.description = f"{parser.description} Exit status {sentence}."


def stated_statuses(parser: argparse.ArgumentParser) -> Statuses:
    """The exit statuses of a command."""
    found: Statuses = parser.get_default("statuses")
    return found
