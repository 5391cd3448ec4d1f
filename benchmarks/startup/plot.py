"""Bars of the instructions above bare, as SVG, on a logarithmic scale.

It needs no plotting library, and the files of two runs differ only if the figures differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, LABELS, RIGHT, TOP, ROW, BAR = 900, 400, 60, 62, 24, 15
OURS, OTHERS = "#c2410c", "#64748b"


def bars(rows: Sequence[tuple[str, float, bool]], title: str) -> str:
    """*rows* are a name, a number of instructions above bare and whether it is ours."""
    low = math.floor(math.log10(min(value for _, value, _ in rows)))
    high = math.ceil(math.log10(max(value for _, value, _ in rows)))
    bottom = TOP + ROW * len(rows)

    def x(value: float) -> float:
        return LABELS + (math.log10(value) - low) / (high - low) * (WIDTH - LABELS - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 34}" '
        f'viewBox="0 0 {WIDTH} {bottom + 34}" font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
        _key(12, OURS, "rocm_autopatch"),
        _key(150, OTHERS, "what else is installed to run at the start of every interpreter"),
    ]
    for power in range(low, high + 1):
        at, label = x(10.0**power), f"{10.0**power / 1e6:,g} M"
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}" stroke="#cbd5e1"/>'
            f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{label}</text>'
        )
    for number, (name, value, ours) in enumerate(rows):
        label = f"{value / 1e6:,.{0 if value > 1e8 else 2}f} M"
        top = TOP + ROW * number + (ROW - BAR) / 2
        parts.append(
            f'<text x="{LABELS - 8}" y="{top + 12:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{LABELS}" y="{top:.1f}" width="{x(value) - LABELS:.1f}" height="{BAR}" '
            f'fill="{OURS if ours else OTHERS}"/>'
            f'<text x="{x(value) + 6:.1f}" y="{top + 12:.1f}">{label}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


def _key(left: int, colour: str, text: str) -> str:
    return (
        f'<rect x="{left}" y="36" width="12" height="12" fill="{colour}"/>'
        f'<text x="{left + 18}" y="47">{text}</text>'
    )
