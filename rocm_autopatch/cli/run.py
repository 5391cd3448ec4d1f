"""``rocm-autopatch run -- COMMAND``: run a command, and then print what it compiled."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocm_autopatch import fresh_interpreter, startup
from rocm_autopatch.cli import options, report, statuses, terminal
from rocm_autopatch.compile_report import session, summary
from rocm_autopatch.compile_report.gather import gather_report


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a command, and then print what it compiled",
        description=(
            "Run COMMAND without changes, and end with its exit status. --report gathers in DIR "
            "what all its processes compile, prints a summary to stderr at the end, and writes "
            "DIR/report.html. --trace writes a profile of the first process that imports torch, "
            "for ui.perfetto.dev; with %p in the name, a profile of each process."
        ),
        epilog="example: rocm-autopatch run --report /tmp/report -- python serve.py",
    )
    statuses.state_statuses(
        parser, {**statuses.PASSED_ON, 1: "nothing was run, because DIR or FILE can't be written"}
    )
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="a new or empty directory for the report"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="the profile: FILE.json or FILE.json.gz"
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    words = options.parse_command(arguments.words)
    if not words:
        arguments.parser.error("the COMMAND is missing: rocm-autopatch run --report DIR -- COMMAND")
    if arguments.report is None and arguments.trace is None:
        arguments.parser.error("nothing to do: give --report DIR or --trace FILE")
    environment = fresh_interpreter.before_us()
    # What was said before is not said again. What our own start has changed is put back.
    said = [
        word for word in os.environ.get(startup.SAID, "").split(",") if word[:1] not in ("", "=")
    ]
    if said:
        environment[startup.SAID] = ",".join(said)
    try:
        session.prepare_environment(arguments.report, arguments.trace, environment)
    except OSError as error:
        terminal.print_error(f"rocm-autopatch run: nothing was run: {error}")
        return 1
    try:
        status = session.run_command(words, environment)
    except session.NotRun as error:
        terminal.print_error(f"rocm-autopatch run: {words[0]}: {error}")
        status = error.status
    if arguments.report is not None:
        _tell_report(lambda path: session.record_status(path, status), arguments.report)
        _tell_report(_summarize_profiles, arguments.report)
    if arguments.trace is not None:
        _tell_report(_say_profiles, arguments.trace)
    return status


def _tell_report(tell: Callable[[Path], None], path: Path) -> None:
    """Print what was found. An error here does not change the command's status."""
    try:
        tell(path)
    except (Exception, KeyboardInterrupt) as error:
        try:
            terminal.print_error(
                f"rocm-autopatch run: the report failed: {type(error).__name__}: {error}"
            )
        except Exception:
            terminal.give_up(sys.stderr)


def _summarize_profiles(directory: Path) -> None:
    found = gather_report(directory)
    terminal.print_lines(summary.summary_lines(found), sys.stderr)
    if found.graphs and report.write_page(found, directory / "report.html"):
        terminal.print_lines(["", f"with plots: {directory / 'report.html'}"], sys.stderr)


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
