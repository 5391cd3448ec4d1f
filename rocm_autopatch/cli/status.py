"""``rocm-autopatch status``: what happens to a Python program started here, and why."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.cli import foretold, options, screen, style, terminal
from rocm_autopatch.cli.command import Command, CommandResult, flag_field, option_field
from rocm_autopatch.record import metrics, sentences
from rocm_autopatch.startup import misnamed, unbaked
from rocm_autopatch.support import files
from rocm_autopatch.support.text import wrapped
from rocm_autopatch.support.user_error import UserError

ProcessReport = dict[str, Any]


def _parse_textfile(text: str) -> Path:
    if not text.endswith(".prom"):
        raise argparse.ArgumentTypeError(f"{text!r}: the collector reads files named *.prom only")
    return Path(text)


@dataclass(frozen=True)
class StatusArguments(options.AssumedFacts):
    all: bool = flag_field(
        "--all",
        group="form",
        help="print all entries, facts and known issues, and each why",
    )
    why: bool = flag_field("--why", group="form", help="print why each line's entry is there")
    json: bool = options.json_flag("print the report as JSON", group="form")
    line: bool = flag_field(
        "--line",
        group="form",
        help="print one line of JSON: this machine, its policy, and a digest to compare",
    )
    textfile: Path | None = option_field(
        "--textfile",
        parse=_parse_textfile,
        default=None,
        metavar="FILE.prom",
        group="form",
        help="write the same as metrics for node_exporter's textfile collector",
    )
    check: bool = flag_field(
        "--check",
        group="form",
        help="print one line, and end with 1 if no policy is in force or something failed",
    )
    policy: str | None = option_field(
        "--policy",
        parse=str,
        default=None,
        metavar="POLICY",
        help="as if ROCM_AUTOPATCH_POLICY named it, switched on",
    )
    torch: bool | None = options.torch_flag(
        "; not with --line, --textfile or --check, unless asked for"
    )


def show_status(arguments: StatusArguments) -> CommandResult:
    environ, asked = fresh_interpreter.before_us(), ""
    if arguments.policy is not None:
        asked = f"--policy {arguments.policy}"
        if not misnamed.is_there(arguments.policy):
            raise UserError(
                f"{asked}: {misnamed.why_missing(arguments.policy)}", page="policies.md"
            )
        environ["ROCM_AUTOPATCH_POLICY"] = arguments.policy
        environ.pop("ROCM_AUTOPATCH", None)
    short = bool(arguments.line or arguments.textfile or arguments.check)
    torch = not short if arguments.torch is None else arguments.torch
    ask = partial(fresh_interpreter.report, torch, arguments.assumed, environ)
    if arguments.line:
        return _line_result(ask, torch)
    if not (short or arguments.json):
        return _text_result(ask, asked, environ, arguments)
    report = ask()
    if arguments.check:
        return _check_result(_masked_report(report), asked)
    if arguments.textfile:
        _write_textfile(_masked_report(report), arguments.textfile)
    return CommandResult(data=lambda: report, status=1 if report["errors"] else 0)


COMMAND = Command(
    StatusArguments,
    show_status,
    description=(
        "Start a fresh interpreter with this environment, as a program would be, and say at "
        "once whether a policy applies there. Then import torch in it, and print a line for "
        "each variable, config key, compile mode and patch that the policy changes: what it "
        "was, and what it is."
    ),
    example="docker run --rm IMAGE rocm-autopatch status",
    statuses={
        0: "a report, also of a place where no policy applies; with --check, a policy is in "
        "force; with --line always, and errors are in the line",
        1: "something failed, there is no report, or FILE.prom can't be written; with --check, "
        "also: no policy is in force",
    },
)


def _masked_report(report: ProcessReport) -> ProcessReport:
    shown: ProcessReport = fresh_interpreter.secrets().data(report)
    return shown


def _line_result(ask: Callable[[], ProcessReport], torch: bool) -> CommandResult:
    remarks = []
    try:
        report = ask()
    except fresh_interpreter.NoReport as error:
        remarks = [str(error)]
        report = metrics.NO_REPORT
    text = json.dumps(_masked_report(metrics.summarize_report(report, torch)))
    # Another status makes mpirun end the other workers before they have printed theirs.
    return CommandResult(lambda: [text], remarks=remarks)


def _text_result(
    ask: Callable[..., ProcessReport],
    asked: str,
    environ: Mapping[str, str],
    arguments: StatusArguments,
) -> CommandResult:
    def say_verdict(started: ProcessReport) -> None:
        shown = _masked_report(started)
        text = wrapped(sentences.verdict_line(shown, asked), "", "  ")
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
    return CommandResult(
        lambda: map(style.colour_statuses, text), status=1 if report["errors"] else 0
    )


def _check_result(report: ProcessReport, asked: str) -> CommandResult:
    for note in report["notes"]:
        # What bake was given is not in force, whatever is.
        if note.startswith(unbaked.UNUSED) and not note.startswith(unbaked.UNUSED + unbaked.WISHED):
            raise UserError(note)
    if sentences.is_in_force(report):
        return CommandResult(lambda: [sentences.verdict_line(report, asked)])
    error = report["errors"][0] if report["errors"] else ""
    raise UserError(sentences.verdict_line(report, asked, error))


def _write_textfile(report: ProcessReport, file: Path) -> None:
    text = "".join(f"{line}\n" for line in metrics.node_exporter_lines(report, file.name))
    try:
        files.write(file, text.encode("utf-8", "replace"))
    except OSError as error:
        raise UserError(f"{file} can't be written: {error.strerror}") from None
