"""The compile report as text of at most 100 columns, and as data."""

from __future__ import annotations

import os
import re
import shlex
import signal
import time
from collections.abc import Iterator
from typing import Any

from rocm_autopatch.compile_report.advice import advise_on_report
from rocm_autopatch.compile_report.model import (
    PHASES,
    CompiledGraph,
    CompileReport,
    ProcessEnd,
    SourcePlace,
)
from rocm_autopatch.patches.callers import PACKAGES
from rocm_autopatch.support.text import WIDTH, counted, wrapped

DEAREST = 10
# The year 9999: what is later was not written by us.
_LATEST_S = 2.5e11
ROWS = 12


def summary_lines(report: CompileReport, dearest: int = DEAREST) -> Iterator[str]:
    """The summary: what ended the program, failures, the slowest compiles, graph breaks,
    recompiles, and what to do."""
    for name, value in head_rows(report):
        yield from wrapped(f"{name:8} {value}", "", " " * 9, break_long_words=False)
    before = describe_end(report)
    if before:
        yield ""
        yield from before
    yield ""
    if not report.graphs:
        yield from _nothing_lines(report)
        return
    versions = ", ".join(report.versions) or "of unknown version"
    compiled = {graph.process for graph in report.graphs}
    yield from _wrap_lines(
        f"compile report: {counted(len(report.graphs), 'graph')} in "
        f"{report.seconds:.1f} s of compiling, {_of_processes(report, compiled)}, torch {versions}"
    )
    phases = report.phases()
    yield from _wrap_lines(
        "by phase: " + ", ".join(f"{p} {phases[p]:.1f} s" for p in PHASES if phases[p] >= 0.05),
        "  ",
    )
    yield from _wrap_lines("caches: " + cache_sentence(report), "  ")
    kinds = report.kinds()
    if kinds:
        text = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        yield from _wrap_lines(f"operations: {text}", "  ")
    yield from _failed_lines(report)
    yield ""
    yield f"Slowest compiles ({min(dearest, len(report.graphs))} of {len(report.graphs):,})"
    yield (
        f"  {'seconds':>7} {'share':>5} {'nodes':>6} {'kernels':>7} {'library':>7} {'cache':6} "
        f"{'tuned':5} place"
    )
    for graph in report.dearest()[:dearest]:
        yield from _graph_lines(report, graph)
    yield from _break_lines(report)
    yield from _recompile_lines(report)
    found = advise_on_report(report)
    if found:
        yield ""
        yield "What to do"
    for one in found:
        yield from _wrap_lines(f"- {one.seen}", "  ", "    ")
        yield from _wrap_lines(f"{one.do}", "    ", "    ")
        if one.places:
            more = f" and {len(one.places) - 3} more" if len(one.places) > 3 else ""
            yield from _wrap_lines(
                "at " + ", ".join(map(short_place, one.places[:3])) + more, "    ", "    "
            )
    yield from _note_lines(report)


def head_rows(report: CompileReport) -> Iterator[tuple[str, str]]:
    """What the report is of: a name and a value each, as the terminal and the page have them."""
    head = report.head
    if head.command:
        yield "command", shlex.join(head.command)
    if 0 < head.began < _LATEST_S:
        yield "began", time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(head.began))
    if head.hosts:
        yield "host", ", ".join(head.hosts)
    versions = [f"torch {one}" for one in report.versions]
    versions += [f"ROCm {one}" for one in head.facts.get("rocm", ())]
    versions += [f"HIP {one}" for one in head.hips]
    versions += [f"Python {one}" for one in head.pythons]
    versions += [f"rocm_autopatch {head.version}"] if head.version else []
    if versions:
        yield "versions", ", ".join(versions)
    gpus = [one for name in ("gpu", "gfx") for one in head.facts.get(name, ())]
    if gpus:
        yield "GPU", ", ".join(gpus)
    if report.processes:
        yield "image", ", ".join(head.facts.get("image", ())) or "not named"
    if head.policies:
        yield "policy", "; ".join(head.policies)
    if report.given_modes:
        yield "modes", ", ".join(map(_mode_text, report.given_modes.items()))
    yield "ended", _ended_text(report)


