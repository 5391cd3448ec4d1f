"""``rocm-autopatch run -- COMMAND``: run a command, and say afterwards what it compiled."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocm_autopatch import _profile, _report, _start, fresh_interpreter
from rocm_autopatch.cli import report, terminal
from rocm_autopatch.compiles import summary
from rocm_autopatch.compiles.gather import gather

_PASSED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="run a command and say afterwards what it compiled",
        description=(
            "Run COMMAND as it is, and pass its exit status on. --report gathers what all its "
            "processes compile in DIR, prints a summary to stderr at the end, and writes "
            "DIR/report.html. --trace writes a profile of the first process that imports torch, "
            "for ui.perfetto.dev; with %%p in FILE, of each one. Exit status: 0, or whatever "
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
    environment.update({n: os.environ[n] for n in (_start.SAID,) if n in os.environ})
    try:
        if arguments.report is not None:
            _prepare_report(arguments.report, environment)
        else:
            # The start looks for this one name, and then for what is wanted.
            environment[_report.WANTED] = ""
        if arguments.trace is not None:
            _prepare_trace(arguments.trace, environment)
    except OSError as error:
        terminal.say(f"rocm-autopatch run: {error}: nothing was run")
        return 1
    status = _run(words, environment)
    if arguments.report is not None:
        _afterwards(_summarize, arguments.report)
    if arguments.trace is not None:
        _afterwards(_say_trace, arguments.trace)
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


def _prepare_report(directory: Path, environment: dict[str, str]) -> None:
    """Make the directory, and name it to the command. Raises OSError where it can't serve."""
    directory = directory.absolute()
    traces = directory / _report.TRACES
    try:
        traces.mkdir(parents=True, exist_ok=True)
        # By doing it: access(2) says yes to root on much that can't be written. A link may lead to
        # a file that is not ours to write.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        os.close(os.open(directory / _report.PROCESSES, flags, 0o666))
        if traces.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except OSError as error:
        raise OSError(f"{directory} can't be written: {error.strerror}") from None
    if any(traces.iterdir()) or (directory / _report.PROCESSES).stat().st_size:
        raise OSError(f"{directory} has a report already: name another directory, or remove it")
    if environment.get(_report.TRACE, "") == f"{environment.get(_report.WANTED)}/{_report.TRACES}":
        del environment[_report.TRACE]  # our own start's
    environment[_report.WANTED] = str(directory)
    # Here too, for an interpreter that our hook is not in.
    environment.setdefault(_report.TRACE, str(traces))


def _prepare_trace(path: Path, environment: dict[str, str]) -> None:
    path = path.absolute()
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OSError(f"{path.parent} is not there or can't be written")
    environment[_report.PROFILE] = str(path)
    for stale in (path, Path(_profile.partial(str(path)))):
        stale.unlink(missing_ok=True)


def _run(words: list[str], environment: dict[str, str]) -> int:
    """Run a command and return its status, 128 and the signal's number if one ended it."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def hand_on(number: int, _: object) -> None:
        # The command may be at work before Popen returns.
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # A terminal sends these two to the command as well: it decides, and we wait for it.
    before = {number: signal.signal(number, _wait) for number in (signal.SIGINT, signal.SIGQUIT)}
    before.update({number: signal.signal(number, hand_on) for number in _PASSED})
    try:
        child = subprocess.Popen(words, env=environment)
        for number in early:
            child.send_signal(number)
        status = child.wait()
    except FileNotFoundError:
        terminal.say(f"rocm-autopatch run: {words[0]}: not found")
        return 127
    except OSError as error:
        terminal.say(f"rocm-autopatch run: {words[0]}: {error.strerror}")
        return 126
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _wait(*_: object) -> None:
    # Not SIG_IGN, which the command would inherit.
    pass


def _summarize(directory: Path) -> None:
    found = gather(directory)
    terminal.lines(summary.lines(found), sys.stderr)
    if found.graphs and report.write_page(found, directory / "report.html"):
        terminal.lines(["", f"with plots: {directory / 'report.html'}"], sys.stderr)


def _say_trace(path: Path) -> None:
    if "%p" in path.name:
        head, _, tail = path.name.partition("%p")
        written = sorted(path.parent.glob(f"{head}[0-9]*{tail}"))
        begun = list(path.parent.glob(f".part-{head}[0-9]*{tail}"))
    else:
        written = [path] if path.exists() else []
        begun = [part] if (part := Path(_profile.partial(str(path)))).exists() else []
    for one in written:
        terminal.say(f"profile: {one}")
    for one in begun:
        name = one.name[len(".part-") :]
        terminal.say(f"no profile {name}: its process ended by a signal or os._exit")
        one.unlink(missing_ok=True)
    if not written and not begun:
        terminal.say("no profile: no process with rocm_autopatch imported torch")
