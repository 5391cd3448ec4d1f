"""What was measured, as Markdown."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone

from benchmarks.startup.environments import ROOT
from benchmarks.startup.measure import Cost
from benchmarks.startup.states import ACTIVE, BAKED, BARE, NOTHING, OFF, PTH, Absent, Row, State
from benchmarks.startup.torch_import import Import

# By how much two counts of the same start may differ before the table says so.
AGREE = 0.001
# What the columns of the table by Python are called.
SHORT = {
    BARE: "bare",
    PTH: "any .pth",
    OFF: "off",
    NOTHING: "nothing applies",
    ACTIVE: "active",
    BAKED: "baked",
}

INSTRUCTIONS, WALL, CPU = "instructions, M", "ms", "CPU, ms"

Costs = Mapping[State, Cost]
# A row of the finder's benchmark (finder.py).
Finding = tuple[str, float, float, float, float, float]


def header(rounds: int) -> str:
    tool = _output("valgrind", "--version")
    commit = _output("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    return (
        f"{datetime.now(timezone.utc):%Y-%m-%d}, {platform.platform()}, {os.cpu_count()} CPUs, "
        f"load average {os.getloadavg()[0]:.1f}, "
        f"CPython {platform.python_version()}, {tool}, {rounds} rounds, checkout {commit}: "
        f"`python -m benchmarks.startup {shlex.join(sys.argv[1:])}`"
    )


def states(rows: Sequence[Row], costs: Costs) -> str:
    """The table of one Python."""
    title = (
        "`python -c pass`",
        "instructions, M",
        "more, M",
        "more, %",
        "more, ms",
        "more CPU, ms",
        "more modules",
        "ours",
    )
    lines = []
    for row in rows:
        if isinstance(row, Absent):
            lines.append((f"{row.name}: not measured, {row.why}", *[""] * (len(title) - 1)))
            continue
        cost = costs[row]
        count = f"{count_of(cost) / 1e6:.2f}"
        if row.against is None:
            wall, cpu = statistics.median(cost.wall), statistics.median(cost.cpu)
            absolute = f"({wall:.2f})", f"({cpu:.2f})", f"({len(cost.modules)})", ""
            lines.append((row.name, count, "", "", *absolute))
            continue
        bare = costs[row.against]
        more = count_of(cost) - count_of(bare)
        modules = cost.modules - bare.modules
        lines.append(
            (
                row.name,
                count,
                f"{more / 1e6:+.2f}",
                f"{more / count_of(bare) * 100:+.1f}",
                _difference(cost.wall, bare.wall),
                _difference(cost.cpu, bare.cpu),
                str(len(modules)),
                str(sum(name.partition(".")[0] == "rocm_autopatch" for name in modules)),
            )
        )
    return "\n".join(_table(title, lines))


def pythons(table: Mapping[str, Sequence[Row]], costs: Costs) -> str:
    """Our states by Python: what a bare start takes, and how much more they take."""
    parts = []
    for measure in (INSTRUCTIONS, WALL, CPU):
        lines = []
        for version, rows in table.items():
            found = {row.name: row for row in rows if isinstance(row, State)}
            why = [row.why for row in rows if isinstance(row, Absent)]
            cells = [
                _cell(found[name], costs, measure) if name in found else "not measured"
                for name in SHORT
            ]
            lines.append((version if found else f"{version}: {why[0]}", *cells))
        parts += [*_table((f"Python, {measure}", *SHORT.values()), lines), ""]
    return "\n".join(parts).rstrip()


def agreement(costs: Costs) -> str:
    """How much the repeated counts of a state differ."""
    apart = {
        state: max(cost.instructions) / min(cost.instructions) - 1 for state, cost in costs.items()
    }
    worst = [
        f"{state.name} ({state.python}: {value:.2%})"
        for state, value in apart.items()
        if value > AGREE
    ]
    rest = max((value for value in apart.values() if value <= AGREE), default=0.0)
    said = f"The two counts of every {'other ' if worst else ''}state agree within {rest:.3%}."
    if worst:
        return f"Two counts differ by more than {AGREE:.1%}: {', '.join(worst)}. {said}"
    return said


def imports(rows: Sequence[Finding]) -> str:
    """The price of the finder."""
    title = (
        "import of",
        "without our finder, ns",
        "a finder that does nothing, more",
        "ours, more",
    )
    lines = [
        (
            kind,
            f"{plain:,.0f}",
            f"{idle:+,.0f} ± {idle_off:,.0f}",
            f"{ours:+,.0f} ± {ours_off:,.0f}",
        )
        for kind, plain, idle, idle_off, ours, ours_off in rows
    ]
    return "\n".join(_table(title, lines))


def torch(found: Import | None) -> str:
    if found is None:
        return "`import torch`: not measured, `python -m surroundings.hip_torch` has made none."
    return "\n".join(
        _table(
            ("`python -c 'import torch'`", "instructions, M"),
            [
                ("off", f"{found.off / 1e6:.1f}"),
                ("active", f"{found.active / 1e6:.1f}"),
                ("active / off", f"{found.active / found.off:.4f}"),
            ],
        )
    )


def count_of(cost: Cost) -> float:
    return statistics.mean(cost.instructions)


def _difference(ours: Sequence[float], bare: Sequence[float]) -> str:
    """The median of the rounds' differences, and the median absolute deviation from it."""
    differences = [one - other for one, other in zip(ours, bare)]
    middle = statistics.median(differences)
    deviation = statistics.median(abs(difference - middle) for difference in differences)
    return f"{middle:+.2f} ± {deviation:.2f}"


def _cell(state: State, costs: Costs, measure: str) -> str:
    cost, bare = costs[state], costs[state.against or state]
    if measure == INSTRUCTIONS:
        count = count_of(cost) / 1e6
        return f"{count - count_of(bare) / 1e6:+.2f}" if state.against else f"{count:.2f}"
    times, others = (cost.wall, bare.wall) if measure == WALL else (cost.cpu, bare.cpu)
    return _difference(times, others) if state.against else f"{statistics.median(times):.2f}"


def _table(title: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(title)} |"
    yield f"|---|{'---:|' * (len(title) - 1)}"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