def _mode_text(mode: tuple[str, str]) -> str:
    """A mode as the program asked for it and as it was given."""
    asked, given = mode
    return f"{asked} (as asked)" if asked == given else f"{asked} (given as {given})"


def _ended_text(report: CompileReport) -> str:
    status = report.head.status
    if status is None:
        if report.head.watched:
            return "not yet, or rocm-autopatch run was ended before it"
        return "unknown: rocm-autopatch run did not start it, or could not note it"
    said = _status_text(status)
    if not status:
        return f"well, with {said}"
    if report.ends:
        return f"with {said}: {_keep_head(report.ends[-1].error, 200)}"
    if report.failures:
        return f"with {said}; compiles failed, the last one: " + _keep_head(
            report.failures[-1].reason, 200
        )
    return f"with {said}"


def describe_end(report: CompileReport) -> list[str]:
    """What ended the program, as far as it is known: a title and lines, [] if nothing is."""
    return list(_end_lines(report))


def _end_lines(report: CompileReport) -> Iterator[str]:
    if not report.ends and not report.status:
        return
    yield "What ended the program"
    same: dict[tuple[str, SourcePlace], list[ProcessEnd]] = {}
    for end in report.ends:
        same.setdefault((end.error, end.place), []).append(end)
    for (error, place), ends in [*same.items()][:ROWS]:
        name = f"{ends[0].name}" if len(ends) == 1 else f"{len(ends)} processes"
        yield from _wrap_lines(f"{name}: {error}", "  ", "      ")
        yield " " * 6 + _keep_tail(f"at {short_place(place)} {place.function}", WIDTH - 6)
        if ends[0].limit:
            yield from _wrap_lines(_of_limit(report, {end.pid for end in ends}), " " * 6, " " * 6)
    if len(same) > ROWS:
        yield f"  and {len(same) - ROWS} more"
    if report.status:
        yield from _wrap_lines(
            f"the command ended with {_status_text(report.status)}", "  ", "      "
        )
    if not report.ends and report.failures:
        # A launcher or a framework has caught it.
        text = "no process told of an exception; the compiles that failed are listed below"
        yield from _wrap_lines(text, "  ", "      ")


def _status_text(status: int) -> str:
    try:
        return f"status {status}, as {signal.Signals(status - 128).name} ends it"
    except ValueError:
        return f"status {status}"


def _of_limit(report: CompileReport, pids: set[int]) -> str:
    """Which function reached the recompile limit where that is an error, and by which guard."""
    text = "with fullgraph=True the recompile limit is an error"
    numbers = {process.number for process in report.processes if process.pid in pids}
    for one in report.recompiles:
        if one.raised and one.processes & numbers:
            text += f": {short_place(one.place)} {one.place.function} reached it"
            text += f"; the guard that failed: {one.example or one.guard}"
            break
    return _keep_head(text, 400)


def _failed_lines(report: CompileReport) -> Iterator[str]:
    if not report.failures:
        return
    yield ""
    yield f"Compiles that failed ({sum(one.count for one in report.failures):,})"
    for one in report.failures[:ROWS]:
        where = f"{short_place(one.place)} {one.place.function}"
        yield f"  {one.count:5,} x {_keep_tail(where, WIDTH - 10)}"
        yield from _wrap_lines(_keep_head(one.reason, 400), " " * 10, " " * 10)
    yield from _more_line(len(report.failures))


def _nothing_lines(report: CompileReport) -> Iterator[str]:
    torches = len(report.processes)
    if torches:
        text = f"nothing was compiled: {counted(torches, 'process', 'es')} imported torch"
    else:
        text = "no process that has rocm_autopatch imported torch, and no process wrote a trace"
    yield from _wrap_lines(f"compile report: {text}")
    yield from _note_lines(report)


