"""``rocm-autopatch cache fill --for TARGET -- COMMAND``: compile for a GPU that is not here."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.caches import fill, fill_targets, places, warm
from rocm_autopatch.cli import terminal, values
from rocm_autopatch.cli.cache import wording
from rocm_autopatch.cli.command import Command, CommandResult, option_field, program_words
from rocm_autopatch.cli.statuses import PASSED_ON
from rocm_autopatch.compile_report import session
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.image import start_facts
from rocm_autopatch.measure.ab.place import interpreter_of
from rocm_autopatch.startup import caches, proofs
from rocm_autopatch.support.text import duration, wrapped
from rocm_autopatch.support.user_error import UserError

_NAME = "rocm-autopatch cache fill"
# So many guards are named.
_SHOWN = 3
# The environment of a Python, which has its torch.
_PREFIX = "import json, sys; print(json.dumps(sys.prefix))"
_NOT_FILLED = (
    "Never filled: files of aiter and MIOpen. What a measurement would decide, padding or a GEMM "
    "of max-autotune, is the first candidate, and stays so"
)


def _parse_graphs(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:9]) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of graphs, from 1 on")
    return int(text)


@dataclass(frozen=True)
class CacheFillArguments:
    target: str = option_field(
        "--for",
        parse=str,
        default="",
        required=True,
        metavar="TARGET",
        help="the GPU: mi300x, mi355x, rx7900xtx, ..., or what facts --gpu wrote on one",
    )
    seconds: float | None = option_field(
        "--seconds",
        parse=values.parse_duration,
        default=None,
        metavar=values.DURATION,
        help="end COMMAND after this time, and keep what is filled",
    )
    graphs: int | None = option_field(
        "--graphs",
        parse=_parse_graphs,
        default=None,
        metavar=values.COUNT,
        help="end COMMAND after it added so many graphs, and keep them",
    )
    words: tuple[str, ...] = program_words()


@dataclass(frozen=True)
class _FillRun:
    """A run of a command, and what came of it."""

    target: fill_targets.FillTarget
    here: places.StartPlace
    status: int
    limit: str
    seconds: float
    added: fill.CompiledParts
    processes: fill.FillProcesses
    row: dict[str, object]

    @property
    def graph_count(self) -> int:
        """Graphs that were compiled, or were there."""
        return max(int(str(self.row["graphs"])), self.processes.graphs, len(self.added.graphs))


def fill_place(arguments: CacheFillArguments) -> CommandResult:
    hip = start_facts.torch().get("hip", "")
    target = fill_targets.target_named(arguments.target, hip)
    environ = places.caches_environment()
    _check_program(arguments.words, environ)
    here = fill.prepare_place(target, environ)
    fill.add_stand_in(target, environ)
    # Not before: it is refused where torch is another vendor's.
    fill.mark_place(target, here)
    _say(
        f"THERE IS NO GPU. COMMAND compiles for {target.facts.name}, and what it prints of results "
        "is made of zeros: do not trust it."
    )
    run = _run_command(arguments, target, here, environ)
    warm.note_run(here.place, run.row)
    if not run.graph_count:
        raise _nothing_compiled(run)
    _say(*_told(run))
    return CommandResult(status=0 if run.limit else run.status, passed_on=True)


COMMAND = Command(
    CacheFillArguments,
    fill_place,
    description=(
        "Run COMMAND without a GPU, on a stand-in that compiles for TARGET and runs no kernel, and "
        "fill the place that starts on a machine with this GPU use. End with its exit status, or "
        "with 0 if --seconds or --graphs ended it. Afterwards, say on stderr what was added."
    ),
    example="rocm-autopatch cache fill --for mi300x -- python serve.py --one-request",
    statuses={**PASSED_ON, 1: "nothing was compiled"},
    no_json="stdout is COMMAND's; rocm-autopatch cache status --json has its last run",
    page="caches.md#filling-them-without-a-gpu",
)


def _check_program(words: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Refuse what can't fill anything, before the stand-in is built. Raises UserError."""
    if shutil.which(words[0], path=environ.get("PATH")) is None:
        raise UserError(f"{words[0]}: not found", status=session.NOT_FOUND)
    python, shown = interpreter_of(words, environ)
    if not shown:
        return  # What a script starts shows when it runs.
    prefix = fresh_interpreter.answer(_PREFIX, environ=environ, python=python)
    if prefix != sys.prefix:
        raise UserError(
            f"{python[0]} is the Python of {prefix}, and the stand-in is for the torch of "
            f"{sys.prefix}: let {sys.executable} run COMMAND, or run that Python's rocm-autopatch"
        )


