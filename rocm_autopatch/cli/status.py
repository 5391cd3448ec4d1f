"""``rocm-autopatch status``: what happens to a Python program started here, and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.cli import foretold, options, screen, statuses, style, terminal
from rocm_autopatch.record import metrics, sentences
from rocm_autopatch.startup import misnamed
from rocm_autopatch.support import files
from rocm_autopatch.support.text import wrapped


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "status",
        help="what happens to a Python program started here, and why",
        description=(
            "Start a fresh interpreter with this environment, as a program would be, and say at "
            "once whether a policy applies there. Then import torch in it, and print a line for "
            "each variable, config key, compile mode and patch that the policy changes: what it "
            "was, and what it is."
        ),
        epilog="example: docker run --rm IMAGE rocm-autopatch status",
    )
    statuses.state_statuses(
        parser,
        {
            0: "a report, also of a place where no policy applies; with --check, a policy is in "
            "force; with --line always, and errors are in the line",
            1: "something failed, there is no report, or FILE.prom can't be written; with --check, "
            "also: no policy is in force",
        },
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--all", action="store_true", help="print all entries, facts and known issues, and each why"
    )
    form.add_argument("--why", action="store_true", help="print why each line's entry is there")
    form.add_argument("--json", action="store_true", help="print the report as JSON")
    form.add_argument(
        "--line",
        action="store_true",
        help="print one line of JSON: this machine, its policy, and a digest to compare",
    )
    form.add_argument(
        "--textfile",
        type=_parse_textfile,
        metavar="FILE.prom",
        help="write the same as metrics for node_exporter's textfile collector",
    )
    form.add_argument(
        "--check",
        action="store_true",
        help="print one line, and end with 1 if no policy is in force or something failed",
    )
    parser.add_argument(
        "--policy", metavar="POLICY", help="as if ROCM_AUTOPATCH_POLICY named it, switched on"
    )
    options.add_torch(parser, "; not with --line, --textfile or --check, unless asked for")
    options.add_assume(parser)
    parser.set_defaults(run=run)


def _parse_textfile(text: str) -> Path:
    if not text.endswith(".prom"):
        raise argparse.ArgumentTypeError(f"{text!r}: the collector reads files named *.prom only")
    return Path(text)


def run(arguments: argparse.Namespace) -> int:
    environ, option = fresh_interpreter.before_us(), ""
    if arguments.policy is not None:
        option = f"--policy {arguments.policy}"
        if not misnamed.is_there(arguments.policy):
            terminal.print_error(
                f"rocm-autopatch status: {option}: {misnamed.why_missing(arguments.policy)}"
            )
            return 1
        environ["ROCM_AUTOPATCH_POLICY"] = arguments.policy
        environ.pop("ROCM_AUTOPATCH", None)
    short = arguments.line or arguments.textfile or arguments.check
    torch = not short if arguments.torch is None else arguments.torch
    ask = partial(fresh_interpreter.report, torch, arguments.assume, environ)
    if arguments.line:
        return _print_line(ask, torch)
    if not (short or arguments.json):
        return _print_text(ask, option, environ, arguments)
    report = ask()
    if arguments.check:
        return _run_check(_masked_report(report), option)
    if arguments.json:
        terminal.print_data(report)
    elif not _write_textfile(_masked_report(report), arguments.textfile):
        return 1
    return 1 if report["errors"] else 0


def _masked_report(report: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = fresh_interpreter.secrets().data(report)
    return shown


def _print_line(ask: Callable[[], dict[str, Any]], torch: bool) -> int:
    try:
        report = ask()
    except fresh_interpreter.NoReport as error:
        terminal.print_error(f"rocm-autopatch status: {error}")
        report = metrics.NO_REPORT
    terminal.print_lines([json.dumps(_masked_report(metrics.summarize_report(report, torch)))])
    # Another status makes mpirun end the other workers before they have printed theirs.
    return 0


def _print_text(
    ask: Callable[..., dict[str, Any]],
    option: str,
    environ: Mapping[str, str],
    arguments: argparse.Namespace,
) -> int:
    def say_verdict(started: dict[str, Any]) -> None:
        shown = _masked_report(started)
        text = wrapped(sentences.verdict_line(shown, option), "", "  ")
        terminal.print_lines(
            style.colour_verdict(line, sentences.is_in_force(shown)) for line in text
        )
        # Torch is imported after it, which takes seconds.
        sys.stdout.flush()

    report = ask(started=say_verdict)
    shown = _masked_report(foretold.foretell_values(report, environ))
    text = (
        sentences.report_lines(shown)
        if arguments.all
        else screen.screen_lines(shown, arguments.why)
    )
    terminal.print_lines(map(style.colour_statuses, text))
    return 1 if report["errors"] else 0


def _run_check(report: dict[str, Any], option: str) -> int:
    if sentences.is_in_force(report):
        terminal.print_lines([sentences.verdict_line(report, option)])
        return 0
    text = sentences.verdict_line(report, option, report["errors"][0] if report["errors"] else "")
    terminal.print_error(f"rocm-autopatch status: {text}")
    return 1


def _write_textfile(report: dict[str, Any], file: Path) -> bool:
    text = "".join(f"{line}\n" for line in metrics.node_exporter_lines(report, file.name))
    try:
        files.write(file, text.encode("utf-8", "replace"))
    except OSError as error:
        terminal.print_error(f"rocm-autopatch status: {file} can't be written: {error.strerror}")
        return False
    return True
