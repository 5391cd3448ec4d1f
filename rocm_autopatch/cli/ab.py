"""``rocm-autopatch ab``: measure the effect of a switch on a command, and the noise."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from rocm_autopatch.cli import options, statuses, terminal
from rocm_autopatch.measure.ab import (
    RequestRefused,
    WrongRequest,
    measurement,
    numbers,
    output,
    plot,
    runner,
    sequential,
)
from rocm_autopatch.measure.ab.measurement import ComparisonRequest
from rocm_autopatch.support import processes


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "ab",
        help="measure what a switch does to your own command",
        usage=(
            "rocm-autopatch ab --toggle NAME[=VALUE,...] [--toggle ...] [option ...] "
            "-- COMMAND [ARGUMENT ...]"
        ),
        description=(
            "Run COMMAND with each switch on and off, in alternating order, with cold and with "
            "warm caches, and compare its wall time and the numbers that it prints. A switch is a "
            "config key (max_autotune, triton.cudagraphs=false,true), a variable ('NAME=1,' "
            "compares 1 with unset), a compile mode "
            "(mode.max-autotune=default,max-autotune-no-cudagraphs) or a policy "
            "(policy=off,safe,FILE.yaml). The first value is the base."
        ),
        epilog="example: rocm-autopatch ab --toggle epilogue_fusion -- python bench.py --steps 50",
    )
    statuses.state_statuses(
        parser,
        {
            0: "everything was measured",
            1: "a run failed or hung, a switch takes no effect here, or nothing could be measured",
        },
    )
    parser.add_argument(
        "--toggle",
        action="append",
        required=True,
        metavar="NAME[=VALUE,...]",
        help=(
            "no value: compare a config key as false and true, a variable as it is here and unset; "
            "one value: compare what is here with that value; quote a value that has a comma: "
            "'NAME=\"A,B\",C'; of several toggles, one is moved at a time"
        ),
    )
    parser.add_argument("--grid", action="store_true", help="run all combinations of the toggles")
    parser.add_argument(
        "--repeat",
        type=_parse_count(1),
        metavar="N",
        help=f"runs of each arm (default: 5; with --until-sure at most {sequential.MOST})",
    )
    parser.add_argument(
        "--until-sure",
        action="store_true",
        help=(
            "stop the runs of an arm as soon as it is sure that it differs in the numbers that "
            "--metric names (default: in the wall time); it errs in 1 of 20 arms at most"
        ),
    )
    parser.add_argument(
        "--caches",
        type=_parse_caches,
        default=(runner.COLD, runner.WARM),
        metavar="cold,warm",
        help="measure with cold or warm caches of compiled code (default: both, separately)",
    )
    parser.add_argument(
        "--warmup",
        type=_parse_count(0),
        default=1,
        metavar="N",
        help="unmeasured runs of each arm, which fill the caches for --caches warm (default: 1)",
    )
    parser.add_argument(
        "--timeout",
        type=_parse_seconds,
        default=1800.0,
        metavar="SECONDS",
        help="a run that takes longer counts as hanging, and is killed (default: 1800)",
    )
    parser.add_argument(
        "--seed", type=int, help="seed of the order of runs; it is printed (default: random)"
    )
    parser.add_argument(
        "--number",
        action="append",
        default=[],
        metavar="REGEX",
        help=(
            "take the number in this regular expression's one group, (?P<NAME>...) to name it "
            "(default: all numbers that have a label)"
        ),
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help=f"show only this number; {numbers.WALL!r} is the wall time (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print every run as JSON")
    options.add_plot(parser)
    options.add_program(parser)
    parser.set_defaults(run=run)


def _parse_count(least: int) -> Any:
    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return seconds


def _parse_caches(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    known = (runner.COLD, runner.WARM)
    if not set(words) <= set(known):
        raise argparse.ArgumentTypeError(f"{text!r} is not cold, warm or cold,warm")
    return tuple(kind for kind in known if kind in words)


def run(arguments: argparse.Namespace) -> int:
    program = options.parse_command(arguments.program)
    request = ComparisonRequest(
        program=program,
        toggles=arguments.toggle,
        grid=arguments.grid,
        repeat=arguments.repeat or (sequential.MOST if arguments.until_sure else 5),
        until_sure=arguments.until_sure,
        caches=arguments.caches,
        warmup=arguments.warmup,
        timeout=arguments.timeout,
        seed=arguments.seed,
        numbers=arguments.number,
        metrics=arguments.metric,
        plot=arguments.plot,
    )
    try:
        with tempfile.TemporaryDirectory(prefix="rocm-autopatch-ab-") as directory:
            done = measurement.prepare_comparison(request, Path(directory))
            measurement.measure_cells(done)
    except WrongRequest as error:
        terminal.print_error(f"rocm-autopatch ab: {error}")
        return 2
    except (RequestRefused, OSError) as error:
        terminal.print_error(f"rocm-autopatch ab: {error}")
        return 1
    except KeyboardInterrupt:
        terminal.print_error("rocm-autopatch ab: interrupted before the first run")
        return processes.INTERRUPTED
    status = measurement.evaluate_runs(done, None if arguments.json else output.MOST_METRICS)
    if arguments.json:
        terminal.print_data(output.comparison_document(done))
    else:
        terminal.print_lines(output.comparison_lines(done))
    if request.plot and done.rows:
        try:
            plot.draw_comparison(request.plot, done.rows, *output.plot_legend(done))
        except OSError as error:
            terminal.print_error(f"rocm-autopatch ab: --plot: {error}")
            status = status or 1
    return status
