"""The plots of the compile report: bars as HTML, which wraps, and compiles over time as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from rocm_autopatch.compile_report import summary
from rocm_autopatch.compile_report.model import PHASES, CompiledGraph, CompileReport

WIDTH = 1000
_NAMES = 190  # of the width, for what a row is called
_ROW = 20
# What tells bars apart without colour; page.css has the lines' colours.
_PATTERNS = (
    '<defs><pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="again" width="6" height="6"/>'
    '<path class="hatch" d="M0 0V6"/></pattern>'
    '<pattern id="crossed" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect class="unfinished" width="6" height="6"/>'
    '<path class="hatch" d="M0 0V6M0 0H6"/></pattern></defs>'
)
MOST_BARS = 4000
MOST_PROCESSES = 64
MOST_LANES = 8
DEAREST = 20


def draw_timeline(report: CompileReport) -> str:
    """What each process compiled, and when. Compiles that overlap get separate rows."""
    graphs = sorted((g for g in report.dearest()[:MOST_BARS] if g.start), key=lambda g: g.start)
    if not graphs:
        return ""
    first = graphs[0].start
    whole = max(max(graph.end for graph in graphs) - first, 0.001)
    lanes: dict[int, list[list[CompiledGraph]]] = {}
    for graph in graphs:
        rows = lanes.setdefault(graph.process, [])
        for row in rows:
            if row[-1].end <= graph.start:
                row.append(graph)
                break
        else:
            # Threads compile at the same time. If there are many, the rest shares the last row.
            if len(rows) < MOST_LANES:
                rows.append([])
            rows[-1].append(graph)
    shown = sorted(lanes)[:MOST_PROCESSES]
    parts: list[str] = []
    y = 22
    scale = (WIDTH - _NAMES - 10) / whole
    for process in shown:
        name = f"{process}: {report.processes[process].name}"
        parts.append(_svg_text(4, y + 13, _shortened(name, 27), name))
        for row in lanes[process]:
            for graph in row:
                x = _NAMES + (graph.start - first) * scale
                width = max((graph.end - graph.start) * scale, 1.0)
                about = f"{summary.graph_title(graph)}\n{graph.seconds:.2f} s, graph {graph.id}"
                parts.append(_svg_rect(x, y, width, _ROW - 4, _graph_state(graph), about))
            y += _ROW
        parts.append(f'<line class="axis" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>')
        y += 4
    ticks = "".join(_draw_ticks(whole, scale, y))
    more = len(lanes) - len(shown)
    if more:
        y += 16
        parts.append(_svg_text(4, y, f"and {more} more processes", "", "dim"))
    content = _PATTERNS + ticks + "".join(parts)
    return _svg_image(y + 4, content, "compiles of each process over time")


def _graph_state(graph: CompiledGraph) -> str:
    """The class of a graph's bar."""
    if not graph.finished or graph.failure:
        return "crossed"
    if graph.cache == "hit":
        return "hit"
    return "hatched" if graph.again else "miss"


def _draw_ticks(whole: float, scale: float, height: float) -> Iterator[str]:
    step = _tick_step(whole / 8)
    count = int(whole / step)
    for number in range(count + 1):
        x = _NAMES + number * step * scale
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="16" y2="{height}"/>'
        yield _svg_text(x, 11, f"{number * step:g} s", "", "dim", "middle" if number else "start")


def _tick_step(least: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 0.001
    while True:
        for factor in (1, 2, 5):
            if factor * power >= least:
                return round(factor * power, 6)
        power *= 10


def draw_phases(report: CompileReport) -> str:
    """Seconds by phase of the slowest compiles: bars, and the same in words."""
    graphs = [graph for graph in report.dearest()[:DEAREST] if graph.seconds]
    rows = []
    for graph in graphs:
        spent = [(phase, graph.phases.get(phase, 0.0)) for phase in PHASES]
        rest = graph.seconds - sum(seconds for _, seconds in spent)
        if rest > 0.001 * graph.seconds:
            spent.append(("unfinished", rest))
        parts = [(phase, 100 * its / graphs[0].seconds) for phase, its in spent if its]
        told = [f"{phase} {its:.2f}" for phase, its in spent if its >= 0.005]
        value = f"{graph.seconds:.2f} s: {', '.join(told)}"
        rows.append(_bar_row(_place_label(graph), summary.graph_title(graph), parts, value))
    return _bar_list(rows)


def draw_kinds(report: CompileReport) -> str:
    """How often the graphs have each kind of operation."""
    return _draw_bars(report.kinds().most_common())


def draw_frequent_operations(report: CompileReport) -> str:
    """The most frequent operations of the graphs."""
    return _draw_bars(report.operations().most_common(12))


def _draw_bars(counted: list[tuple[str, int]]) -> str:
    most = counted[0][1] if counted else 1
    return _bar_list(
        [_bar_row(name, name, [("bar", 100 * n / most)], f"{n:,}") for name, n in counted],
        "bars counts",
    )


def _bar_list(rows: list[str], name: str = "bars") -> str:
    if not rows:
        return '<p class="dim">the trace has no graph</p>'
    return f'<ul class="{name}">{"".join(rows)}</ul>'


def _bar_row(name: str, about: str, parts: list[tuple[str, float]], value: str) -> str:
    """A name, a bar of parts in percent of the widest bar, and what it says in words. As HTML it
    wraps where there is little room, and a screen reader reads it."""
    rects, x = "", 0.0
    for kind, width in parts:
        rects += f'<rect class="{kind}" x="{x:.2f}%" width="{max(width, 0.3):.2f}%" height="14"/>'
        x += width
    return (
        f'<li><span title="{escape(about)}">{escape(name)}</span>'
        f'<svg aria-hidden="true">{rects}</svg><span>{escape(value)}</span></li>'
    )


def _place_label(graph: CompiledGraph) -> str:
    name = graph.place.file.rpartition("/")[2]
    text = f"{name}:{graph.resumed or graph.place.line} {graph.place.function}"
    if graph.again:
        text += f" #{graph.id.rpartition('/')[2]}"
    return text


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


def _svg_rect(x: float, y: float, width: float, height: float, name: str, about: str) -> str:
    return (
        f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="2"><title>{escape(about)}</title></rect>'
    )


def _svg_text(
    x: float, y: float, text: str, about: str = "", name: str = "", anchor: str = "start"
) -> str:
    title = f"<title>{escape(about)}</title>" if about else ""
    return (
        f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{escape(text)}{title}</text>"
    )


def _svg_image(height: float, content: str, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{content}</svg>"
    )
