"""Options that several commands have."""

from __future__ import annotations

import argparse

from rocm_autopatch.startup import assume


def add_assume(parser: argparse.ArgumentParser) -> None:
    """Give a command the option ``--assume``."""
    parser.add_argument(
        "--assume",
        action="append",
        default=[],
        type=_assumption,
        metavar="NAME=VALUE",
        help="a fact to take in place of the one found here, such as accelerator=rocm or image=REF",
    )


def _assumption(text: str) -> str:
    name, equals, _ = text.partition("=")
    if not equals or name not in assume.FACTS:
        names = ", ".join(assume.FACTS)
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME=VALUE, where NAME is one of {names}"
        )
    return text
