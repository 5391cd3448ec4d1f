"""``rocm-autopatch tune``: find the fastest policy for a command, and prove that it is."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rocm_autopatch.cli import options, terminal, values
from rocm_autopatch.cli.command import (
    Command,
    CommandResult,
    flag_field,
    option_field,
    optional_flag,
    program_words,
    repeated_option,
)
from rocm_autopatch.measure.ab import numbers
from rocm_autopatch.measure.tune import output, tuning
from rocm_autopatch.measure.tune.tuning import TuningRequest
from rocm_autopatch.support import processes

_MOST_BESIDE = 256


@dataclass(frozen=True)
class TuneArguments:
    budget: float = option_field(
        "--budget",
        parse=values.parse_duration,
        default=1800.0,
        metavar=values.DURATION,
        help="how long to search: 30m, 2h, 6m30s or 90s (default: 30m)",
    )
    metric: str = option_field(
        "--metric",
        parse=str,
        default="",
        metavar="NAME",
        help=options.METRIC + " (default: the wall time)",
    )
    higher: bool | None = optional_flag(
        "--higher", value=True, group="better", help="higher is better"
    )
    lower: bool = flag_field("--lower", group="better", help="lower is better (default)")
    number: tuple[str, ...] = options.number_option()
    cold: float = option_field(
        "--cold",
        parse=values.parse_percent,
        default=0.0,
        metavar=values.PERCENT,
        help="how many of 100 starts have empty caches of compiled code (default: 0)",
    )
    same: tuple[str, ...] = repeated_option(
        "--same",
        parse=str,
        metavar="NAME",
        help="a number that the command prints, or a file that it writes: it has to be the same",
    )
    tolerance: float = option_field(
        "--tolerance",
        parse=values.parse_part,
        default=1e-3,
        metavar="PART",
        help="how far apart numbers may be, as a part of the base's (default: 0.001)",
    )
    toggle: tuple[str, ...] = options.toggle_option(
        "try this too, whatever a policy pins; a switch as ab --toggle has it"
    )
    only: tuple[str, ...] = options.only_option("switches, with --toggle or without")
    without: tuple[str, ...] = repeated_option(
        "--without", parse=str, metavar="NAME", help="do not try this switch"
    )
    worth: float = option_field(
        "--worth",
        parse=values.parse_percent,
        default=0.02,
        metavar=values.PERCENT,
        help="a smaller gain is not looked for (default: 2)",
    )
    out: Path = option_field(
        "--out",
        parse=values.parse_path,
        default=Path("tuned.yaml"),
        metavar="FILE",
        help="the policy (default: tuned.yaml); the runs are kept in FILE.runs",
    )
    again: bool = flag_field("--again", help="start anew, and drop the runs that are kept")
    list: bool = flag_field("--list", help="print what would be tried and what not, and end")
    timeout: float = options.timeout_option()
    fill: int = option_field(
        "--fill",
        parse=values.count_of(1, _MOST_BESIDE),
        default=1,
        metavar=values.COUNT,
        help=(
            "fill the caches for the next runs in N runs of the command at the same time; what is "
            "measured runs alone (default: 1)"
        ),
    )
    seed: int | None = options.seed_option()
    serve: tuple[str, ...] = option_field(
        "--serve",
        parse=values.parse_words,
        default=(),
        metavar="COMMAND",
        help="a server, in one argument; each run starts it and stops it",
    )
    client: tuple[str, ...] = option_field(
        "--client",
        parse=values.parse_words,
        default=(),
        metavar="COMMAND",
        help="the client that measures the server, in one argument",
    )
    ready: str = option_field(
        "--ready",
        parse=str,
        default="",
        metavar="TEXT",
        help=(
            "the server is ready when this is in its output, or when this URL answers (default: "
            "when it listens on a TCP port)"
        ),
    )
    json: bool = options.json_flag("print the result as JSON")
    plot: Path | None = options.plot_option()
    program: tuple[str, ...] = program_words("the command to run", needed=False)


def _usage_error(arguments: TuneArguments) -> str | None:
    if bool(arguments.serve) != bool(arguments.client):
        return "--serve and --client belong together"
    if arguments.serve and arguments.program:
        return "give a command, or --serve and --client, but not both"
    if arguments.ready and not arguments.serve:
        return "--ready needs --serve"
    if arguments.fill > 1 and arguments.serve:
        return "--fill is for a command; servers at the same time would need the same port"
    if arguments.fill > 1 and arguments.cold:
        return "--fill is for warm caches: a first run is what --cold measures"
    return None


def tune_program(arguments: TuneArguments) -> CommandResult:
    request = TuningRequest(
        program=arguments.client or arguments.program,
        server=arguments.serve,
        ready=arguments.ready,
        budget=arguments.budget,
        metric="" if arguments.metric == numbers.WALL else arguments.metric,
        higher=False if arguments.lower else arguments.higher,
        numbers=arguments.number,
        cold=arguments.cold,
        same=arguments.same,
        tolerance=arguments.tolerance,
        toggles=arguments.toggle,
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
            if not arguments.list:
                tuning.run_tuning(done, Path(directory), terminal.print_error)
    except KeyboardInterrupt:
        raise options.interrupted_early() from None
    if arguments.list:
        return CommandResult(
            lambda: output.candidate_lines(done), lambda: output.candidate_plan(done)
        )
    status = processes.INTERRUPTED if done.partial else 1 if done.trouble else 0
    remarks: list[str] = []
    if request.plot:
        remarks = options.plot_trouble(partial(output.draw_search, request.plot, done))
    return CommandResult(
        lambda: output.report_lines(done),
        lambda: output.tuning_document(done),
        status=status or int(bool(remarks)),
        remarks=remarks,
    )


COMMAND = Command(
    TuneArguments,
    tune_program,
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
    example=(
        "rocm-autopatch tune --budget 30m --metric latency --same loss "
        "--out team.yaml -- python bench.py"
    ),
    statuses={
        0: "the search ended, also if nothing helps",
        1: (
            "the command does not run as it is here, nothing can be tried, or the policy does "
            "not do what the search saw"
        ),
    },
    usage_error=_usage_error,
    page="tune.md",
)
