"""``rocm-autopatch status``: what happens to a Python program started here, and why."""

from __future__ import annotations

import argparse
from typing import Any

from rocm_autopatch import fresh_interpreter, record
from rocm_autopatch.cli import options, style, terminal


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "status",
        help="what happens to a Python program started here, and why",
        description=(
            "Start a fresh interpreter with this environment, as a program would be, import torch "
            "in it, and print for every variable, config key, compile mode and patch what it was, "
            "what it is, and why. Exit status: 0, or 1 if anything failed; 2 for wrong usage."
        ),
        epilog="example: docker run --rm IMAGE rocm-autopatch status",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--no-torch", action="store_true", help="leave torch out: only what happens at the start"
    )
    options.add_assume(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    report = fresh_interpreter.report(torch=not arguments.no_torch, assume=arguments.assume)
    if arguments.json:
        terminal.data(report)
    else:
        shown = fresh_interpreter.secrets().data(report)
        terminal.lines(map(style.statuses, record.lines(shown)))
    return 1 if report["errors"] else 0
