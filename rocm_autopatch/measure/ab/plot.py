"""The picture: every run as a point, the median of each arm and its interval."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

from rocm_autopatch.measure.ab import RequestRefused, WrongRequest, bootstrap, results
from rocm_autopatch.measure.ab.results import MetricRow
from rocm_autopatch.support import files
from rocm_autopatch.support.text import printable

SUFFIXES = (".png", ".svg")
_WIDTH, _NAMES, _ROW, _PANEL = 6.0, 2.4, 0.55, 1.0
_BASE, _DIFFERENT, _OTHER = "#334155", "#c2410c", "#64748b"


def check_plot_path(path: Path) -> None:
    """Raise Wrong or Refused if a picture can't be made at *path*, before anything is run."""
    if path.suffix.lower() not in SUFFIXES:
        raise WrongRequest(f"--plot {path}: the name has to end in {' or '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise RequestRefused("--plot needs matplotlib: pip install matplotlib")
    try:
        import_module("matplotlib.figure")
    except Exception as error:
        raise RequestRefused(
            f"--plot needs matplotlib, which can't be imported here: {error}"
        ) from None
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise RequestRefused(f"--plot {path}: {path.parent} is not a directory that can be written")


def draw_comparison(
    path: Path, rows: Sequence[MetricRow], arms: Sequence[str], title: str, note: str
) -> None:
    """Write the picture of *rows* to *path*, as a whole or not at all. Raises OSError."""
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(row.metric for row in rows))
    caches = list(dict.fromkeys(row.caches for row in rows))
    shown = sorted({row.arm for row in rows})
    places = {arm: len(shown) - 1 - number for number, arm in enumerate(shown)}
    head, tail = fill(title, 50 * (1 + len(caches))), fill(note, 60 * (1 + len(caches)))
    lines = head.count("\n") + tail.count("\n") + 2
    panel = _PANEL + _ROW * len(shown)
    height = panel * len(metrics) + 0.22 * lines + 0.2
    figure = Figure(figsize=(_NAMES + _WIDTH * len(caches), height), layout="constrained")
    figure.suptitle(_plain_text(head), fontsize=11, x=0.01, ha="left")
    axes = figure.subplots(len(metrics), len(caches), squeeze=False, sharey=True)
    for line, metric in zip(axes, metrics):
        for axis, kind in zip(line, caches):
            its = [row for row in rows if (row.metric, row.caches) == (metric, kind)]
            for row in its:
                _draw_row(axis, row, places[row.arm])
            axis.set_title(_plain_text(f"{metric}, {kind} caches"), fontsize=10, loc="left")
            axis.set_ylim(-0.5, len(shown) - 0.2)
            axis.grid(axis="x", color="#e2e8f0")
            axis.set_axisbelow(True)
            axis.margins(x=0.06)
            axis.ticklabel_format(axis="x", useOffset=False, style="plain")
            for side in ("top", "right", "left"):
                axis.spines[side].set_visible(False)
            axis.tick_params(axis="y", length=0)
            names = [_plain_text(fill(arms[arm], 30)) for arm in places]
            axis.set_yticks(list(places.values()), names, fontsize=9)
    figure.supxlabel(_plain_text(tail), fontsize=8, x=0.01, ha="left", color=_OTHER)
    write_figure(path, figure, "ab")


def write_figure(path: Path, figure: Any, salt: str) -> None:
    """Write a picture as a whole or not at all, the same figure as the same bytes.

    *salt* is for the names in an .svg file. Raises OSError.
    """
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(stream, format=path.suffix[1:].lower(), dpi=130, metadata=metadata)
    files.write(path, stream.getvalue())


def _draw_row(axis: Any, row: MetricRow, place: int) -> None:
    different = row.comparison and row.comparison.verdict == bootstrap.DIFFERENT
    colour = _DIFFERENT if different else _OTHER if row.comparison else _BASE
    count = len(row.numbers)
    # The points are side by side in their order, so that equal ones can be counted.
    heights = [place + 0.2 * (number - (count - 1) / 2) / max(count, 1) for number in range(count)]
    axis.plot(row.numbers, heights, "o", color=colour, markersize=4, alpha=0.55, mew=0)
    low, high = bootstrap.median_interval(row.numbers)
    middle = results.row_spread(row)[1]
    axis.plot([low, high], [place - 0.22] * 2, "-", color=colour, linewidth=2.5)
    axis.plot([middle], [place - 0.22], "|", color=colour, markersize=10, mew=2)
    axis.annotate(
        _plain_text(results.verdict_text(row)),
        (0.005, place + 0.24),
        xycoords=axis.get_yaxis_transform(),
        fontsize=8,
        color=colour,
    )


def _plain_text(text: str) -> str:
    """*text* without what matplotlib would take for a formula."""
    # The newlines come from fill(), so they stay.
    return "\n".join(map(printable, text.split("\n"))).replace("$", r"\$")
