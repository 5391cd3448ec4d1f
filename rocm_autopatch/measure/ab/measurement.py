"""A comparison from the request to the rows of its table."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.evidence import machine
from rocm_autopatch.measure.ab import (
    RequestRefused,
    WrongRequest,
    arms,
    imports,
    numbers,
    place,
    plot,
    results,
    runner,
    sequential,
    toggles,
)
from rocm_autopatch.measure.ab.progress import RunProgress
from rocm_autopatch.patches import compile_modes
from rocm_autopatch.support import processes
from rocm_autopatch.support.text import counted


@dataclass(frozen=True)
class ComparisonRequest:
    """What to compare, and how: the options of ``rocm-autopatch ab``.

    ``timeout`` is in seconds. If ``seed`` is None, a random one is used. With ``until_sure``,
    ``repeat`` is the most runs of an arm: it is run no more when it is sure that it differs.
    """

    program: Sequence[str]
    toggles: Sequence[str]
    grid: bool
    repeat: int
    until_sure: bool
    caches: tuple[str, ...]
    warmup: int
    timeout: float
    seed: int | None
    numbers: Sequence[str]
    metrics: Sequence[str]
    plot: Path | None


@dataclass
class Measurement:
    """The request, what was found, and what was run so far.

    ``telling`` is the command where it tells its imports; () if its interpreter is unknown.
    """

    request: ComparisonRequest
    seed: int
    toggles: list[toggles.Toggle]
    arms: list[arms.ToggleArm]
    on: str
    notes: list[str]
    patterns: list[numbers.NumberPattern]
    planned: int = 0
    runs: tuple[runner.MeasuredRun, ...] = ()
    elapsed_s: float = 0.0
    partial: bool = False
    rows: tuple[results.MetricRow, ...] = ()
    telling: Sequence[str] = ()

    @property
    def failures(self) -> list[runner.MeasuredRun]:
        return [run for run in self.runs if run.status != runner.ENDED]


def prepare_comparison(request: ComparisonRequest, directory: Path) -> Measurement:
    """Do all checks that are possible before the first run.

    Raises WrongRequest and RequestRefused.
    """
    if runner.COLD not in request.caches and not request.warmup:
        raise WrongRequest(
            "--caches warm needs a run that fills the caches: give --warmup 1 or more"
        )
    if request.until_sure and request.repeat < sequential.CLEAR:
        raise WrongRequest(f"--until-sure needs --repeat {sequential.CLEAR} or more")
    if request.plot:
        plot.check_plot_path(request.plot)
    patterns = [numbers.parse_pattern(text) for text in request.numbers]
    here = place.find_program_place(request.program)
    environ, python, seen, report = here.environ, here.python, here.seen, here.report
    chosen = [toggles.parse_toggle(text, here.fact("torch"), environ) for text in request.toggles]
    made = arms.make_arms(here, chosen, request.grid, directory)
    notes = []
    if not seen:
        notes.append(
            f"the command's interpreter is unknown, so toggles were checked in {python[0]}"
        )
    hooked = any(toggle.kind != toggles.VARIABLE for toggle in chosen)
    modes = [t for t in chosen if t.kind == toggles.MODE]
    if report is not None:
        # Inductor makes a directory for its caches when it is imported.
        environs = [{**arm.environ, **runner.own_caches(directory)} for arm in made]
        with ThreadPoolExecutor(runner.usable_cores()) as pool:
            ask = partial(fresh_interpreter.report, hooked, (), python=python)
            reports = list(pool.map(lambda its: ask(environ=its), environs))
        for arm, its in zip(made, reports):
            arms.verify_arm(chosen, arm, its)
        words = {word for t in modes for word in (t.name, *t.values) if isinstance(word, str)}
        words -= set(compile_modes.OURS)  # Inductor has no options for these.
        options = place.ask_torch(python, environs[0], sorted(words))["modes"] if words else {}
        arms.verify_all(chosen, made, reports, options)
        notes += _toggle_remarks(here, chosen, made, reports)
    else:
        notes.append(f"the torch of {python[0]} is unknown: {here.without}")
    notes += filter(None, [here.slow_imports])
    if runner.COLD not in request.caches:
        notes.append(
            "each arm fills its caches once; what torch chooses then by timing kernels is partly "
            "luck, and is in all of its runs; with cold and warm caches, each round fills them"
        )
    seed = random.randrange(1_000_000) if request.seed is None else request.seed
    done = Measurement(request, seed, chosen, made, describe_place(here), notes, patterns)
    if seen:
        path = shutil.which(request.program[0], path=environ.get("PATH"))
        done.telling = imports.traced_program(request.program, str(path), python)
    return done


def _toggle_remarks(
    here: place.ProgramPlace,
    chosen: Sequence[toggles.Toggle],
    made: Sequence[arms.ToggleArm],
    reports: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """What a reader of the numbers has to know about how the toggles were set."""
    for toggle in chosen:
        kept = [r for report in reports for r in report["env"] if r["name"] == toggle.name]
        if kept:
            yield (
                f"policy {kept[0]['layer']} has a rule for {toggle.name}; ab turns this rule off "
                "(ROCM_AUTOPATCH_KEEP)"
            )
    kinds = {toggle.kind for toggle in chosen}
    if kinds == {toggles.VARIABLE}:
        return
    if not here.is_rocm:
        what = "policies apply" if toggles.POLICY in kinds else "the hook sets only the toggles"
        yield (
            f"torch here is not a ROCm build ({here.fact('accelerator')}): {what}, by "
            "ROCM_AUTOPATCH_ASSUME=accelerator=rocm"
        )
    for arm, report in zip(made, reports):
        yield from (f"{arm.label}: {error}" for error in report["errors"])


def describe_place(here: place.ProgramPlace) -> str:
    """A line about the place."""
    words = []
    if here.fact("torch"):
        words.append(f"torch {here.fact('torch')}")
    accelerator = here.fact("accelerator")
    if accelerator == "rocm":
        words += [f"ROCm {here.fact('rocm')}"] if here.fact("rocm") else []
        # A torch that is taken for a ROCm build may run on another GPU.
        words.append(here.fact("gpu") or here.fact("gfx") or _device_name() or "GPU unknown")
    elif accelerator == "cuda":
        try:
            words.append(place.ask_torch(here.python, here.environ)["device"] or "no GPU")
        except RequestRefused:
            words.append("GPU unknown")
    elif accelerator:
        words.append(accelerator)
    if here.fact("image"):
        words.append(here.fact("image"))
    if here.fact("python"):
        words.append(f"Python {here.fact('python')}")
    words.append(counted(runner.usable_cores(), "core"))
    words.append(f"rocm_autopatch {metadata.version('rocm_autopatch')}")
    words.append(time.strftime("%Y-%m-%d"))
    return ", ".join(words)


def _device_name() -> str:
    device = machine.machine_here()["device"]
    return "" if device == machine.NO_GPU else device


def measure_cells(done: Measurement) -> None:
    """Run everything, or as much as there is time for until an interrupt."""
    request = done.request
    patterns = done.patterns
    cells = runner.schedule_runs(
        len(done.arms), request.caches, request.repeat, request.warmup, done.seed
    )
    done.planned = len(cells)
    environments = [arm.environ for arm in done.arms]
    began = time.monotonic()
    progress = RunProgress(len(cells))
    runs: list[runner.MeasuredRun] = []
    watched: list[numbers.NumberLabel] = []
    last_warmup = sum(not cell.round for cell in cells) - 1
    try:
        with runner.ArmRunner(request.program, environments, request.timeout, patterns) as session:
            while cells:
                cell = cells.pop(0)
                label = _cell_label(done, cell)
                progress.begins(label)
                # By the last of the unmeasured runs, the modules are in the system's memory.
                ran = session.run(cell, done.telling if len(runs) == last_warmup else ())
                runs.append(ran)
                count = 1
                if ran.status != runner.ENDED:
                    # One failure is a result. This arm is not run again, the others go on.
                    rest = [other for other in cells if other.arm != cell.arm]
                    count += len(cells) - len(rest)
                    cells = rest
                elif request.until_sure and watched:
                    rest = _unsure_cells(cells, runs, watched, request.caches)
                    count += len(cells) - len(rest)
                    cells = rest
                how = ran.reason or f"{ran.seconds:.2f} s"
                progress.ended(f"{label}: {how}", count, time.monotonic() - began)
                if len(runs) == 1 and ran.status == runner.ENDED:
                    watched = _watched_numbers(request, patterns, ran)
    except KeyboardInterrupt:
        done.partial = True
    done.runs = tuple(runs)
    done.elapsed_s = time.monotonic() - began


def _cell_label(done: Measurement, cell: runner.PlannedRun) -> str:
    return f"{done.arms[cell.arm].label}, {cell.caches if cell.round else 'warm-up'}"


def _unsure_cells(
    cells: Sequence[runner.PlannedRun],
    runs: Sequence[runner.MeasuredRun],
    watched: Sequence[numbers.NumberLabel],
    caches: Sequence[str],
) -> list[runner.PlannedRun]:
    """Those of *cells* that are still to be run: of arms that are not sure to differ, and the
    base's as long as there are such arms."""
    open_ = set()
    failed = {run.arm for run in runs if run.status != runner.ENDED}
    for arm in {run.arm for run in runs} - failed - {0}:
        both = [
            (results.numbers_of(runs, m, kind, 0), results.numbers_of(runs, m, kind, arm))
            for m in watched
            for kind in caches
        ]
        if not all(sequential.sure_after(base, its) for base, its in both):
            open_.add(arm)
    open_ |= {cell.arm for cell in cells if cell.arm} - {run.arm for run in runs}
    return [cell for cell in cells if open_ and (not cell.arm or cell.arm in open_)]


