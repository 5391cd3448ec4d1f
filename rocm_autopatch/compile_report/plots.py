"""The plots of the compile report, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from rocm_autopatch.compile_report import summary
from rocm_autopatch.compile_report.model import PHASES, CompiledGraph, CompileReport

WIDTH = 1000
_NAMES = 190  # of the width, for what a row is called
_ROW = 20
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
    return _svg_image(y + 4, ticks + "".join(parts), "compiles of each process over time")


def _graph_state(graph: CompiledGraph) -> str:
    if not graph.finished or graph.failure:
        return "unfinished"
    if graph.cache == "hit":
        return "hit"
    return "again" if graph.again else "miss"


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
    """Seconds by phase of the slowest compiles."""
    graphs = [graph for graph in report.dearest()[:DEAREST] if graph.seconds]
    if not graphs:
        return ""
    width, names = 560, 220
    scale = (width - names - 60) / graphs[0].seconds
    parts = []
    for number, graph in enumerate(graphs):
        y = number * (_ROW + 2)
        where = summary.graph_title(graph)
        parts.append(_svg_text(0, y + 13, _place_label(graph, 36), where))
        x = float(names)
        rest = graph.seconds
        for phase in PHASES:
            spent = graph.phases.get(phase, 0.0)
            rest -= spent
            if spent:
                about = f"{where}\n{phase} {spent:.2f} s"
                parts.append(_svg_rect(x, y, spent * scale, _ROW - 4, phase, about))
                x += spent * scale
        if rest > 0.001 * graph.seconds:
            about = f"{where}\n{rest:.2f} s"
            parts.append(_svg_rect(x, y, rest * scale, _ROW - 4, "unfinished", about))
            x += rest * scale
        parts.append(_svg_text(x + 5, y + 13, f"{graph.seconds:.2f} s", "", "dim"))
    return _svg_image(len(graphs) * (_ROW + 2), "".join(parts), "seconds by phase", width)


def draw_kinds(report: CompileReport) -> str:
    """How often the graphs have each kind of operation."""
    return _draw_bars(report.kinds().most_common(), "operations by kind")


def draw_frequent_operations(report: CompileReport) -> str:
    """The most frequent operations of the graphs."""
    return _draw_bars(report.operations().most_common(12), "most frequent operations")


def _draw_bars(counted: list[tuple[str, int]], label: str) -> str:
    if not counted:
        return '<p class="dim">the trace has no graph</p>'
    width, names = 560, 160
    scale = (width - names - 70) / counted[0][1]
    parts = []
    for number, (kind, count) in enumerate(counted):
        y = number * (_ROW + 6)
        parts.append(_svg_text(0, y + 13, _shortened(kind, 24), kind))
        about = f"{kind}: {count:,}"
        parts.append(_svg_rect(names, y, max(count * scale, 1.0), _ROW - 2, "bar", about))
        parts.append(_svg_text(names + count * scale + 6, y + 13, f"{count:,}", "", "dim"))
    return _svg_image(len(counted) * (_ROW + 6), "".join(parts), label, width)


def _place_label(graph: CompiledGraph, longest: int) -> str:
    name = graph.place.file.rpartition("/")[2]
    text = f"{name}:{graph.resumed or graph.place.line} {graph.place.function}"
    if graph.again:
        text += f" #{graph.id.rpartition('/')[2]}"
    return _shortened(text, longest)


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


def _svg_image(height: float, content: str, label: str, width: float = WIDTH) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(label)}">'
        f"{content}</svg>"
    )