def _note_lines(report: CompileReport) -> Iterator[str]:
    if report.notes:
        yield ""
        yield "What is missing or unexpected"
    for note in report.notes[:ROWS]:
        yield from _wrap_lines(note, "  ", "    ")
    if len(report.notes) > ROWS:
        yield f"  and {len(report.notes) - ROWS} more"


def _of_processes(report: CompileReport, compiled: set[int]) -> str:
    if len(report.processes) == len(compiled):
        return counted(len(compiled), "process", "es")
    return f"{len(compiled)} of {counted(len(report.processes), 'process', 'es')} with torch"


def cache_sentence(report: CompileReport) -> str:
    """How many graphs came from Inductor's cache."""
    states = {"hit": 0, "miss": 0, "part": 0, "bypass": 0, "": 0}
    for graph in report.graphs:
        states[graph.cache] += 1
    words = {
        "hit": "{} from the cache",
        "miss": "{} compiled anew",
        "part": "{} partly from the cache",
        "bypass": "{} that can't be cached",
        "": "{} without cache information",
    }
    return ", ".join(words[state].format(n) for state, n in states.items() if n)


def _graph_lines(report: CompileReport, graph: CompiledGraph) -> Iterator[str]:
    share = graph.seconds / report.seconds if report.seconds else 0.0
    nodes = "-" if graph.nodes is None else f"{graph.nodes:,}"
    kernels = "-" if graph.kernels is None else f"{graph.kernels:,}"
    library = "-" if graph.kernels is None else f"{sum(graph.library.values()):,}"
    tuned = "yes" if graph.autotuned else "no"
    head = (
        f"  {graph.seconds:7.2f} {share:5.0%} {nodes:>6} {kernels:>7} {library:>7} "
        f"{graph.cache or '-':6} "
        f"{tuned:5} "
    )
    yield head + _keep_tail(graph_title(graph), WIDTH - len(head))
    if not graph.finished:
        yield " " * 12 + f"did not finish: the trace ends with {graph.last}"
    elif graph.failure:
        yield " " * 12 + "failed, see above"


def graph_title(graph: CompiledGraph) -> str:
    """A graph's place, and whether it continues after a break or is a recompile."""
    text = f"{short_place(graph.place)} {graph.place.function}"
    if graph.caller:
        text += f", called at {short_place(graph.caller)}"
    if graph.resumed:
        text += f", continued from line {graph.resumed}"
    if graph.again:
        text += f", recompile {graph.id.rpartition('/')[2]}"
    return text


def _break_lines(report: CompileReport) -> Iterator[str]:
    if not report.breaks:
        return
    total = sum(one.count for one in report.breaks)
    yield ""
    yield f"Graph breaks ({total:,} in {counted(len(report.breaks), 'place')})"
    for one in report.breaks[:ROWS]:
        function = f" in {one.place.function}" if one.place.function else ""
        yield f"  {one.count:5,} x {_keep_tail(short_place(one.place) + function, WIDTH - 10)}"
        explained = f" {one.explanation}" if one.explanation else ""
        yield from _wrap_lines(_keep_head(f"{one.reason}.{explained}", 240), " " * 10, " " * 10)
    yield from _more_line(len(report.breaks))


def _recompile_lines(report: CompileReport) -> Iterator[str]:
    if not report.recompiles:
        return
    total = sum(one.count for one in report.recompiles)
    hits = sum(one.limit for one in report.recompiles)
    limit = f"; the limit was reached {counted(hits, 'time')}" if hits else ""
    yield ""
    yield f"Recompiles ({total:,}{limit})"
    for one in report.recompiles[:ROWS]:
        function = f" {one.place.function}" if one.place.function else ""
        head = f"  {one.count:5,} x {one.seconds:6.1f} s "
        yield head + _keep_tail(short_place(one.place) + function, WIDTH - len(head))
        such = one.example if one.count + one.limit == 1 else f"for example {one.example}"
        guard = such if one.example else one.guard
        yield from _wrap_lines(_keep_head(f"guard: {guard}", 240), " " * 10, " " * 10)
        if one.limit > one.raised:
            yield " " * 10 + "recompile limit reached: other inputs run uncompiled"
        if one.raised:
            yield " " * 10 + "recompile limit reached: with fullgraph=True this is an error"
    yield from _more_line(len(report.recompiles))


