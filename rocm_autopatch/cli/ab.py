"""``rocm-autopatch ab``: measure the effect of a switch on a command, and the noise."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rocm_autopatch.cli import options, values
from rocm_autopatch.cli.command import (
    Command,
    CommandResult,
    flag_field,
    option_field,
    program_words,
    repeated_option,
)
from rocm_autopatch.measure.ab import measurement, output, plot, runner, sequential
from rocm_autopatch.measure.ab.measurement import ComparisonRequest


@dataclass(frozen=True)
class AbArguments:
    toggle: tuple[str, ...] = options.toggle_option(
        "no value: compare a config key as torch has it and the other way round, a variable as it "
        "is here and unset; one value: compare what is here with that value; quote a value that "
        "has a comma: 'NAME=\"A,B\",C'; of several toggles, one is moved at a time",
        required=True,
    )
    grid: bool = flag_field("--grid", help="run all combinations of the toggles")
    repeat: int | None = option_field(
        "--repeat",
        parse=values.count_of(1),
        default=None,
        metavar=values.COUNT,
        help=f"runs of each arm (default: 5; with --until-sure at most {sequential.MOST})",
    )
    until_sure: bool = flag_field(
        "--until-sure",
        help=(
            "stop the runs of an arm as soon as it is sure that it differs in the numbers that "
            "--metric names (default: in the wall time); it errs in 1 of 20 arms at most"
        ),
    )
    caches: tuple[str, ...] = option_field(
        "--caches",
        parse=values.names_among((runner.COLD, runner.WARM)),
        default=(runner.COLD, runner.WARM),
        metavar="cold,warm",
        help="measure with cold or warm caches of compiled code (default: both, separately)",
    )
    warmup: int = option_field(
        "--warmup",
        parse=values.count_of(0),
        default=1,
        metavar=values.COUNT,
        help="unmeasured runs of each arm, which fill the caches for --caches warm (default: 1)",
    )
    timeout: float = options.timeout_option()
    seed: int | None = options.seed_option("; it is printed")
    number: tuple[str, ...] = options.number_option(" (default: all numbers that have a label)")
    metric: tuple[str, ...] = repeated_option(
        "--metric",
        parse=str,
        metavar="NAME",
        help=options.METRIC + "; the others are not shown (default: all)",
    )
    json: bool = options.json_flag("print every run as JSON")
    plot: Path | None = options.plot_option()
    program: tuple[str, ...] = program_words("the command to run")


def compare_runs(arguments: AbArguments) -> CommandResult:
    request = ComparisonRequest(
        program=arguments.program,
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
    except KeyboardInterrupt:
        raise options.interrupted_early() from None
    status = measurement.evaluate_runs(done, None if arguments.json else output.MOST_METRICS)
    remarks: list[str] = []
    if request.plot and done.rows:
        draw = partial(plot.draw_comparison, request.plot, done.rows, *output.plot_legend(done))
        remarks = options.plot_trouble(draw)
    return CommandResult(
        lambda: output.comparison_lines(done),
        lambda: output.comparison_document(done),
        status=status or int(bool(remarks)),
        remarks=remarks,
    )


COMMAND = Command(
    AbArguments,
    compare_runs,
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
    example="rocm-autopatch ab --toggle epilogue_fusion -- python bench.py --steps 50",
    statuses={
        0: "everything was measured",
        1: "a run failed or hung, a switch takes no effect here, or nothing could be measured",
    },
    page="ab.md",
)
