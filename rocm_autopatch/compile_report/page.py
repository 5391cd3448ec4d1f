"""The compile report as a page: one file with plots, which loads nothing from a network."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from rocm_autopatch.compile_report import operations, plots, summary
from rocm_autopatch.compile_report.advice import advise
from rocm_autopatch.compile_report.model import PHASES, Graph, Report

_HERE = Path(__file__).parent
# With more rows a page opens slowly. Then only the slowest compiles are shown.
MOST_ROWS = 2000
_SHORT = {"AOTAutograd": "AOT", "autotuning": "tuning"}


def page(report: Report, links: Mapping[str, str]) -> str:
    """The page as HTML. *links* has tlparse's page for each trace file.

    Text from the program, such as source and guards, is escaped. The page's security policy allows
    only its own script.
    """
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    body = "\n".join(_body(report, links))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Compile report: {escape(_title(report))}</title>\n<style>{style}</style>\n"
        f"</head>\n<body>\n{body}\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _title(report: Report) -> str:
    return report.processes[0].name if report.processes else report.directory


def _body(report: Report, links: Mapping[str, str]) -> Iterator[str]:
    versions = ", ".join(report.versions) or "of unknown version"
    yield f"<h1>Compile report: {escape(_title(report))}</h1>"
    yield f'<p class="dim">torch {escape(versions)} &middot; {escape(report.directory)}</p>'
    yield from _ended(report)
    yield _numbers(report)
    yield from _advice(report)
    yield from _failures(report)
    yield "<h2>Compiles over time</h2>"
    yield '<p class="dim">Rows are processes, bars are compiles; hover to see the place.</p>'
    yield from _timeline(report)
    yield '<div class="two"><section><h2>Seconds by phase, slowest compiles</h2>'
    yield _legend((phase, phase) for phase in PHASES)
    yield f'<div class="plot">{plots.phases(report)}</div></section>'
    yield "<section><h2>Operations by kind</h2>"
    yield f'<div class="plot">{plots.kinds(report)}</div>'
    yield "<h2>Most frequent operations</h2>"
    yield f'<div class="plot">{plots.most(report)}</div></section></div>'
    yield from _graphs(report)
    yield from _breaks(report)
    yield from _recompiles(report)
    yield from _operations(report)
    yield from _processes(report, links)
    if report.notes:
        yield "<h2>What is missing or unexpected</h2><ul>"
        yield from (f"<li>{escape(note)}</li>" for note in report.notes)
        yield "</ul>"


def _ended(report: Report) -> Iterator[str]:
    lines = summary.describe_end(report)
    if lines:
        yield f"<h2>{escape(lines[0])}</h2><pre>"
        yield escape("\n".join(lines[1:]))
        yield "</pre>"


def _failures(report: Report) -> Iterator[str]:
    if not report.failures:
        return
    yield "<h2>Compiles that failed</h2>"
    heads = (("count", "number"), ("place", "text"), ("reason", "text"))
    rows = (
        (_number(one.count), _code(f"{one.place} {one.place.function}"), _text(one.reason))
        for one in report.failures[:MOST_ROWS]
    )
    yield from _table("failures", heads, rows)


def _numbers(report: Report) -> str:
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


def _advice(report: Report) -> Iterator[str]:
    found = advise(report)
    if not found:
        return
    yield '<h2>What to do</h2><ul class="advice">'
    for one in found:
        places = ", ".join(one.places[:5]) + (", ..." if len(one.places) > 5 else "")
        where = f'<br><code class="dim">{escape(places)}</code>' if places else ""
        yield f"<li><b>{escape(one.seen)}</b><br>{escape(one.do)}{where}</li>"
    yield "</ul>"


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    marks = "".join(
        f'<span><svg viewBox="0 0 10 10"><rect width="10" height="10" rx="2" class="{name}"/>'
        f"</svg>{escape(text)}</span>"
        for name, text in entries
    )
    return f'<div class="legend">{marks}</div>'


def _timeline(report: Report) -> Iterator[str]:
    yield _legend(
        (
            ("miss", "compiled"),
            ("hit", "from the cache"),
            ("again", "recompiled"),
            ("unfinished", "failed or not finished"),
        )
    )
    yield f'<div class="plot">{plots.timeline(report)}</div>'


Cell = tuple[str, str]  # its class and its HTML


def _table(
    name: str, heads: Sequence[tuple[str, str]], rows: Iterable[Sequence[Cell]]
) -> Iterator[str]:
    cells = "".join(
        f'<th scope="col" data-kind="{kind}"><button type="button">{escape(head)}</button></th>'
        for head, kind in heads
    )
    yield f'<div class="table"><table class="sortable" id="{name}"><thead><tr>{cells}</tr></thead>'
    yield "<tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td{about}>{text}</td>" for about, text in row) + "</tr>"
    yield "</tbody></table></div>"


def _number(value: float | None, text: str | None = None) -> Cell:
    if value is None:
        return ' class="number"', "-"
    shown = f"{value:,}" if text is None else text
    return f' class="number" data-value="{value!r}"', shown


def _text(value: str, kind: str = "text") -> Cell:
    return f' class="{kind}"', escape(value)


def _code(value: str, kind: str = "place") -> Cell:
    return f' class="{kind}"', f"<code>{escape(value)}</code>"


def _graphs(report: Report) -> Iterator[str]:
    shown = report.dearest()[:MOST_ROWS]
    yield "<h2>Graphs</h2>"
    if len(shown) < len(report.graphs):
        yield (
            f'<p class="dim">The {len(shown):,} slowest of {len(report.graphs):,} compiles; '
            "rocm-autopatch report --json lists all.</p>"
        )
    yield '<input class="filter" data-table="graphs" placeholder="filter: file, function, miss" '
    yield 'aria-label="filter graphs" type="search" hidden>'
    heads = [("place", "text"), ("process: graph", "text"), ("seconds", "number")]
    heads += [("cache", "text"), ("tuned", "text"), ("nodes", "number"), ("kernels", "number")]
    heads += [("library", "number"), *((_SHORT.get(p, p), "number") for p in PHASES)]
    heads += [("operations", "text")]
    yield from _table("graphs", heads, (_graph(graph) for graph in shown))


def _graph(graph: Graph) -> Sequence[Cell]:
    state = ""
    if not graph.finished:
        state = " did not finish"
    elif graph.failure:
        state = f" {graph.failure}"
    common = ", ".join(f"{name} {n}" for name, n in graph.operations.most_common(4))
    return (
        _code(summary.where(graph) + state),
        _text(f"{graph.process}: {graph.id}", "id"),
        _number(graph.seconds, f"{graph.seconds:.2f}"),
        _text(graph.cache or "-", "id"),
        _text("yes" if graph.autotuned else "no", "id"),
        _number(graph.nodes),
        _number(graph.kernels),
        _number(sum(graph.library.values())),
        *(
            _number(graph.phases.get(phase, 0.0), f"{graph.phases.get(phase, 0.0):.2f}")
            for phase in PHASES
        ),
        _code(common, "text"),
    )


def _breaks(report: Report) -> Iterator[str]:
    if not report.breaks:
        return
    yield "<h2>Graph breaks</h2>"
    heads = (("count", "number"), ("place", "text"), ("reason", "text"), ("torch's hints", "text"))
    rows = (
        (
            _number(one.count),
            _code(f"{one.place} {one.place.function}"),
            _text(f"{one.reason}. {one.explanation}".strip()),
            _text(" ".join(one.hints)),
        )
        for one in report.breaks[:MOST_ROWS]
    )
    yield from _table("breaks", heads, rows)


def _recompiles(report: Report) -> Iterator[str]:
    if not report.recompiles:
        return
    yield "<h2>Recompiles</h2>"
    heads = [("count", "number"), ("seconds", "number"), ("place", "text")]
    heads += [("guard that failed", "text"), ("example", "text"), ("limit reached", "number")]
    rows = (
        (
            _number(one.count),
            _number(one.seconds, f"{one.seconds:.2f}"),
            _code(f"{one.place} {one.place.function}"),
            _code(one.guard, "text"),
            _code(one.example, "text"),
            _number(one.limit),
        )
        for one in report.recompiles[:MOST_ROWS]
    )
    yield from _table("recompiles", heads, rows)


def _operations(report: Report) -> Iterator[str]:
    counted = report.operations()
    if not counted:
        return
    yield "<h2>Operations</h2>"
    heads = (("count", "number"), ("operation", "text"), ("kind", "text"))
    rows = (
        (_number(count), _code(name, "text"), _text(operations.kind(name), "id"))
        for name, count in counted.most_common(100)
    )
    yield from _table("operations", heads, rows)


def _processes(report: Report, links: Mapping[str, str]) -> Iterator[str]:
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
        return _code(Path(path).name if path else "none")

    rows = (
        (
            _number(process.number),
            _code(" ".join(process.command)[:200] or process.program or process.name),
            _number(process.pid, str(process.pid)),
            _number(process.rank),
            _number(count.get(process.number, 0)),
            _number(seconds.get(process.number, 0.0), f"{seconds.get(process.number, 0.0):.2f}"),
            trace(process.trace),
        )
        for process in report.processes[:MOST_ROWS]
    )
    yield from _table("processes", heads, rows)
