"""The parts of a compile report: processes, graphs, graph breaks, recompiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rocm_autopatch.compile_report import operations

PHASES = ("tracing", "AOTAutograd", "Inductor", "autotuning", "backward")


@dataclass(frozen=True, order=True)
class SourcePlace:
    """A line of source. file is "" if the trace does not have it."""

    file: str = ""
    line: int = 0
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "unknown place"


@dataclass
class TracedProcess:
    """A process that imported torch, or that wrote a trace."""

    pid: int
    number: int  # in order of appearance, because two processes may have one pid
    rank: int | None = None
    torch: str = ""
    command: tuple[str, ...] = ()
    program: str = ""  # the file at the bottom of the stack
    trace: str = ""  # its file
    time: float = 0.0
    last: float = 0.0

    @property
    def name(self) -> str:
        words = list(self.command[1:])
        # python -u -X dev script.py: the first word that is not an option or an option's value.
        while words and words[0][:1] == "-" and words[0] not in ("-c", "-m"):
            del words[: 2 if words[0] in ("-X", "-W") else 1]
        if not words and self.command and "python" not in self.command[0]:
            # A title, such as Ray gives its workers.
            words = [self.command[0]]
        if words[:1] in (["-c"], ["-m"]):
            what = " ".join(words[:2]).split("\n")[0]
        else:
            what = (words[0] if words else self.program).rpartition("/")[2]
        what = what[:40] or "?"
        rank = "" if self.rank is None else f", rank {self.rank}"
        return f"{what} ({self.pid}{rank})"


@dataclass
class CompiledGraph:
    """One compile of one code object: a graph, with its backward if there is one."""

    process: int  # its number
    id: str
    place: SourcePlace = field(default_factory=SourcePlace)
    model: str = ""  # the class of the model that the code is a method of
    caller: str = ""  # the place in the program that called the code of an installed package
    resumed: int = 0  # the line of the graph break after which it continues
    start: float = 0.0
    end: float = 0.0
    finished: bool = False
    last: str = ""  # the event that the trace ended with
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    nodes: int | None = None
    operations: Counter[str] = field(default_factory=Counter)
    kernels: int | None = None
    library: Counter[str] = field(default_factory=Counter)
    cache: str = ""  # hit, miss, part (some of each), bypass or ""
    keys: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # what in the key differs from that of the same graph in caches
    tuned: tuple[str, ...] = ()  # what was autotuned, if the trace names it
    guards: tuple[str, ...] = ()  # the guard that failed, for each compiled version
    failure: str = ""
    limit: bool = False  # whether the recompile limit was reached
    raised: bool = False  # whether that was an error, as with fullgraph; else it runs uncompiled
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def again(self) -> bool:
        """Whether it is a recompile."""
        return self.id.rpartition("/")[2] not in ("", "0")

    @property
    def autotuned(self) -> bool:
        return bool(self.tuned or self.phases.get("autotuning"))

    @property
    def guard(self) -> str:
        """The guard that failed in the version that was compiled last."""
        return self.guards[0] if self.guards else ""


@dataclass
class GraphBreak:
    """Graph breaks at one place, for one reason."""

    place: SourcePlace
    reason: str
    explanation: str = ""
    hints: tuple[str, ...] = ()
    count: int = 0
    processes: set[int] = field(default_factory=set)


@dataclass
class GuardedRecompile:
    """Recompiles at one place, because of one guard."""

    place: SourcePlace
    guard: str
    count: int = 0
    seconds: float = 0.0
    processes: set[int] = field(default_factory=set)
    limit: int = 0  # how often the recompile limit was reached
    raised: int = 0  # how often that was an error
    example: str = ""


@dataclass
class FailedCompile:
    """Compiles at one place that failed for one reason."""

    place: SourcePlace
    reason: str
    count: int = 0
    processes: set[int] = field(default_factory=set)


@dataclass
class ProcessEnd:
    """The exception that ended a process, and the program's line that led to it."""

    pid: int
    name: str
    error: str
    place: SourcePlace
    limit: bool = False  # whether it is that of the recompile limit


@dataclass(frozen=True)
class ReportHead:
    """What was run, where and when, as far as it was told; of several processes, all values.

    ``began`` is seconds since 1970, 0 if unknown. ``version`` is that of the package, ``hips`` are
    the HIP versions that torch was built with. ``status`` is
    the command's, None if it has not ended, or was not *watched* by ``rocm-autopatch run``.
    """

    command: tuple[str, ...] = ()
    began: float = 0.0
    hosts: tuple[str, ...] = ()
    version: str = ""
    pythons: tuple[str, ...] = ()
    hips: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    status: int | None = None
    watched: bool = False


@dataclass
class CompileReport:
    """What was gathered about a command."""

    directory: str
    processes: list[TracedProcess] = field(default_factory=list)
    graphs: list[CompiledGraph] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    recompiles: list[GuardedRecompile] = field(default_factory=list)
    failures: list[FailedCompile] = field(default_factory=list)
    ends: list[ProcessEnd] = field(default_factory=list)
    status: int = 0  # of the command, as a shell has it; 0 if unknown
    notes: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    given_modes: dict[str, str] = field(default_factory=dict)
    head: ReportHead = field(default_factory=ReportHead)
    size: int = 0  # bytes of trace

    @property
    def versions(self) -> list[str]:
        return sorted({process.torch for process in self.processes if process.torch})

    @property
    def seconds(self) -> float:
        return sum(graph.seconds for graph in self.graphs)

    def phases(self) -> dict[str, float]:
        """Seconds of all graphs, by phase."""
        return {
            phase: sum(graph.phases.get(phase, 0.0) for graph in self.graphs) for phase in PHASES
        }

    def operations(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for graph in self.graphs:
            total.update(graph.operations)
        return total

    def kinds(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for name, count in self.operations().items():
            total[operations.kind_of_operation(name)] += count
        return total

    def dearest(self) -> list[CompiledGraph]:
        return sorted(self.graphs, key=lambda graph: -graph.seconds)