def _say(*texts: str) -> None:
    first, *rest = texts
    lines = [*wrapped(f"{_NAME}: {first}", "", "  ")]
    for text in rest:
        # A path stays whole.
        lines += [f"  {text}"] if text[:1] == "/" else wrapped(text, "  ", "    ")
    terminal.print_lines(lines, sys.stderr)


def _run_command(
    arguments: CacheFillArguments,
    target: fill_targets.FillTarget,
    here: places.StartPlace,
    environ: dict[str, str],
) -> _FillRun:
    before, size = fill.compiled_parts(here.place), places.measure_place(here.place)[0]
    limits = fill.FillLimits(here.place, before, arguments.seconds, arguments.graphs)
    limited = arguments.seconds is not None or arguments.graphs is not None
    with tempfile.TemporaryDirectory(prefix="rocm-autopatch-fill-") as directory:
        session.prepare_environment(Path(directory, "report"), None, environ)
        told = Path(directory, "processes")
        told.mkdir()
        environ[fill.PROCESSES] = str(told)
        began = time.time()
        try:
            status = session.run_command(
                arguments.words, environ, limits.end_when_reached if limited else None
            )
        except session.NotRun as error:
            raise UserError(f"{arguments.words[0]}: {error}", status=error.status) from None
        limits.end_rest()
        seconds = time.time() - began
        report = gather_report(Path(directory, "report"))
        found = {"graphs": len(report.graphs), **warm.lookup_counts(report)}
        processes = fill.read_processes(told)
    warm.keep_built(here.place)
    row: dict[str, object] = {
        "time": round(began),
        "seconds": round(seconds, 1),
        "status": status,
        **found,
        "bytes": places.measure_place(here.place)[0] - size,
        "for": target.facts.name,
    }
    added = fill.compiled_parts(here.place) - before
    return _FillRun(target, here, status, limits.ended, seconds, added, processes, row)


def _nothing_compiled(run: _FillRun) -> UserError:
    if run.limit:
        return UserError(f"COMMAND compiled nothing before {run.limit} ended it: give it more time")
    if run.status:
        return UserError(
            f"COMMAND failed with status {run.status} before it compiled anything: see its lines "
            "above",
            status=run.status,
        )
    return UserError(
        "COMMAND compiled nothing: let it call what torch.compile returns, with tensors on cuda, "
        f"in a process of {sys.executable}"
    )


def _told(run: _FillRun) -> Iterator[str]:
    """The answer first, then what is not in it."""
    graphs, kernels = len(run.added.graphs), len(run.added.kernels)
    elsewhere = _went_elsewhere(run, fresh_interpreter.before_us())
    found = "" if graphs or elsewhere else f" (graphs that were there: {run.graph_count})"
    ended = f"; ended by {run.limit}" if run.limit else ""
    yield (
        f"{_count(graphs, 'graph')} and {_count(kernels, 'kernel')} added for "
        f"{run.target.facts.name}{found} in {duration(run.seconds)}{ended}:"
    )
    yield str(run.here.place)
    yield from elsewhere
    if kernels:
        # A reduction that torch halves for its registers is in no graph (caches-warming.md).
        yield "Fill again until nothing is added: torch leaves some kernels for a second process"
    yield wording.lookups_text(run.row)
    guards = [*run.processes.value_guards]
    if guards:
        shown = ", ".join(guards[:_SHOWN]) + (", ..." if len(guards) > _SHOWN else "")
        yield f"With real data, {_count(len(guards), 'guard')} on values may fail: {shown}"
    if run.processes.value_reads:
        yield (
            f"Values of the GPU's memory were read {_count(run.processes.value_reads, 'time')}: "
            "they are zero, and with real ones the program may compile other graphs"
        )
    yield from (f"Not filled: {one}" for one in run.processes.not_captured)
    if run.status and not run.limit:
        yield f"COMMAND ended with status {run.status}: what it had not compiled by then is missing"
    if proofs.any_file():
        yield (
            "There is evidence here: on its machine, a start may have another plan, and so another "
            "place"
        )
    yield _NOT_FILLED


def _went_elsewhere(run: _FillRun, environ: Mapping[str, str]) -> list[str]:
    """What to do if COMMAND compiled, and none of it came to the place; [] if all is well."""
    lookups = run.row.get("fx_graph_cache")
    if run.added.graphs or not (isinstance(lookups, dict) and lookups["miss"]):
        return []
    names = [name for name, _, _, _ in caches.PARTS if name in environ]
    said = " and ".join(f"{name}={environ[name]}" for name in names)
    return [
        "Graphs were compiled, and none came to the place"
        + (f": unset {said}, which leads elsewhere" if said else "")
    ]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number:,} {what}s"
