"""``rocm-autopatch tune``: find the fastest policy for a command, and prove that it is."""

from __future__ import annotations

import argparse
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

from rocm_autopatch.cli import options, statuses, terminal
from rocm_autopatch.measure.ab import RequestRefused, WrongRequest
from rocm_autopatch.measure.tune import output, tuning
from rocm_autopatch.measure.tune.tuning import TuningRequest
from rocm_autopatch.policy.problem import PolicyError
from rocm_autopatch.support import processes

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_DURATION = re.compile(rf"(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?|{_NUMBER}")
_MOST_BESIDE = 256
_UNITS = (3600, 60, 1, 1)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "tune",
        help="find the fastest policy for your own command",
        usage=(
            "rocm-autopatch tune [option ...] -- COMMAND [ARGUMENT ...]\n"
            "       rocm-autopatch tune [option ...] --serve COMMAND --client COMMAND"
        ),
        description=(
            "Run COMMAND under many sets of switches, find the set under which it is best, "
            "confirm it in runs beside the command as it is here, and write it as a policy file. "
            "Tried are config keys of this torch, modes, our graphs and variables; not what "
            "policies here pin or evidence says is wrong. A set with which the command fails, or "
            "computes something else, is out. Use the machine for nothing else meanwhile. The "
            "same command goes on where an earlier one ended."
        ),
        epilog=(
            "example: rocm-autopatch tune --budget 30m --metric latency --same loss "
            "--out team.yaml -- python bench.py"
        ),
    )
    statuses.state_statuses(
        parser,
        {
            0: "the search ended, also if nothing helps",
            1: (
                "the command does not run as it is here, nothing can be tried, or the policy does "
                "not do what the search saw"
            ),
        },
    )
    parser.add_argument(
        "--budget",
        type=_parse_duration,
        default=1800.0,
        metavar="TIME",
        help="how long to search: 30m, 2h, 6m30s or 90s (default: 30m)",
    )
    parser.add_argument(
        "--metric",
        default="",
        metavar="NAME",
        help="the number that the command prints and that counts (default: the wall time)",
    )
    better = parser.add_mutually_exclusive_group()
    better.add_argument(
        "--higher", dest="higher", action="store_true", default=None, help="higher is better"
    )
    better.add_argument(
        "--lower", dest="higher", action="store_false", help="lower is better (default)"
    )
    parser.add_argument(
        "--number",
        action="append",
        default=[],
        metavar="REGEX",
        help="take the number in this regular expression's one group, (?P<NAME>...) to name it",
    )
    parser.add_argument(
        "--cold",
        type=_parse_percent,
        default=0.0,
        metavar="PERCENT",
        help="how many of 100 starts have empty caches of compiled code (default: 0)",
    )
    parser.add_argument(
        "--same",
        action="append",
        default=[],
        metavar="NAME",
        help="a number that the command prints, or a file that it writes: it has to be the same",
    )
    parser.add_argument(
        "--tolerance",
        type=_parse_part,
        default=1e-3,
        metavar="PART",
        help="how far apart numbers may be, as a part of the base's (default: 0.001)",
    )
    parser.add_argument(
        "--try",
        dest="wanted",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="try this too, whatever a policy pins; a switch as ab --toggle has it",
    )
    parser.add_argument("--only", action="store_true", help="try nothing but what --try names")
    parser.add_argument(
        "--without", action="append", default=[], metavar="NAME", help="do not try this switch"
    )
    parser.add_argument(
        "--worth",
        type=_parse_percent,
        default=0.02,
        metavar="PERCENT",
        help="a smaller gain is not looked for (default: 2)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("tuned.yaml"),
        metavar="FILE",
        help="the policy (default: tuned.yaml); the runs are kept in FILE.runs",
    )
    parser.add_argument(
        "--again", action="store_true", help="start anew, and drop the runs that are kept"
    )
    parser.add_argument(
        "--list", action="store_true", help="print what would be tried and what not, and end"
    )
    parser.add_argument(
        "--timeout",
        type=_parse_duration,
        default=1800.0,
        metavar="TIME",
        help="a run that takes longer counts as hanging, and is killed (default: 30m)",
    )
    parser.add_argument(
        "--fill",
        type=_parse_limit,
        default=1,
        metavar="N",
        help=(
            "fill the caches for the next runs in N runs of the command at the same time; what is "
            "measured runs alone (default: 1)"
        ),
    )
    parser.add_argument("--seed", type=int, help="seed of the order of runs (default: random)")
    parser.add_argument(
        "--serve",
        type=_tuned_command,
        default=[],
        metavar="COMMAND",
        help="a server, in one argument; each run starts it and stops it",
    )
    parser.add_argument(
        "--client",
        type=_tuned_command,
        default=[],
        metavar="COMMAND",
        help="the client that measures the server, in one argument",
    )
    parser.add_argument(
        "--ready",
        default="",
        metavar="TEXT",
        help=(
            "the server is ready when this is in its output, or when this URL answers (default: "
            "when it listens on a TCP port)"
        ),
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options.add_plot(parser)
    options.add_program(parser)
    parser.set_defaults(run=run)


def _parse_duration(text: str) -> float:
    found = _DURATION.fullmatch(text)
    parts = zip(_UNITS, found.groups()) if found else ()
    seconds = sum(unit * float(part) for unit, part in parts if part)
    if not 0 < seconds < 1e8:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 30m, 2h, 6m30s or 90s")
    return seconds


def _parse_limit(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) <= _MOST_BESIDE):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MOST_BESIDE}")
    return int(text)


