"""Gather from the trace of a command: processes, graphs, graph breaks, recompiles."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rocm_autopatch import trust
from rocm_autopatch.compile_report import COMMAND, ENDED, PROCESSES, STATUS, TRACES, operations
from rocm_autopatch.compile_report.generations import (
    SINCE,
    TraceGeneration,
    find_generation,
    release_of,
)
from rocm_autopatch.compile_report.model import (
    CompiledGraph,
    CompileReport,
    FailedCompile,
    GraphBreak,
    GuardedRecompile,
    ProcessEnd,
    ReportHead,
    SourcePlace,
    TracedProcess,
)
from rocm_autopatch.compile_report.trace import (
    CACHES,
    GRAPHS,
    METRICS,
    PATTERN,
    TraceEvent,
    TraceFile,
)
from rocm_autopatch.patches.cache_misses import CHANGED
from rocm_autopatch.patches.callers import INSTALLED
from rocm_autopatch.support import masking
from rocm_autopatch.support.progress import tell_step

# Inductor's settings that decide what a compile costs.
SETTINGS = (
    *("max_autotune", "max_autotune_gemm", "max_autotune_pointwise"),
    *("coordinate_descent_tuning", "fx_graph_cache", "force_disable_caches"),
)
_MODE = "mode"
_RESUME = re.compile(r"torch_dynamo_resume_in_(.*)_at_(\d+)")
# In the names of exceptions and in their texts. It is an error where fullgraph=True, or where a
# setting says so (FailOnRecompileLimitHit).
_LIMIT = re.compile(r"(recompile|cache|cache_size)[_ ]?limit", re.IGNORECASE)
_LIMIT_RAISES = "FailOn"
_BROKEN_AT = re.compile(r"^Graph break in user code at (.+):(\d+)$", re.MULTILINE)
_REASON = re.compile(r"^(?:Graph Break )?Reason: (.*)$", re.MULTILINE)
_FRAME = re.compile(r'^\s+File "(.+)", line (\d+), in (.*)$', re.MULTILINE)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_EXPLANATION = re.compile(r"^\s+Explanation: (.*)$", re.MULTILINE)
_HINT = re.compile(r"^\s+Hint: (.*)$", re.MULTILINE)
_RAISED = re.compile(r"^(?:torch\._dynamo\.exc\.)?Unsupported: (.*)$", re.MULTILINE)
# From torch 2.9 on, Dynamo's guards have the types of the local variables.
_SELF = re.compile(r"source=L\['self'\], .*type=<class '(?:[\w<>]+\.)*(\w+)'>")
_INSIDE_TORCH = re.compile(r"/(site|dist)-packages/torch/|^<frozen|/torch/_dynamo/")

# Of what processes wrote about themselves, in bytes: others may have written it.
_LONGEST = 1 << 26


def gather_report(directory: Path) -> CompileReport:
    """Read what the processes of a command wrote. Raises FileNotFoundError without a directory.

    *directory* is what ``ROCM_AUTOPATCH_REPORT`` named, or any directory with a trace of PyTorch.
    """
    if not directory.is_dir():
        raise FileNotFoundError(f"there is no directory {directory}")
    tell_step("reading what the processes wrote")
    report = CompileReport(str(directory))
    told = list(_read_announcements(directory / PROCESSES, report.notes))
    announced = [row for row in told if row.keys().isdisjoint((_MODE, ENDED, STATUS, COMMAND))]
    report.modes = sorted({row[_MODE] for row in told if _MODE in row})
    report.given_modes = _given_modes(told)
    report.head = _report_head(told, announced)
    report.status = max([row[STATUS] for row in told if STATUS in row], default=0)
    report.ends = list(_process_ends(told, announced))
    reader = _TraceReader(report, announced)
    for path in _trace_files(directory, announced, report.notes):
        file = TraceFile(path)
        try:
            reader.read(file)
        except OSError as error:
            report.notes.append(f"{path.name}: {error.strerror}")
        report.traces.append(str(path))
        report.size += file.size
        if file.corrupt:
            report.notes.append(f"{path.name}: left out {file.corrupt} lines that can't be read")
        if file.cut:
            report.notes.append(
                f"{path.name} ends in the middle of a line: its process was ended, or still runs"
            )
    reader.close()
    _mask_secrets(report)
    return report


def _mask_secrets(report: CompileReport) -> None:
    """Mask what looks like a secret in texts that quote the program's values."""
    looks = masking.looks
    for graph in report.graphs:
        graph.failure = looks(graph.failure)
        graph.guards = tuple(map(looks, graph.guards))
    for failed in report.failures:
        failed.reason = looks(failed.reason)
    for end in report.ends:
        end.error = looks(end.error)
    for one in report.breaks:
        one.reason, one.explanation = looks(one.reason), looks(one.explanation)
        one.hints = tuple(map(looks, one.hints))
    for other in report.recompiles:
        other.guard, other.example = looks(other.guard), looks(other.example)
    report.notes = list(map(looks, report.notes))