def _more_line(rows: int) -> Iterator[str]:
    if rows > ROWS:
        yield f"  and {rows - ROWS} more: --json or --html lists them"


def short_place(place: SourcePlace | str) -> str:
    """A place, relative to the working directory or to an installed package's directory."""
    text = str(place)
    here = os.getcwd() + os.sep
    if text.startswith(here):
        return text[len(here) :]
    return re.sub("^.*" + PACKAGES, "", text)


def report_data(report: CompileReport) -> dict[str, Any]:
    """The report as plain data. docs/report.md describes it."""
    return {
        "directory": report.directory,
        "head": {
            "command": list(report.head.command),
            "began": report.head.began,
            "hosts": list(report.head.hosts),
            "version": report.head.version,
            "pythons": list(report.head.pythons),
            "hips": list(report.head.hips),
            "policies": list(report.head.policies),
            "facts": {name: list(values) for name, values in report.head.facts.items()},
            "status": report.head.status,
            "ended": _ended_text(report),
        },
        "torch": report.versions,
        "modes": report.modes,
        "given_modes": report.given_modes,
        "seconds": report.seconds,
        "phases": report.phases(),
        "operations": dict(report.operations().most_common()),
        "kinds": dict(report.kinds().most_common()),
        "processes": [
            {
                "number": process.number,
                "pid": process.pid,
                "rank": process.rank,
                "torch": process.torch,
                "name": process.name,
                "command": list(process.command),
                "trace": process.trace,
            }
            for process in report.processes
        ],
        "graphs": [
            {
                "process": graph.process,
                "id": graph.id,
                **_place_data(graph.place),
                "model": graph.model,
                "caller": graph.caller,
                "resumed": graph.resumed,
                "start": graph.start,
                "seconds": graph.seconds,
                "phases": graph.phases,
                "nodes": graph.nodes,
                "operations": dict(graph.operations.most_common()),
                "kernels": graph.kernels,
                "library": dict(graph.library.most_common()),
                "cache": graph.cache,
                "changed": list(graph.changed),
                "autotuned": graph.autotuned,
                "tuned": list(graph.tuned),
                "finished": graph.finished,
                "last": graph.last,
                "failure": graph.failure,
                "guards": list(graph.guards),
                "limit": graph.limit,
                "settings": graph.settings,
            }
            for graph in report.graphs
        ],
        "breaks": [
            {
                **_place_data(one.place),
                "reason": one.reason,
                "explanation": one.explanation,
                "hints": list(one.hints),
                "count": one.count,
                "processes": sorted(one.processes),
            }
            for one in report.breaks
        ],
        "status": report.status,
        "ends": [
            {**_place_data(end.place), "pid": end.pid, "name": end.name, "error": end.error}
            for end in report.ends
        ],
        "failures": [
            {
                **_place_data(one.place),
                "reason": one.reason,
                "count": one.count,
                "processes": sorted(one.processes),
            }
            for one in report.failures
        ],
        "recompiles": [
            {
                **_place_data(one.place),
                "guard": one.guard,
                "example": one.example,
                "count": one.count,
                "seconds": one.seconds,
                "limit": one.limit,
                "raised": one.raised,
                "processes": sorted(one.processes),
            }
            for one in report.recompiles
        ],
        "advice": [
            {"kind": one.kind, "seen": one.seen, "do": one.do, "places": list(one.places)}
            for one in advise_on_report(report)
        ],
        "notes": report.notes,
        "traces": report.traces,
    }


def _place_data(place: SourcePlace) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "function": place.function}


def _keep_tail(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[3 - width :]


def _keep_head(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _wrap_lines(text: str, first: str = "", rest: str = "    ") -> list[str]:
    return wrapped(text, first, rest)