def _parse_percent(text: str) -> float:
    try:
        number = float(text.rstrip("%"))
    except ValueError:
        number = -1.0
    if not 0 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 100")
    return number / 100


def _parse_part(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def _tuned_command(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not words:
        raise argparse.ArgumentTypeError("the command is empty")
    return words


def run(arguments: argparse.Namespace) -> int:
    program = options.parse_command(arguments.program)
    wrong = _usage_error(arguments, program)
    if wrong:
        terminal.print_error(f"rocm-autopatch tune: {wrong}")
        return 2
    request = TuningRequest(
        program=arguments.client or program,
        server=arguments.serve,
        ready=arguments.ready,
        budget=arguments.budget,
        metric=arguments.metric,
        higher=arguments.higher,
        numbers=arguments.number,
        cold=arguments.cold,
        same=arguments.same,
        tolerance=arguments.tolerance,
        wanted=arguments.wanted,
        only=arguments.only,
        without=arguments.without,
        worth=arguments.worth,
        out=arguments.out,
        again=arguments.again,
        timeout=arguments.timeout,
        seed=arguments.seed,
        fill=arguments.fill,
        plot=arguments.plot,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="rocm-autopatch-tune-") as directory:
            done = tuning.prepare_tuning(request, Path(directory))
            if arguments.list and arguments.json:
                terminal.print_data(output.candidate_plan(done))
            elif arguments.list:
                terminal.print_lines(output.candidate_lines(done))
            if arguments.list:
                return 0
            tuning.run_tuning(done, Path(directory), terminal.print_error)
    except WrongRequest as error:
        terminal.print_error(f"rocm-autopatch tune: {error}")
        return 2
    except (RequestRefused, PolicyError, OSError) as error:
        for line in str(error).splitlines():
            terminal.print_error(line if line.startswith("  |") else f"rocm-autopatch tune: {line}")
        return 1
    except KeyboardInterrupt:
        terminal.print_error("rocm-autopatch tune: interrupted before the first run")
        return processes.INTERRUPTED
    if arguments.json:
        terminal.print_data(output.tuning_document(done))
    else:
        terminal.print_lines(output.report_lines(done))
    status = processes.INTERRUPTED if done.partial else 1 if done.trouble else 0
    if request.plot:
        try:
            output.draw_search(request.plot, done)
        except OSError as error:
            terminal.print_error(f"rocm-autopatch tune: --plot: {error}")
            status = status or 1
    return status


def _usage_error(arguments: argparse.Namespace, program: list[str]) -> str:
    """What is wrong with the combination of arguments, "" if nothing is."""
    if bool(arguments.serve) != bool(arguments.client):
        return "--serve and --client belong together"
    if arguments.serve and program:
        return "give a command, or --serve and --client, but not both"
    if arguments.ready and not arguments.serve:
        return "--ready needs --serve"
    if arguments.fill > 1 and arguments.serve:
        return "--fill is for a command; servers at the same time would need the same port"
    if arguments.fill > 1 and arguments.cold:
        return "--fill is for warm caches: a first run is what --cold measures"
    return ""