def asked_modes(directory: Path) -> set[str] | None:
    """The modes in which the processes asked torch.compile to compile; None if no process tells."""
    told = list(_read_announcements(directory / PROCESSES, []))
    return {row[_MODE] for row in told if _MODE in row} if told else None


def _read_announcements(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """What processes wrote about themselves: when they imported torch, the modes they asked, and
    what ended them; and how the command ended."""
    try:
        lines = trust.read(str(path), _LONGEST, judged=False).splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        notes.append(f"{path.name} can't be read: {error.strerror or error}")
        return
    for line in lines:
        try:
            row = json.loads(line)
            if _MODE in row:
                row[_MODE] = str(row[_MODE])
            elif STATUS in row:
                row[STATUS] = int(row[STATUS])
            elif COMMAND in row:
                run = row[COMMAND]
                row[COMMAND] = {
                    **run,
                    "time": float(run["time"]),
                    "command": list(run["command"]),
                }
            elif ENDED in row:
                row["pid"], row[ENDED] = int(row["pid"]), str(row[ENDED])
                row["line"] = int(row.get("line", 0))
            else:
                row["pid"], row["torch"], row["traces"]
                row["time"], row["command"] = float(row["time"]), list(row["command"])
        except (ValueError, KeyError, TypeError):
            notes.append(f"{path.name}: left out a line that can't be read")
            continue
        yield row


def _given_modes(told: list[dict[str, Any]]) -> dict[str, str]:
    """By mode that was asked for, what it stood for; of several processes, all of it."""
    found: dict[str, set[str]] = {}
    for row in told:
        if _MODE in row:
            found.setdefault(row[_MODE], set()).add(str(row.get("given", row[_MODE])))
    return {mode: " or ".join(sorted(given)) for mode, given in sorted(found.items())}


def _report_head(told: list[dict[str, Any]], announced: list[dict[str, Any]]) -> ReportHead:
    """What was run, where and when: as ``run`` told it, else as the first process did."""
    run: dict[str, Any] = next((row[COMMAND] for row in told if COMMAND in row), {})
    first = min(announced, key=lambda row: row["time"], default={})
    facts = [row.get("facts") for row in announced]

    def all_of(values: Iterable[object]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(str(one) for one in values if one))

    return ReportHead(
        command=tuple(masking.command(list(map(str, (run or first).get("command", ()))))),
        began=(run or first).get("time", 0.0),
        hosts=all_of([run.get("host"), *(row.get("host") for row in announced)]),
        version=str(run.get("version", "")),
        pythons=all_of(row.get("python") for row in announced),
        hips=all_of(row.get("hip") for row in announced),
        policies=all_of(row.get("policy") for row in announced),
        facts={
            name: all_of(one.get(name) for one in facts if isinstance(one, dict))
            for name in dict.fromkeys(key for one in facts if isinstance(one, dict) for key in one)
        },
        status=next((row[STATUS] for row in told if STATUS in row), None),
        watched=bool(run),
    )


def _process_ends(
    told: list[dict[str, Any]], announced: list[dict[str, Any]]
) -> Iterator[ProcessEnd]:
    commands = {row["pid"]: row["command"] for row in announced}
    for row in told:
        if ENDED in row:
            process = TracedProcess(row["pid"], 0)
            process.command = tuple(masking.command(list(map(str, commands.get(row["pid"], ())))))
            file, function = str(row.get("file", "")), str(row.get("function", ""))
            error = row[ENDED]
            place = SourcePlace(file, row["line"], function)
            yield ProcessEnd(row["pid"], process.name, error, place, bool(_LIMIT.search(error)))


def _trace_files(directory: Path, announced: list[dict[str, Any]], notes: list[str]) -> list[Path]:
    places = {directory / TRACES: 0.0, directory: 0.0}
    for row in announced:
        # It is absolute if the program or a user set TORCH_TRACE.
        place = directory / row["traces"]
        if row["traces"] and place not in places:
            # Older files there are not from this command.
            places[place] = min(r["time"] for r in announced if r["traces"] == row["traces"])
            notes.append(f"TORCH_TRACE was set to another directory, which is read too: {place}")
    unset = sum(not row["traces"] for row in announced)
    if unset:
        notes.append(f"TORCH_TRACE was unset in {unset} processes: their compiles are missing")
    found = []
    for place, since in places.items():
        for path in sorted(place.glob(PATTERN)):
            if not path.is_file():
                notes.append(f"{path.name} can't be read: it is not a regular file")
            elif path.stat().st_mtime >= since:
                found.append(path)
    return found


class _TraceReader:
    """Makes graphs from events."""

    def __init__(self, report: CompileReport, announced: list[dict[str, Any]]) -> None:
        self.report = report
        self.processes: dict[tuple[str, int], TracedProcess] = {}
        self.numbered: list[TracedProcess] = []
        self.graphs: dict[tuple[int, str], CompiledGraph] = {}
        self.breaks: dict[tuple[SourcePlace, str], GraphBreak] = {}
        self.broken: set[tuple[int, str, SourcePlace, str]] = set()
        # The operations of each graph, by the event that has them. Those of Inductor say more than
        # those of Dynamo.
        self.counted: dict[tuple[int, str], dict[str, Counter[str]]] = {}
        self.tuning: dict[tuple[int, str, str], float] = {}
        self.announced = announced
        self.unclaimed = {int(row["pid"]): row for row in announced}
        self.notes: Counter[str] = Counter()

    def read(self, file: TraceFile) -> None:
        handlers: dict[str, Callable[[TraceFile, CompiledGraph, TraceEvent], None]] = {
            "dynamo_start": self._start_graph,
            "dynamo_cpp_guards_str": self._read_guards,
            "dynamo_graph_break_reason": self._read_break,
            "recompile_reasons": self._read_recompile,
            "inductor_output_code": self._read_kernels,
            "chromium_event": self._read_autotuning,
            CHANGED: self._read_changed_parts,
            **dict.fromkeys(METRICS, self._read_metrics),
            **dict.fromkeys(GRAPHS, self._read_operations),
        }
        for event in file.events():
            process = self._process_of(file, event)
            if event.name == "torch_version":
                process.torch = process.torch or str(
                    _parse_json(event.payload).get("pytorch_version")
                )
                continue
            handle = handlers.get(event.name)
            if handle is None and not event.name.startswith(CACHES):
                continue
            key = process.number, event.compile
            graph = self.graphs.get(key)
            if graph is None:
                graph = self.graphs[key] = CompiledGraph(process.number, event.compile)
            graph.last = event.name
            try:
                (handle or self._read_cache_outcome)(file, graph, event)
            except (ValueError, TypeError, KeyError, AttributeError, IndexError):
                # Another torch writes the event in another form, or the payload is damaged.
                self.notes[f"{file.path.name}: left out {event.name}, which can't be read"] += 1

    def close(self) -> None:
        """Add everything to the report."""
        report = self.report
        for row in self.unclaimed.values():
            # It imported torch but compiled nothing, or its trace is elsewhere.
            process = TracedProcess(int(row["pid"]), len(self.numbered))
            self._claim_announcement(process, row)
            self.numbered.append(process)
        report.processes = self.numbered
        report.notes += [f"{text} ({n} times)" for text, n in self.notes.items()]
        for key, graph in self.graphs.items():
            counted = self.counted.get(key, {})
            for source in ("inductor", "aot", "dynamo"):
                if counted.get(source):
                    graph.operations = counted[source]
                    break
            if not graph.id and not graph.operations and not graph.seconds and not graph.kernels:
                continue
            if graph.model:
                named = f"{graph.model}.{graph.place.function}"
                graph.place = replace(graph.place, function=named)
            if not graph.finished and graph.start:
                graph.end = max(graph.start, report.processes[graph.process].last)
                graph.seconds = graph.end - graph.start
            report.graphs.append(graph)
        self._not_told()
        report.breaks = sorted(self.breaks.values(), key=lambda one: -one.count)
        self._mark_limit_errors()
        report.recompiles = list(_count_recompiles(report.graphs))
        report.failures = list(_failed_compiles(report.graphs))
        # A compile that ended at the recompile limit made no graph.
        report.graphs = [graph for graph in report.graphs if not graph.limit]

    def _mark_limit_errors(self) -> None:
        """Up to torch 2.6 the limit is one exception, whether it ends the program or not."""
        ended = {end.pid for end in self.report.ends if end.limit}
        for process in self.report.processes:
            reached = [g for g in self.report.graphs if g.process == process.number and g.limit]
            if reached and process.pid in ended:
                reached[-1].raised = True

    def _process_of(self, file: TraceFile, event: TraceEvent) -> TracedProcess:
        key = str(file.path), event.process
        process = self.processes.get(key)
        if process is None:
            process = self.processes[key] = TracedProcess(event.process, len(self.numbered))
            self.numbered.append(process)
            process.trace = str(file.path)
            process.time = event.time
            row = self.unclaimed.pop(event.process, None)
            if row is not None:
                self._claim_announcement(process, row)
        process.last = max(process.last, event.time)
        if event.rank is not None:
            process.rank = event.rank
        return process

    @staticmethod
    def _claim_announcement(process: TracedProcess, row: dict[str, Any]) -> None:
        # Masked once more, because another release may have written the line.
        process.command = tuple(masking.command(list(map(str, row["command"]))))
        process.torch = str(row["torch"])
        process.time = float(row["time"])

    def _start_graph(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        graph.start = graph.start or event.time
        stack = [
            SourcePlace(file.strings.get(frame["filename"], ""), frame["line"], frame["name"])
            for frame in event.data.get("stack") or ()
        ]
        if not stack:
            return
        process = self.numbered[graph.process]
        process.program = process.program or stack[0].file
        users = [place for place in stack if not _INSIDE_TORCH.search(place.file)]
        graph.place = (users or stack)[-1]
        if INSTALLED.search(graph.place.file):
            own = [place for place in users[:-1] if not INSTALLED.search(place.file)]
            callers = own or users[:-1]
            graph.caller = str(callers[-1]) if callers else ""

    def _read_guards(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        model = _SELF.search(event.payload)
        graph.model = model[1] if model else ""

    def _read_metrics(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        told = event.data
        tuned = _seconds_of(told, "compile_time_autotune_time")
        phases = graph.phases
        if told.get("is_runtime"):
            # This happens when a compiled graph first runs.
            late = _seconds_of(told, "runtime_triton_autotune_time") or 0.0
            phases["autotuning"] = phases.get("autotuning", 0.0) + late
            graph.seconds += late
            return
        start = float(told.get("start_time") or 0.0)
        self._read_failure(graph, told)
        if told.get("co_filename"):
            self._name_graph(graph, told)
        process = self.numbered[graph.process]
        process.torch = process.torch or str(told.get("pytorch_version") or "")
        generation = self._generation_of(graph, event)
        process.torch = process.torch or generation.guessed_version
        for reason in generation.restart_reasons(told):
            self._add_break(graph, graph.place, reason.split("\n")[0], reason)
        # torch 2.6 reports a compile that failed before its start as a backward.
        if not graph.failure and event.name == "bwd_compilation_metrics":
            whole = _seconds_of(told, "backward_cumulative_compile_time")
            whole = whole or _seconds_of(told, "inductor_compile_time") or 0.0
            if whole:
                phases["backward"] = phases.get("backward", 0.0) + whole - (tuned or 0.0)
                phases["autotuning"] = phases.get("autotuning", 0.0) + (tuned or 0.0)
                graph.seconds += whole
                graph.end = max(graph.end, start + whole)
            return
        whole = _seconds_of(told, "entire_frame_compile_time")
        if whole is None:
            whole = _seconds_of(told, "duration") or 0.0
        aot = _seconds_of(told, "backend_compile_time") or 0.0
        inductor = _seconds_of(told, "inductor_compile_time") or 0.0
        tuned = tuned or 0.0
        for phase, spent in (
            ("tracing", whole - aot),
            ("AOTAutograd", aot - inductor),
            ("Inductor", inductor - tuned),
            ("autotuning", tuned),
        ):
            phases[phase] = phases.get(phase, 0.0) + max(spent, 0.0)
        graph.seconds += whole
        graph.start, graph.end = start or graph.start, (start or graph.start) + whole
        graph.finished = True
        if told.get("graph_node_count") is not None:
            graph.nodes = int(told["graph_node_count"])
        if told.get("recompile_reason") and not graph.guards:
            graph.guards = (_plain_guard(str(told["recompile_reason"])),)
        # From torch 2.9 on force_disable_caches is a key of the second config, which the trace has
        # from 2.10 on.
        for config in ("inductor_config", "compiler_config"):
            settings = _parse_json(told[config]) if told.get(config) else {}
            graph.settings.update({n: settings[n] for n in SETTINGS if n in settings})

    def _read_failure(self, graph: CompiledGraph, told: dict[str, Any]) -> None:
        if told.get("fail_type"):
            reason = str(told.get("fail_reason") or "").strip().split("\n")[0]
            graph.failure = f"{told['fail_type']}: {reason}" if reason else str(told["fail_type"])
            graph.limit = bool(_LIMIT.search(f"{told['fail_type']} {told.get('fail_reason')}"))
            graph.raised = graph.limit and str(told["fail_type"]).startswith(_LIMIT_RAISES)

    def _name_graph(self, graph: CompiledGraph, told: dict[str, Any]) -> None:
        place = SourcePlace(
            str(told["co_filename"]), int(told["co_firstlineno"] or 0), str(told["co_name"])
        )
        resumed = _RESUME.fullmatch(place.function)
        if resumed:
            graph.resumed = int(resumed[2])
            place = SourcePlace(place.file, place.line, resumed[1])
        # A helper of torch compiles torch's own modules. Then the caller's place says more.
        if not (_INSIDE_TORCH.search(place.file) and graph.place.file):
            graph.place = place

    def _generation_of(self, graph: CompiledGraph, event: TraceEvent) -> TraceGeneration:
        return find_generation(self.numbered[graph.process].torch, event)

    def _not_told(self) -> None:
        for wanted, since in SINCE.items():
            old = [v for v in self.report.versions if v and release_of(v) < since]
            if old:
                self.report.notes.append(f"torch {', '.join(old)} does not record {wanted}")

    def _read_break(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        text = event.payload
        at = _BROKEN_AT.search(text)
        frames = _FRAME.findall(text.partition("Traceback (most recent call last)")[0])
        if at:
            inside = [f for f in frames if f[:2] == at.groups()]
            place = SourcePlace(
                at[1], int(at[2]), inside[-1][2] if inside else graph.place.function
            )
        elif frames:
            place = SourcePlace(frames[-1][0], int(frames[-1][1]), frames[-1][2])
        else:
            place = graph.place
        reason = _plain_reason(text)
        if _LIMIT.search(reason):
            graph.limit = True
            return
        self._add_break(graph, place, reason, text)

    def _add_break(self, graph: CompiledGraph, place: SourcePlace, reason: str, text: str) -> None:
        # If Dynamo restarts a compile, it meets the same break again.
        once = graph.process, graph.id, place, reason
        if once in self.broken:
            return
        self.broken.add(once)
        found = self.breaks.get((place, reason))
        if found is None:
            explained = _EXPLANATION.search(_ADDRESS.sub("", text))
            hints = tuple(dict.fromkeys(_HINT.findall(text)))
            found = GraphBreak(place, reason, explained[1] if explained else "", hints)
            self.breaks[place, reason] = found
        found.count += 1
        found.processes.add(graph.process)

    def _read_recompile(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        reasons = _parse_json(event.payload) if event.payload.startswith("[") else None
        if reasons is None:
            reasons = [event.payload]
        graph.guards = tuple(_plain_guard(str(reason)) for reason in reasons)

    def _read_cache_outcome(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        state, key = self._generation_of(graph, event).read_cache(event)
        if event.name.startswith("aotautograd") or state not in ("hit", "miss", "bypass"):
            return
        graph.cache = state if graph.cache in ("", state) else "part"
        if key:
            graph.keys += (key,)
            if state == "miss":
                graph.missed += (key,)

    def _read_changed_parts(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        graph.changed += (event.payload.strip(),)

    def _read_operations(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        source = event.name.partition("_")[0]
        counted = self.counted.setdefault((graph.process, graph.id), {})
        counted.setdefault(source, Counter()).update(operations.count_operations(event.payload))

    def _read_kernels(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        count, library = operations.count_kernels(event.payload)
        graph.kernels = (graph.kernels or 0) + count
        graph.library.update(library)

    def _read_autotuning(self, file: TraceFile, graph: CompiledGraph, event: TraceEvent) -> None:
        told = _parse_json(event.payload)
        name = graph.last = str(told["name"])
        if not name.endswith("_autotuning"):
            return
        key = graph.process, graph.id, name
        if told["ph"] == "B":
            self.tuning[key] = float(told["ts"])
        elif told["ph"] == "E" and key in self.tuning:
            spent = (float(told["ts"]) - self.tuning.pop(key)) / 1e6
            graph.tuned += (name[: -len("_autotuning")].replace("_template", ""),)
            if self._generation_of(graph, event).times_tuning_by_events:
                graph.phases["autotuning"] = graph.phases.get("autotuning", 0.0) + spent
                graph.phases["Inductor"] = graph.phases.get("Inductor", 0.0) - spent


def _seconds_of(told: dict[str, Any], name: str) -> float | None:
    """A time in compilation_metrics. Some are in seconds, some in microseconds."""
    if told.get(name + "_us") is not None:
        return float(told[name + "_us"]) / 1e6
    found = told.get(name + "_s")
    return None if found is None else float(found)


def _parse_json(text: str) -> Any:
    return json.loads(text)


def _plain_guard(text: str) -> str:
    """A guard in torch's words, without the compile's id and the origin of the value."""
    text = re.sub(r"^\d+/\d+(_\d+)?: ", "", text.strip())
    return text.partition("  #")[0].partition("\n")[0].strip()


def _plain_reason(text: str) -> str:
    raised = _RAISED.findall(text)
    found = _REASON.search(text)
    reason = found[1] if found else raised[-1] if raised else text.strip().split("\n")[0]
    if found and found[1].startswith("Encountered graph break when"):  # torch 2.14
        after = [line for line in text[found.end() :].split("\n") if line.strip()]
        reason = after[0] if after else reason
    reason = reason.replace("Unsupported: ", "")
    return _ADDRESS.sub("", reason).strip()


def guard_without_values(guard: str) -> str:
    """The guard without the values, which differ from one recompile to the next."""
    guard = re.sub(r"expected .*", "", guard).rstrip(". ")
    return re.sub(r"(==|!=|<=|>=|<|>) -?[\d.]+(e-?\d+)?\b", r"\1 …", guard)


def _failed_compiles(graphs: Iterable[CompiledGraph]) -> Iterator[FailedCompile]:
    """What failed; a limit that only makes code run uncompiled is no failure."""
    found: dict[tuple[SourcePlace, str], FailedCompile] = {}
    for graph in graphs:
        if graph.failure and (graph.raised or not graph.limit):
            one = found.setdefault(
                (graph.place, graph.failure), FailedCompile(graph.place, graph.failure)
            )
            one.count += 1
            one.processes.add(graph.process)
    yield from sorted(found.values(), key=lambda one: -one.count)


def _count_recompiles(graphs: Iterable[CompiledGraph]) -> Iterator[GuardedRecompile]:
    found: dict[tuple[SourcePlace, str], GuardedRecompile] = {}
    # The compile that reaches the limit has no place of its own.
    places = {(g.process, g.id.rpartition("/")[0]): g.place for g in graphs if g.place.file}
    for graph in graphs:
        if not graph.again:
            continue
        graph.place = (
            graph.place
            if graph.place.file
            else places.get((graph.process, graph.id.rpartition("/")[0]), graph.place)
        )
        guard = guard_without_values(graph.guard) or "unknown guard"
        one = found.setdefault((graph.place, guard), GuardedRecompile(graph.place, guard))
        one.limit += graph.limit
        one.raised += graph.raised
        one.count += not graph.limit
        one.seconds += graph.seconds
        one.processes.add(graph.process)
        one.example = one.example or graph.guard
    yield from sorted(found.values(), key=lambda one: -one.count)
