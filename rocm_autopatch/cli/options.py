"""Options that several commands have."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from rocm_autopatch.startup import assume


def add_assume(parser: argparse.ArgumentParser) -> None:
    """Give a command the option ``--assume``."""
    parser.add_argument(
        "--assume",
        action="append",
        default=[],
        type=_parse_assumption,
        metavar="NAME=VALUE",
        help="a fact to take in place of the one found here, such as accelerator=rocm or image=REF",
    )


def add_torch(parser: argparse.ArgumentParser, when: str) -> None:
    """Give a command the options ``--torch`` and ``--no-torch``; *when* says what holds without."""
    parser.add_argument(
        "--torch",
        action=argparse.BooleanOptionalAction,
        default=None,
        help=f"import torch, as a program would, which takes seconds{when}",
    )


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Give a command the option ``--plot``."""
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw a .png or .svg file (needs matplotlib)"
    )


def add_program(parser: argparse.ArgumentParser) -> None:
    """Have a command take the user's command after its options, as ``program``."""
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command to run"
    )


def parse_command(words: list[str]) -> list[str]:
    """The user's command of what is left after the options: without the ``--`` before it."""
    return words[1:] if words[:1] == ["--"] else words


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """What is added to a message about a wrong *word*, "" if nothing that is known is close."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def entry_name(text: str) -> str:
    """The name of an entry of a policy, as an argument takes it: any text. A shell completes those
    that the grammar of policies knows."""
    return text


def parse_variable(text: str) -> str:
    """The name of a variable, as an option takes it."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not the name of a variable")
    return text


def _parse_assumption(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or name not in assume.FACTS:
        names = ", ".join(assume.FACTS)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=VALUE, where NAME is one of {names}"
            f"{did_you_mean(name, assume.FACTS) if equals else ''}"
        )
    return text
