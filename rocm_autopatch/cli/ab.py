"""``rocm-autopatch ab``: what a switch does to the user's own command, with the noise beside it."""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

from rocm_autopatch import fresh_interpreter, masking
from rocm_autopatch.ab import (
    Refused,
    Wrong,
    arms,
    numbers,
    place,
    plot,
    results,
    runner,
    statistics,
    toggles,
)
from rocm_autopatch.ab.progress import Progress, duration
from rocm_autopatch.cli import terminal
from rocm_autopatch.text import printable, wrapped

# More metrics than these are named, not shown.
_MOST = 10
INTERRUPTED = 130
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_VERDICTS = (statistics.SAME, statistics.DIFFERENT)


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "ab",
        help="measure what a switch does to your own command",
        usage=(
            "rocm-autopatch ab --toggle NAME[=VALUE,...] [--toggle ...] [option ...] "
            "-- COMMAND [ARGUMENT ...]"
        ),
        description=(
            "Run COMMAND with each switch on and off, by turns, with cold and with warm caches, "
            "and compare its wall time and the numbers that it prints. A switch is a config key "
            "(max_autotune, triton.cudagraphs=false,true), a variable (NAME=1, for 1 and unset), "
            "a compile mode (mode.reduce-overhead=default,reduce-overhead) or a policy "
            "(policy=off,safe,FILE.yaml). The first value is the base. Exit status: 0, or 1 "
            "if a run failed or hung, or a switch does not take effect here; 2 for wrong usage; "
            "130 if interrupted."
        ),
        epilog="example: rocm-autopatch ab --toggle epilogue_fusion -- python bench.py --steps 50",
    )
    parser.add_argument(
        "--toggle",
        action="append",
        required=True,
        metavar="NAME[=VALUE,...]",
        help=(
            "without values: off and on, or as here and unset; one value: as here and that value; "
            "quote a value with a comma, 'NAME=\"A,B\",C'; each toggle is moved by itself"
        ),
    )
    parser.add_argument("--grid", action="store_true", help="all combinations of the toggles")
    parser.add_argument(
        "--repeat", type=_count(1), default=5, metavar="N", help="runs of each arm (default: 5)"
    )
    parser.add_argument(
        "--caches",
        type=_caches,
        default=(runner.COLD, runner.WARM),
        metavar="cold,warm",
        help="with which caches of compiled code (default: both, apart)",
    )
    parser.add_argument(
        "--warmup",
        type=_count(0),
        default=1,
        metavar="N",
        help="unmeasured runs of each arm, which fill the warm caches (default: 1)",
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=1800.0,
        metavar="SECONDS",
        help="a run that takes longer hangs, and is killed (default: 1800)",
    )
    parser.add_argument("--seed", type=int, help="of the order of runs, printed (default: chosen)")
    parser.add_argument(
        "--number",
        action="append",
        default=[],
        metavar="REGEX",
        help="what number to take: one group, (?P<NAME>...) names it (default: all with a label)",
    )
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help=f"show this number only, {numbers.WALL!r} for the wall time (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print every run as JSON")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw a .png or .svg, with matplotlib"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="COMMAND", help="what to run")
    parser.set_defaults(run=run)


def _count(least: int) -> Any:
    def read(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} on")
        return int(text)

    return read


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds


