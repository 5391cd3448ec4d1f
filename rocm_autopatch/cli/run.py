"""``rocm-autopatch run -- COMMAND``: run a command, and then print what it compiled."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch import fresh_interpreter, startup
from rocm_autopatch.cli import report as report_command
from rocm_autopatch.cli import terminal, values
from rocm_autopatch.cli.command import Command, CommandResult, option_field, program_words
from rocm_autopatch.cli.statuses import PASSED_ON
from rocm_autopatch.compile_report import session, summary
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.support.user_error import UserError, describe_os_error


@dataclass(frozen=True)
class RunArguments:
    report: Path | None = option_field(
        "--report",
        parse=values.parse_path,
        default=None,
        metavar="DIR",
        help=(
            "a new or empty directory for the report (default: one of its own, which is named; "
            "none with --trace alone)"
        ),
    )
    trace: Path | None = option_field(
        "--trace",
        parse=values.parse_path,
        default=None,
        metavar="FILE",
        help="the profile: FILE.json or FILE.json.gz",
    )
    words: tuple[str, ...] = program_words()


def run_program(arguments: RunArguments) -> CommandResult:
    environment = fresh_interpreter.before_us()
    # What was said before is not said again. What our own start has changed is put back.
    said = [
        word for word in os.environ.get(startup.SAID, "").split(",") if word[:1] not in ("", "=")
    ]
    if said:
        environment[startup.SAID] = ",".join(said)
    report = arguments.report
    try:
        if report is None and arguments.trace is None:
            report = Path(tempfile.mkdtemp(prefix="rocm-autopatch-report-"))
            terminal.print_error(f"rocm-autopatch run: the report will be in {report}")
        session.prepare_environment(report, arguments.trace, environment)
    except OSError as error:
        raise UserError(f"nothing was run: {describe_os_error(error)}") from None
    try:
        status = session.run_command(arguments.words, environment)
    except session.NotRun as error:
        terminal.print_error(f"rocm-autopatch run: {arguments.words[0]}: {error}")
        status = error.status
        if arguments.report is None and report is not None:
            # Nobody asked for this directory, and it has nothing.
            shutil.rmtree(report, ignore_errors=True)
            return CommandResult(status=status, passed_on=True)
    if report is not None:
        _tell_report(lambda path: session.record_status(path, status), report)
        _tell_report(_summarize_profiles, report)
    if arguments.trace is not None:
        _tell_report(_say_profiles, arguments.trace)
    return CommandResult(status=status, passed_on=True)


COMMAND = Command(
    RunArguments,
    run_program,
    description=(
        "Run COMMAND without changes, and end with its exit status. Gather in a directory "
        "what all its processes compile, print a summary to stderr at the end, and write "
        "report.html there. --trace writes a profile of the first process that imports torch, "
        "for ui.perfetto.dev; with %p in the name, a profile of each process."
    ),
    example="rocm-autopatch run -- python serve.py",
    statuses={**PASSED_ON, 1: "nothing was run, because DIR or FILE can't be written"},
    no_json="stdout is COMMAND's; rocm-autopatch report DIR --json prints its report",
    page="report.md",
)


def _tell_report(tell: Callable[[Path], None], path: Path) -> None:
    """Print what was found. An error here does not change the command's status."""
    try:
        tell(path)
    except (Exception, KeyboardInterrupt) as error:
        terminal.print_error(
            f"rocm-autopatch run: the report failed: {type(error).__name__}: {error}"
        )


def _summarize_profiles(directory: Path) -> None:
    found = gather_report(directory)
    terminal.print_lines(summary.summary_lines(found), sys.stderr)
    if not found.graphs:
        return
    page = directory / "report.html"
    remarks = report_command.write_page(found, page)
    for one in remarks:
        terminal.print_error(f"rocm-autopatch run: {one.text}")
    if not remarks:
        terminal.print_lines(["", f"with plots: {page}"], sys.stderr)


def _say_profiles(path: Path) -> None:
    written, unfinished = session.written_profiles(path)
    for one in written:
        terminal.print_error(f"profile: {one}")
    for name in unfinished:
        terminal.print_error(f"{name} was not written: its process ended by a signal or os._exit")
    if not written and not unfinished:
        terminal.print_error(
            "no profile was written: no process that has rocm_autopatch imported torch"
        )
