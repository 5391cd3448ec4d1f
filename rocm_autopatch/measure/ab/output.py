"""What ``rocm-autopatch ab`` prints: a comparison as lines, as data, and as a plot's texts."""

from __future__ import annotations

import shlex
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from rocm_autopatch.measure.ab import bootstrap, results, runner
from rocm_autopatch.measure.ab.measurement import Measurement
from rocm_autopatch.support import masking
from rocm_autopatch.support.text import counted, duration, printable, wrapped

# This many metrics are shown. The others are only named.
MOST_METRICS = 10
_VERDICTS = (bootstrap.SAME, bootstrap.DIFFERENT)


def plot_legend(done: Measurement) -> tuple[list[str], str, str]:
    """The labels of a plot's arms, its title and its note."""
    labels = [_base_line(done), *(arm.label for arm in done.arms[1:])]
    points = "Points are runs, bars are the median and its 95 % interval."
    note = f"{done.on}; {_how_measured(done)}. {points}"
    return labels, _program_line(done), note


def _base_line(done: Measurement) -> str:
    return "base: " + ", ".join(t.says(v) for t, v in zip(done.toggles, done.arms[0].values))


def _how_measured(done: Measurement) -> str:
    request = done.request
    caches = " and ".join(request.caches)
    count = f"{counted(request.repeat, 'run')} of each arm"
    if request.until_sure:
        count = f"at most {count}, until it is sure that it differs,"
    text = f"{count} with {caches} caches, in alternating order, seed {done.seed}"
    if done.partial:
        text = f"PARTIAL, interrupted after {len(done.runs)} of {done.planned} runs: {text}"
    return text


def _program_line(done: Measurement) -> str:
    return shlex.join(masking.command(done.request.program))


def comparison_lines(done: Measurement) -> Iterator[str]:
    yield from _wrap_note(f"rocm-autopatch ab: {_program_line(done)}", "  ")
    yield from _wrap_note(f"  on {done.on}", "    ")
    took = f"; {duration(done.elapsed_s)} in all"
    yield from _wrap_note(f"  {_how_measured(done)}{took}", "    ")
    yield from _wrap_note(f"  {_base_line(done)}", "    ")
    for note in done.notes:
        yield from _wrap_note(f"  note: {note}", "    ")
    width = min(44, max(len(arm.label) for arm in done.arms))
    for (metric, caches), block in groupby(done.rows, lambda row: (row.metric, row.caches)):
        yield ""
        title = f"{metric}, {caches} caches"
        yield from _wrap_note(f"{title[:1].upper()}{title[1:]}", "  ")
        heads = "  ".join(f"{word:>10}" for word in ("median", "lowest", "highest"))
        yield f"  {'':{width}}  {heads}  runs  ratio"
        rows = list(block)
        digits = _digits_format([number for row in rows for number in row.numbers])
        for row in rows:
            yield from _row_lines(done.arms[row.arm].label, width, row, digits)
    if any(row.comparison and row.comparison.verdict in _VERDICTS for row in done.rows):
        yield ""
        yield from _wrap_note(
            "A ratio is an arm's median divided by the base's, with its 95 % bootstrap interval. "
            "If nothing has an effect, about one row in 20 still shows one."
            + (
                " Sure means: by a sequential test (rocm-autopatch help ab)."
                if done.request.until_sure
                else ""
            ),
            "",
        )
    for ran in done.failures:
        yield ""
        where = f"round {ran.round}, {ran.caches} caches" if ran.round else "warm-up"
        yield from _wrap_note(f"{done.arms[ran.arm].label} ({where}): {ran.reason}", "  ")
        for line in ran.last_lines:
            yield from _wrap_note(f"  | {line}", "  | ")


def _row_lines(label: str, width: int, row: results.MetricRow, digits: str) -> Iterator[str]:
    names = textwrap.wrap(printable(label), width, break_on_hyphens=False)
    low, middle, high = results.row_spread(row)
    ratio = ""
    if row.comparison and row.comparison.ratio is not None:
        ratio = f"{results.ratio_text(row.comparison.ratio)}x"
    cells = "  ".join(f"{format(number, digits):>10}" for number in (middle, low, high))
    yield from (f"  {name}" for name in names[:-1])
    yield f"  {names[-1]:{width}}  {cells}  {len(row.numbers):>4}  {ratio}".rstrip()
    if results.verdict_text(row):
        yield from _wrap_note(f"      {results.verdict_text(row)}", "      ")


def _digits_format(values: Sequence[float]) -> str:
    """The format that shows the difference between numbers of about the same size."""
    size = max(map(abs, values))
    if size >= 1e9 or 0 < size < 1e-4:
        return ".4g"
    if all(value.is_integer() for value in values):
        return ",.0f"
    return f",.{0 if size >= 10000 else 1 if size >= 1000 else 2 if size >= 10 else 3}f"


def _wrap_note(text: str, rest: str) -> list[str]:
    return wrapped(masking.text(text), "", rest) or [""]


def comparison_document(done: Measurement) -> dict[str, Any]:
    request = done.request
    return {
        "command": masking.command(request.program),
        "on": done.on,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": done.seed,
        "repeat": request.repeat,
        "until_sure": request.until_sure,
        "caches": list(request.caches),
        "warmup": request.warmup,
        "timeout_s": request.timeout,
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


def _row_document(done: Measurement, row: results.MetricRow) -> dict[str, Any]:
    low, middle, high = results.row_spread(row)
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
        found.update(asdict(row.comparison), says=results.verdict_text(row))
    return found


def _run_document(done: Measurement, ran: runner.MeasuredRun) -> dict[str, Any]:
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