def _caches(text: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    known = (runner.COLD, runner.WARM)
    if not set(words) <= set(known):
        raise argparse.ArgumentTypeError(f"{text!r} is not cold, warm or cold,warm")
    return tuple(kind for kind in known if kind in words)


@dataclass
class Measurement:
    """What was asked for, what was found, and how far it came."""

    arguments: argparse.Namespace
    seed: int
    toggles: list[toggles.Toggle]
    arms: list[arms.Arm]
    on: str
    notes: list[str]
    patterns: list[numbers.Pattern]
    planned: int = 0
    runs: tuple[runner.Run, ...] = ()
    elapsed_s: float = 0.0
    partial: bool = False
    rows: tuple[results.Row, ...] = ()

    @property
    def failures(self) -> list[runner.Run]:
        return [run for run in self.runs if run.status != runner.ENDED]


def run(arguments: argparse.Namespace) -> int:
    if arguments.program[:1] == ["--"]:
        arguments.program = arguments.program[1:]
    try:
        with tempfile.TemporaryDirectory(prefix="rocm-autopatch-ab-") as directory:
            done = _prepare(arguments, Path(directory))
            _measure(done)
    except Wrong as error:
        terminal.say(f"rocm-autopatch ab: {error}")
        return 2
    except (Refused, OSError) as error:
        terminal.say(f"rocm-autopatch ab: {error}")
        return 1
    except KeyboardInterrupt:
        terminal.say("rocm-autopatch ab: interrupted before the first run")
        return INTERRUPTED
    status = _evaluate(done)
    if arguments.json:
        terminal.data(_document(done))
    else:
        terminal.lines(_lines(done))
    if arguments.plot and done.rows:
        labels = [_base(done), *(arm.label for arm in done.arms[1:])]
        note = f"{done.on}; {_how(done)}. Points: runs; bars: median and its 95 % interval."
        try:
            plot.draw(arguments.plot, done.rows, labels, _program(done), note)
        except OSError as error:
            terminal.say(f"rocm-autopatch ab: --plot: {error}")
            status = status or 1
    return status


def _prepare(arguments: argparse.Namespace, directory: Path) -> Measurement:
    """Everything that can be found wrong before the first run. Raises Wrong and Refused."""
    if not arguments.program:
        raise Wrong("a command is missing: rocm-autopatch ab --toggle NAME -- COMMAND")
    if runner.COLD not in arguments.caches and not arguments.warmup:
        raise Wrong("--caches warm needs a run that fills them: --warmup 1 or more")
    if arguments.plot:
        plot.check(arguments.plot)
    patterns = [numbers.pattern(text) for text in arguments.number]
    environ = fresh_interpreter.before_us()
    python, seen = place.interpreter(arguments.program, environ)
    report, without = None, ""
    try:
        switched_on = {n: v for n, v in environ.items() if n != "ROCM_AUTOPATCH"}
        report = fresh_interpreter.report(torch=False, environ=switched_on, python=python)
    except fresh_interpreter.NoReport as error:
        without = str(error)
    here = place.Place(environ, python, seen, report, without)
    chosen = [toggles.parse(text, here.fact("torch"), environ) for text in arguments.toggle]
    made = arms.make(here, chosen, arguments.grid, directory)
    notes = []
    if not seen:
        notes.append(f"toggles were checked in {python[0]}: the command's interpreter is not known")
    hooked = any(toggle.kind != toggles.VARIABLE for toggle in chosen)
    modes = [t for t in chosen if t.kind == toggles.MODE]
    if report is not None:
        # Inductor makes a directory for its caches when it is imported.
        caches = {name: str(directory / part) for name, part in runner.CACHES.items()}
        environs = [{**arm.environ, **caches} for arm in made]
        with ThreadPoolExecutor(_cores()) as pool:
            ask = partial(fresh_interpreter.report, hooked, (), python=python)
            reports = list(pool.map(lambda its: ask(environ=its), environs))
        for arm, its in zip(made, reports):
            arms.verify(chosen, arm, its)
        words = {word for t in modes for word in (t.name, *t.values) if isinstance(word, str)}
        options = place.probe(python, environs[0], sorted(words))["modes"] if words else {}
        arms.verify_all(chosen, made, reports, options)
        notes += _remarks(here, chosen, made, reports)
    else:
        notes.append(f"what torch {python[0]} has is not known: {without}")
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    return Measurement(arguments, seed, chosen, made, _on(here), notes, patterns)


def _remarks(
    here: place.Place,
    chosen: Sequence[toggles.Toggle],
    made: Sequence[arms.Arm],
    reports: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    """What the reader of the numbers has to know of how the toggles were set."""
    for toggle in chosen:
        kept = [r for report in reports for r in report["env"] if r["name"] == toggle.name]
        if kept:
            yield (
                f"policy {kept[0]['layer']} has a rule for {toggle.name}, which is set aside here "
                "(ROCM_AUTOPATCH_KEEP)"
            )
    kinds = {toggle.kind for toggle in chosen}
    if kinds == {toggles.VARIABLE}:
        return
    if not here.is_rocm:
        what = "the toggles are set" if toggles.POLICY not in kinds else "policies apply"
        rest = "" if toggles.POLICY in kinds else ", and nothing else is changed"
        yield (
            f"torch here is no ROCm build ({here.fact('accelerator')}): {what} by "
            f"ROCM_AUTOPATCH_ASSUME=accelerator=rocm{rest}"
        )
    for arm, report in zip(made, reports):
        yield from (f"{arm.label}: {error}" for error in report["errors"])


def _on(here: place.Place) -> str:
    """The place in a line."""
    words = []
    if here.fact("torch"):
        words.append(f"torch {here.fact('torch')}")
    accelerator = here.fact("accelerator")
    if accelerator == "rocm":
        words += [f"ROCm {here.fact('rocm')}"] if here.fact("rocm") else []
        words.append(here.fact("gpu") or here.fact("gfx") or "no GPU that is known")
    elif accelerator == "cuda":
        try:
            words.append(place.probe(here.python, here.environ)["device"] or "no GPU")
        except Refused:
            words.append("no GPU that is known")
    elif accelerator:
        words.append(accelerator)
    if here.fact("image"):
        words.append(here.fact("image"))
    if here.fact("python"):
        words.append(f"Python {here.fact('python')}")
    words.append(f"{_cores()} core{'' if _cores() == 1 else 's'}")
    words.append(f"rocm_autopatch {metadata.version('rocm_autopatch')}")
    words.append(time.strftime("%Y-%m-%d"))
    return ", ".join(words)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _measure(done: Measurement) -> None:
    """Run everything, or as far as an interrupt lets it come."""
    arguments = done.arguments
    patterns = done.patterns
    cells = runner.schedule(
        len(done.arms), arguments.caches, arguments.repeat, arguments.warmup, done.seed
    )
    done.planned = len(cells)
    environments = [arm.environ for arm in done.arms]
    began = time.monotonic()
    for number in _INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)
    progress = Progress(len(cells))
    runs: list[runner.Run] = []
    try:
        with runner.Runner(arguments.program, environments, arguments.timeout, patterns) as session:
            while cells:
                cell = cells.pop(0)
                label = _cell(done, cell)
                progress.begins(label)
                ran = session.run(cell)
                runs.append(ran)
                count = 1
                if ran.status != runner.ENDED:
                    # One failure is a result; the others are not to wait for the same again.
                    rest = [other for other in cells if other.arm != cell.arm]
                    count += len(cells) - len(rest)
                    cells = rest
                how = ran.reason or f"{ran.seconds:.2f} s"
                progress.ended(f"{label}: {how}", count, time.monotonic() - began)
                if len(runs) == 1 and ran.status == runner.ENDED:
                    _check_numbers(arguments, patterns, ran)
    except KeyboardInterrupt:
        done.partial = True
    finally:
        progress.close()
    done.runs = tuple(runs)
    done.elapsed_s = time.monotonic() - began


def _interrupt(*_: object) -> None:
    # A second one would leave half of what the first one is to clear up.
    for number in _INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _cell(done: Measurement, cell: runner.Cell) -> str:
    return f"{done.arms[cell.arm].label}, {cell.caches if cell.round else 'warm-up'}"


def _check_numbers(
    arguments: argparse.Namespace, patterns: Sequence[numbers.Pattern], ran: runner.Run
) -> None:
    """Raise Refused after the first run where a number that is wanted is not in it."""
    for one in patterns:
        if numbers.Metric(one.name) not in ran.numbers:
            raise Refused(
                f"--number {one.pattern.pattern} matches nothing that the command printed"
            )
    results.chosen([results.WALL_METRIC, *ran.numbers], arguments.metric)


def _evaluate(done: Measurement) -> int:
    """Compare what was measured; the exit status."""
    arguments = done.arguments
    found = results.metrics(done.runs, bool(arguments.number))
    status = INTERRUPTED if done.partial else 1 if done.failures else 0
    try:
        wanted = results.chosen(found, arguments.metric)
    except Refused as error:
        done.notes.append(str(error))
        wanted, status = [results.WALL_METRIC], status or 1
    if not arguments.metric and not arguments.number:
        changing = results.changing(wanted, done.runs)
        constant = len(wanted) - len(changing)
        if constant:
            these = (
                "number was the same in every run and is"
                if constant == 1
                else ("numbers were the same in every run and are")
            )
            done.notes.append(f"{constant} {these} left out")
        wanted = changing
        if not arguments.json and len(wanted) > _MOST:
            names = "; ".join(map(str, wanted[_MOST:]))
            done.notes.append(f"not shown, --metric NAME shows one: {names}")
            wanted = wanted[:_MOST]
    done.rows = tuple(results.rows(done.runs, wanted, arguments.caches, len(done.arms), done.seed))
    return status


def _base(done: Measurement) -> str:
    return "base: " + ", ".join(t.says(v) for t, v in zip(done.toggles, done.arms[0].values))


def _how(done: Measurement) -> str:
    arguments = done.arguments
    caches = " and ".join(arguments.caches)
    count = f"{arguments.repeat} run{'' if arguments.repeat == 1 else 's'} of each arm"
    text = f"{count} with {caches} caches, by turns, seed {done.seed}"
    if done.partial:
        text = f"PARTIAL, interrupted after {len(done.runs)} of {done.planned} runs: {text}"
    return text


def _program(done: Measurement) -> str:
    return shlex.join(masking.command(done.arguments.program))


def _lines(done: Measurement) -> Iterator[str]:
    yield from _wrap(f"rocm-autopatch ab: {_program(done)}", "  ")
    yield from _wrap(f"  on {done.on}", "    ")
    took = f"; {duration(done.elapsed_s)} in all"
    yield from _wrap(f"  {_how(done)}{took}", "    ")
    yield from _wrap(f"  {_base(done)}", "    ")
    for note in done.notes:
        yield from _wrap(f"  note: {note}", "    ")
    width = min(44, max(len(arm.label) for arm in done.arms))
    for (metric, caches), block in groupby(done.rows, lambda row: (row.metric, row.caches)):
        yield ""
        title = f"{metric}, {caches} caches"
        yield from _wrap(f"{title[:1].upper()}{title[1:]}", "  ")
        heads = "  ".join(f"{word:>10}" for word in ("median", "lowest", "highest"))
        yield f"  {'':{width}}  {heads}  runs  ratio"
        rows = list(block)
        digits = _digits([number for row in rows for number in row.numbers])
        for row in rows:
            yield from _row(done.arms[row.arm].label, width, row, digits)
    if any(row.comparison and row.comparison.verdict in _VERDICTS for row in done.rows):
        yield ""
        yield from _wrap(
            "Ratios are of medians to the base's, with 95 % bootstrap intervals: of 20 rows "
            "without an effect, one is expected to show one.",
            "",
        )
    for ran in done.failures:
        yield ""
        where = f"round {ran.round}, {ran.caches} caches" if ran.round else "warm-up"
        yield from _wrap(f"{done.arms[ran.arm].label} ({where}): {ran.reason}", "  ")
        for line in ran.last_lines:
            yield from _wrap(f"  | {line}", "  | ")


def _row(label: str, width: int, row: results.Row, digits: str) -> Iterator[str]:
    names = textwrap.wrap(printable(label), width, break_on_hyphens=False)
    low, middle, high = results.spread(row)
    ratio = ""
    if row.comparison and row.comparison.ratio is not None:
        ratio = f"{results.shown(row.comparison.ratio)}x"
    cells = "  ".join(f"{format(number, digits):>10}" for number in (middle, low, high))
    yield from (f"  {name}" for name in names[:-1])
    yield f"  {names[-1]:{width}}  {cells}  {len(row.numbers):>4}  {ratio}".rstrip()
    if results.verdict(row):
        yield from _wrap(f"      {results.verdict(row)}", "      ")


def _digits(values: Sequence[float]) -> str:
    """The format that shows what differs between numbers of one size."""
    size = max(map(abs, values))
    if size >= 1e9 or 0 < size < 1e-4:
        return ".4g"
    if all(value.is_integer() for value in values):
        return ",.0f"
    return f",.{0 if size >= 10000 else 1 if size >= 1000 else 2 if size >= 10 else 3}f"


def _wrap(text: str, rest: str) -> list[str]:
    return wrapped(masking.text(text), "", rest) or [""]


def _document(done: Measurement) -> dict[str, Any]:
    arguments = done.arguments
    return {
        "command": masking.command(arguments.program),
        "on": done.on,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": done.seed,
        "repeat": arguments.repeat,
        "caches": list(arguments.caches),
        "warmup": arguments.warmup,
        "timeout_s": arguments.timeout,
        "partial": done.partial,
        "planned": done.planned,
        "elapsed_s": round(done.elapsed_s, 3),
        "notes": done.notes,
        "toggles": [
            {
                "kind": toggle.kind,
                "name": toggle.name,
                "values": [toggle.says(value) for value in toggle.values],
            }
            for toggle in done.toggles
        ],
        "arms": [
            {
                "label": arm.label,
                "values": [t.says(v) for t, v in zip(done.toggles, arm.values)],
            }
            for arm in done.arms
        ],
        "rows": [_row_document(done, row) for row in done.rows],
        "runs": [_run_document(done, ran) for ran in done.runs],
    }


def _row_document(done: Measurement, row: results.Row) -> dict[str, Any]:
    low, middle, high = results.spread(row)
    found: dict[str, Any] = {
        "metric": row.metric.name,
        "unit": row.metric.unit,
        "caches": row.caches,
        "arm": done.arms[row.arm].label,
        "median": middle,
        "lowest": low,
        "highest": high,
        "numbers": list(row.numbers),
    }
    if row.comparison:
        found.update(asdict(row.comparison), says=results.verdict(row))
    return found


def _run_document(done: Measurement, ran: runner.Run) -> dict[str, Any]:
    return {
        "round": ran.round,
        "arm": done.arms[ran.arm].label,
        "caches": ran.caches,
        "status": ran.status,
        "seconds": ran.seconds,
        "reason": ran.reason,
        "last_lines": list(ran.last_lines),
        "numbers": [
            {"metric": metric.name, "unit": metric.unit, "value": value}
            for metric, value in ran.numbers.items()
        ],
    }