def _watched_numbers(
    request: ComparisonRequest, patterns: Sequence[numbers.NumberPattern], ran: runner.MeasuredRun
) -> list[numbers.NumberLabel]:
    """The numbers that have to be sure before an arm is run no more.

    Raises Refused after the first run if a wanted number is missing in it.
    """
    for one in patterns:
        if numbers.NumberLabel(one.name) not in ran.numbers:
            raise RequestRefused(
                f"--number {one.pattern.pattern} matches nothing that the command printed"
            )
    named = results.chosen_metrics([results.WALL_METRIC, *ran.numbers], request.metrics)
    return named if request.metrics else [results.WALL_METRIC]


def evaluate_runs(done: Measurement, most: int | None) -> int:
    """Compare what was measured, for at most *most* metrics. Returns the exit status."""
    request = done.request
    _tell_imports(done)
    found = results.comparable_metrics(done.runs, bool(request.numbers))
    status = processes.INTERRUPTED if done.partial else 1 if done.failures else 0
    if done.partial and not any(run.status == runner.ENDED for run in done.runs):
        # No number can be missing in what was not run.
        done.notes.append("interrupted before a run ended: nothing was measured")
        return status
    try:
        wanted = results.chosen_metrics(found, request.metrics)
    except RequestRefused as error:
        done.notes.append(str(error))
        wanted, status = [results.WALL_METRIC], status or 1
    if not request.metrics and not request.numbers:
        changing = results.changing_metrics(wanted, done.runs)
        constant = len(wanted) - len(changing)
        if constant:
            these = "number was" if constant == 1 else "numbers were"
            done.notes.append(f"{constant} {these} left out: the same in every run")
        wanted = changing
        if most is not None and len(wanted) > most:
            names = "; ".join(map(str, wanted[most:]))
            done.notes.append(f"not shown (use --metric NAME to show one): {names}")
            wanted = wanted[:most]
    done.rows = tuple(
        results.table_rows(
            done.runs, wanted, request.caches, len(done.arms), done.seed, request.until_sure
        )
    )
    return status


def _tell_imports(done: Measurement) -> None:
    """Give each run the number of its seconds without imports, if these are worth a row."""
    took = max((run.imports_s for run in done.runs), default=0.0)
    measured = [run.seconds for run in done.runs if run.round and run.status == runner.ENDED]
    if not measured or took < imports.WORTH * median(measured) or min(measured) <= took:
        return
    done.notes.append(
        f"imports took {took:.1f} s of a run, told by one unmeasured run (-X importtime); "
        f"{imports.WITHOUT.name!r} is the wall time less that"
    )
    done.runs = tuple(
        replace(run, numbers={imports.WITHOUT: run.seconds - took, **run.numbers})
        if run.status == runner.ENDED
        else run
        for run in done.runs
    )
