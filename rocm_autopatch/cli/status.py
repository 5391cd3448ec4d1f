"""``rocm-autopatch status``: what happens to a Python program started here, and why."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.cli import options, statuses, style, terminal
from rocm_autopatch.record import metrics, sentences
from rocm_autopatch.support import files


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "status",
        help="what happens to a Python program started here, and why",
        description=(
            "Start a fresh interpreter with this environment, as a program would be, import torch "
            "in it, and print for every variable, config key, compile mode and patch what it was, "
            "what it is, and why."
        ),
        epilog="example: docker run --rm IMAGE rocm-autopatch status",
    )
    statuses.state(
        parser,
        {
            0: "a report; with --line always, and errors are in the line",
            1: "something failed, there is no report, or FILE.prom can't be written",
        },
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    form.add_argument(
        "--line",
        action="store_true",
        help="print one line of JSON: this machine, its policy, and a digest to compare",
    )
    form.add_argument(
        "--textfile",
        type=_textfile,
        metavar="FILE.prom",
        help="write the same as metrics for node_exporter's textfile collector",
    )
    parser.add_argument(
        "--no-torch", action="store_true", help="leave torch out: only what happens at the start"
    )
    options.add_assume(parser)
    parser.set_defaults(run=run)


def _textfile(text: str) -> Path:
    if not text.endswith(".prom"):
        raise argparse.ArgumentTypeError(f"{text!r}: the collector reads files named *.prom only")
    return Path(text)


def run(arguments: argparse.Namespace) -> int:
    try:
        report = fresh_interpreter.report(torch=not arguments.no_torch, assume=arguments.assume)
    except fresh_interpreter.NoReport as error:
        if not arguments.line:
            raise
        terminal.say(f"rocm-autopatch status: {error}")
        report = metrics.NO_REPORT
    if arguments.line:
        shown = fresh_interpreter.secrets().data(metrics.summarize_report(report))
        terminal.lines([json.dumps(shown)])
        # Another status makes mpirun end the other workers before they have printed theirs.
        return 0
    if arguments.textfile:
        shown = fresh_interpreter.secrets().data(report)
        text = "".join(
            f"{line}\n" for line in metrics.node_exporter_lines(shown, arguments.textfile.name)
        )
        try:
            files.write(arguments.textfile, text.encode("utf-8", "replace"))
        except OSError as error:
            terminal.say(
                f"rocm-autopatch status: {arguments.textfile} can't be written: {error.strerror}"
            )
            return 1
    elif arguments.json:
        terminal.data(report)
    else:
        shown = fresh_interpreter.secrets().data(report)
        terminal.lines(map(style.statuses, sentences.report_lines(shown)))
    return 1 if report["errors"] else 0
