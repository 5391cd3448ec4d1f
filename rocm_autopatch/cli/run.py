"""``rocm-autopatch run -- COMMAND``: run a command, and say afterwards what it compiled."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocm_autopatch import fresh_interpreter, startup
from rocm_autopatch.cli import report, terminal
from rocm_autopatch.compile_report import session, summary
from rocm_autopatch.compile_report.gather import gather


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a command and say afterwards what it compiled",
        description=(
            "Run COMMAND as it is, and pass its exit status on. --report gathers what all its "
            "processes compile in DIR, prints a summary to stderr at the end, and writes "
            "DIR/report.html. --trace writes a profile of the first process that imports torch, "
            "for ui.perfetto.dev; with %p in FILE, of each one. Exit status: 0, or whatever "
            "COMMAND's is; 1 if nothing was run, as DIR or FILE can't be written; 126 or 127 if "
            "COMMAND can't be run; 2 for wrong usage."
        ),
        epilog="example: rocm-autopatch run --report /tmp/report -- python serve.py",
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="a new or empty directory")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="FILE.json or FILE.json.gz")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
    if not words:
        arguments.parser.error("a COMMAND is missing: rocm-autopatch run --report DIR -- COMMAND")
    if arguments.report is None and arguments.trace is None:
        arguments.parser.error("nothing to do: give --report DIR or --trace FILE")
    environment = fresh_interpreter.before_us()
    # What our own start had to say is said.
    environment.update({n: os.environ[n] for n in (startup.SAID,) if n in os.environ})
    try:
        session.prepare(arguments.report, arguments.trace, environment)
    except OSError as error:
        terminal.say(f"rocm-autopatch run: {error}: nothing was run")
        return 1
    try:
        status = session.run(words, environment)
    except session.NotRun as error:
        terminal.say(f"rocm-autopatch run: {words[0]}: {error}")
        status = error.status
    if arguments.report is not None:
        _afterwards(_summarize, arguments.report)
    if arguments.trace is not None:
        _afterwards(_say_profiles, arguments.trace)
    return status


def _afterwards(tell: Callable[[Path], None], path: Path) -> None:
    """Tell what was found. Whatever happens, the command's status stays what it was."""
    try:
        tell(path)
    except (Exception, KeyboardInterrupt) as error:
        try:
            terminal.say(f"rocm-autopatch run: no report: {type(error).__name__}: {error}")
        except Exception:
            terminal.give_up(sys.stderr)


def _summarize(directory: Path) -> None:
    found = gather(directory)
    terminal.lines(summary.lines(found), sys.stderr)
    if found.graphs and report.write_page(found, directory / "report.html"):
        terminal.lines(["", f"with plots: {directory / 'report.html'}"], sys.stderr)


def _say_profiles(path: Path) -> None:
    written, unfinished = session.profiles(path)
    for one in written:
        terminal.say(f"profile: {one}")
    for name in unfinished:
        terminal.say(f"no profile {name}: its process ended by a signal or os._exit")
    if not written and not unfinished:
        terminal.say("no profile: no process with rocm_autopatch imported torch")
