"""The compile report as a page: one file with plots, which loads nothing from a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from rocm_autopatch.compile_report import operations, plots, summary
from rocm_autopatch.compile_report.advice import advise_on_report
from rocm_autopatch.compile_report.model import PHASES, CompiledGraph, CompileReport

_HERE = Path(__file__).parent
# With more rows a page opens slowly. Then only the slowest compiles are shown.
MOST_ROWS = 2000
_SHORT = {"AOTAutograd": "AOT", "autotuning": "tuning"}


def html_page(report: CompileReport, links: Mapping[str, str]) -> str:
    """The page as HTML. *links* has tlparse's page for each trace file.

    Text from the program, such as source and guards, is escaped. The page's security policy allows
    only its own script.
    """
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src {_csp_hash(style)}; script-src {_csp_hash(script)}"
    body = "\n".join(_page_body(report, links))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Compile report: {escape(_page_title(report))}</title>\n<style>{style}</style>\n"
        f"</head>\n<body>\n{body}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _csp_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _page_title(report: CompileReport) -> str:
    return report.processes[0].name if report.processes else report.directory


def _page_body(report: CompileReport, links: Mapping[str, str]) -> Iterator[str]:
    yield f"<h1>Compile report: {escape(_page_title(report))}</h1>"
    yield '<dl class="head">'
    for name, value in (*summary.head_rows(report), ("report", report.directory)):
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
    yield "</dl>"
    yield from _ends_section(report)
    yield _numbers_section(report)
    yield from _advice_section(report)
    yield from _failures_section(report)
    yield "<h2>Compiles over time</h2>"
    yield '<p class="dim">Rows are processes, bars are compiles; hover to see the place. The table '
    yield '<a href="#graphs">Graphs</a> has each in words.</p>'
    yield from _timeline_section(report)
    yield '<div class="two"><section><h2>Seconds by phase, slowest compiles</h2>'
    yield _chart_legend((phase, phase) for phase in PHASES)
    yield f'<div class="plot">{plots.draw_phases(report)}</div></section>'
    yield "<section><h2>Operations by kind</h2>"
    yield f'<div class="plot">{plots.draw_kinds(report)}</div>'
    yield "<h2>Most frequent operations</h2>"
    yield f'<div class="plot">{plots.draw_frequent_operations(report)}</div></section></div>'
    yield from _graphs_section(report)
    yield from _breaks_section(report)
    yield from _recompiles_section(report)
    yield from _operations_section(report)
    yield from _processes_section(report, links)
    if report.notes:
        yield "<h2>What is missing or unexpected</h2><ul>"
        yield from (f"<li>{escape(note)}</li>" for note in report.notes)
        yield "</ul>"


def _ends_section(report: CompileReport) -> Iterator[str]:
    lines = summary.describe_end(report)
    if lines:
        yield f"<h2>{escape(lines[0])}</h2><pre>"
        yield escape("\n".join(lines[1:]))
        yield "</pre>"


def _failures_section(report: CompileReport) -> Iterator[str]:
    if not report.failures:
        return
    yield "<h2>Compiles that failed</h2>"
    heads = (("count", "number"), ("place", "text"), ("reason", "text"))
    rows = (
        (
            _number_cell(one.count),
            _code_cell(f"{one.place} {one.place.function}"),
            _text_cell(one.reason),
        )
        for one in report.failures[:MOST_ROWS]
    )
    yield from _table_of("failures", heads, rows)


def _numbers_section(report: CompileReport) -> str:
    hits = sum(graph.cache == "hit" for graph in report.graphs)
    asked = sum(bool(graph.cache) for graph in report.graphs)
    phases = report.phases()
    tuning = phases["autotuning"] / report.seconds if report.seconds else 0.0
    rows = [
        (f"{report.seconds:,.1f} s", "of compiling"),
        (f"{len(report.graphs):,}", "graphs"),
        (f"{len({graph.process for graph in report.graphs}):,}", "processes that compiled"),
        (f"{hits:,} of {asked:,}", "from the cache"),
        (f"{tuning:.0%}", "of the time autotuning"),
        (f"{sum(one.count for one in report.breaks):,}", "graph breaks"),
        (f"{sum(one.count for one in report.recompiles):,}", "recompiles"),
    ]
    cells = "".join(f"<li><b>{escape(n)}</b><span>{escape(what)}</span></li>" for n, what in rows)
    return f'<ul class="numbers">{cells}</ul>'


def _advice_section(report: CompileReport) -> Iterator[str]:
    found = advise_on_report(report)
    if not found:
        return
    yield '<h2>What to do</h2><ul class="advice">'
    for one in found:
        places = ", ".join(one.places[:5]) + (", ..." if len(one.places) > 5 else "")
        where = f'<br><code class="dim">{escape(places)}</code>' if places else ""
        yield f"<li><b>{escape(one.seen)}</b><br>{escape(one.do)}{where}</li>"
    yield "</ul>"


def _chart_legend(entries: Iterable[tuple[str, str]]) -> str:
    marks = "".join(
        f'<span><svg viewBox="0 0 10 10"><rect width="10" height="10" rx="2" class="{name}"/>'
        f"</svg>{escape(text)}</span>"
        for name, text in entries
    )
    return f'<div class="legend">{marks}</div>'


def _timeline_section(report: CompileReport) -> Iterator[str]:
    yield _chart_legend(
        (
            ("miss", "compiled"),
            ("hit", "from the cache"),
            ("hatched", "recompiled"),
            ("crossed", "failed or not finished"),
        )
    )
    yield '<div class="plot" tabindex="0" role="region" aria-label="compiles over time">'
    yield f"{plots.draw_timeline(report)}</div>"


Cell = tuple[str, str]  # its class and its HTML


def _table_of(
    name: str, heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[Cell]]
) -> Iterator[str]:
    cells = "".join(
        f'<th scope="col" data-kind="{kind}"><button type="button">{escape(head)}</button></th>'
        for head, kind in heads
    )
    yield f'<div class="table" tabindex="0" role="region" aria-label="{name}">'
    yield f'<table class="sortable" id="{name}"><thead><tr>{cells}</tr></thead>'
    yield "<tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td{about}>{text}</td>" for about, text in row) + "</tr>"
    yield "</tbody></table></div>"


def _number_cell(value: float | None, text: str | None = None) -> Cell:
    if value is None:
        return ' class="number"', "-"
    shown = f"{value:,}" if text is None else text
    return f' class="number" data-value="{value!r}"', shown


def _text_cell(value: str, kind: str = "text") -> Cell:
    return f' class="{kind}"', escape(value)


def _code_cell(value: str, kind: str = "place") -> Cell:
    return f' class="{kind}"', f"<code>{escape(value)}</code>"


def _graphs_section(report: CompileReport) -> Iterator[str]:
    shown = report.dearest()[:MOST_ROWS]
    yield "<h2>Graphs</h2>"
    if len(shown) < len(report.graphs):
        yield (
            f'<p class="dim">The {len(shown):,} slowest of {len(report.graphs):,} compiles; '
            "rocm-autopatch report --json lists all.</p>"
        )
    yield '<input class="filter" data-table="graphs" placeholder="filter: file, function, miss" '
    yield 'aria-label="filter graphs" type="search" hidden>'
    first = min((graph.start for graph in shown if graph.start), default=0.0)
    heads = [("place", "text"), ("process: graph", "text"), ("seconds", "number")]
    heads += [("began", "number")]
    heads += [("cache", "text"), ("tuned", "text"), ("nodes", "number"), ("kernels", "number")]
    heads += [("library", "number"), *((_SHORT.get(p, p), "number") for p in PHASES)]
    heads += [("operations", "text")]
    yield from _table_of("graphs", heads, (_graph_row(graph, first) for graph in shown))


def _graph_row(graph: CompiledGraph, first: float) -> Sequence[Cell]:
    """The row of a graph; it began so many seconds after the *first* one."""
    began = graph.start - first if graph.start else None
    state = ""
    if not graph.finished:
        state = " did not finish"
    elif graph.failure:
        state = f" {graph.failure}"
    common = ", ".join(f"{name} {n}" for name, n in graph.operations.most_common(4))
    return (
        _code_cell(summary.graph_title(graph) + state),
        _text_cell(f"{graph.process}: {graph.id}", "id"),
        _number_cell(graph.seconds, f"{graph.seconds:.2f}"),
        _number_cell(began, f"{began or 0.0:.2f}"),
        _text_cell(graph.cache or "-", "id"),
        _text_cell("yes" if graph.autotuned else "no", "id"),
        _number_cell(graph.nodes),
        _number_cell(graph.kernels),
        _number_cell(sum(graph.library.values())),
        *(
            _number_cell(graph.phases.get(phase, 0.0), f"{graph.phases.get(phase, 0.0):.2f}")
            for phase in PHASES
        ),
        _code_cell(common, "text"),
    )


def _breaks_section(report: CompileReport) -> Iterator[str]:
    if not report.breaks:
        return
    yield "<h2>Graph breaks</h2>"
    heads = (("count", "number"), ("place", "text"), ("reason", "text"), ("torch's hints", "text"))
    rows = (
        (
            _number_cell(one.count),
            _code_cell(f"{one.place} {one.place.function}"),
            _text_cell(f"{one.reason}. {one.explanation}".strip()),
            _text_cell(" ".join(one.hints)),
        )
        for one in report.breaks[:MOST_ROWS]
    )
    yield from _table_of("breaks", heads, rows)


def _recompiles_section(report: CompileReport) -> Iterator[str]:
    if not report.recompiles:
        return
    yield "<h2>Recompiles</h2>"
    heads = [("count", "number"), ("seconds", "number"), ("place", "text")]
    heads += [("guard that failed", "text"), ("example", "text"), ("limit reached", "number")]
    rows = (
        (
            _number_cell(one.count),
            _number_cell(one.seconds, f"{one.seconds:.2f}"),
            _code_cell(f"{one.place} {one.place.function}"),
            _code_cell(one.guard, "text"),
            _code_cell(one.example, "text"),
            _number_cell(one.limit),
        )
        for one in report.recompiles[:MOST_ROWS]
    )
    yield from _table_of("recompiles", heads, rows)


def _operations_section(report: CompileReport) -> Iterator[str]:
    counted = report.operations()
    if not counted:
        return
    yield "<h2>Operations</h2>"
    heads = (("count", "number"), ("operation", "text"), ("kind", "text"))
    rows = (
        (
            _number_cell(count),
            _code_cell(name, "text"),
            _text_cell(operations.kind_of_operation(name), "id"),
        )
        for name, count in counted.most_common(100)
    )
    yield from _table_of("operations", heads, rows)


def _processes_section(report: CompileReport, links: Mapping[str, str]) -> Iterator[str]:
    yield "<h2>Processes</h2>"
    heads = [("process", "number"), ("program", "text"), ("pid", "number"), ("rank", "number")]
    heads += [("graphs", "number"), ("seconds", "number"), ("trace", "text")]
    if not links:
        yield (
            '<p class="dim">To see each graph with all its code: pip install tlparse, then '
            "rocm-autopatch report DIR --html FILE --tlparse.</p>"
        )
    count: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for graph in report.graphs:
        count[graph.process] = count.get(graph.process, 0) + 1
        seconds[graph.process] = seconds.get(graph.process, 0.0) + graph.seconds

    def trace(path: str) -> Cell:
        if path in links:
            return ' class="place"', f'<a href="{escape(links[path])}">tlparse</a>'
        return _code_cell(Path(path).name if path else "none")

    rows = (
        (
            _number_cell(process.number),
            _code_cell(" ".join(process.command)[:200] or process.program or process.name),
            _number_cell(process.pid, str(process.pid)),
            _number_cell(process.rank),
            _number_cell(count.get(process.number, 0)),
            _number_cell(
                seconds.get(process.number, 0.0), f"{seconds.get(process.number, 0.0):.2f}"
            ),
            trace(process.trace),
        )
        for process in report.processes[:MOST_ROWS]
    )
    yield from _table_of("processes", heads, rows)
