"""Make docs/proven.md from the evidence files in evidence/.

python tools/evidence_page.py > docs/proven.md
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rocm_autopatch.evidence import SUBJECTS, file
from rocm_autopatch.evidence.file import EvidenceFile
from rocm_autopatch.measure.prove import FAULTS

DIRECTORY = Path(__file__).resolve().parents[1] / "evidence"
HEAD = """\
# What was proven, and where

`rocm-autopatch prove` made the files in `evidence/` of the repository, and `make docs` made this
page of them. [What prove does](evidence.md#the-battery), and what its words mean, is on another
page.
No file is from an AMD GPU yet: [what to send from one](evidence.md#from-an-amd-gpu).

- Ratios are to the mode `default` under `safe`, side by side in one run: below 1.00 is faster, or
  less memory. `cold` and `warm` are first calls, with empty and with filled caches. `steady` is a
  later call, and beside it are the trials with the smallest and with the largest ratio. `memory` is
  the peak of what was reserved. Each is the geometric mean over the trials.
- Cold starts ran beside each other, warm ones alone. The trials are small programs and small
  models, so the time of a call is often that of launching kernels.
- `?`: not tried, or not finished."""
HEADINGS = ("", "sound", "gains", "cold", "warm", "steady", "of the trials", "memory")
_FIGURES = ("cold", "warm", "steady")


def page(found: Iterable[EvidenceFile]) -> Iterator[str]:
    """The lines of the page."""
    yield from HEAD.splitlines()
    for one in found:
        yield from _section(one)


def _section(found: EvidenceFile) -> Iterator[str]:
    place, name = found.place, Path(found.file).name
    yield ""
    yield f"## {place['device']}"
    yield (
        f"Driver {place['driver']}, torch {place['torch']}, Triton {place['triton']}, Python "
        f"{place['python']}; {found.made[:10]}, version {found.by}, {len(found.trials):,} starts "
        f"of trials: [`{name}`](../evidence/{name})."
    )
    yield ""
    yield f"| {' | '.join(HEADINGS)} |"
    yield "|---|" + "---|" * 2 + "---:|" * (len(HEADINGS) - 3)
    for subject in SUBJECTS:
        said = found.subjects.get(subject, {"sound": None, "gains": None})
        yield f"| {' | '.join(_cells(subject, said))} |"
    faults = [row for row in found.trials if row["status"] in FAULTS]
    if faults:
        yield ""
        yield "What failed:"
        yield ""
    for row in faults:
        yield (
            f"- `{row['subject']}` in `{row['trial']}`, {row['start']} start: {row['status']}: "
            f"{row['reason'].rstrip(':')}{_last(row)}"
        )


def _cells(name: str, said: Mapping[str, Any]) -> Iterator[str]:
    yield f"`{name}`"
    for key in ("sound", "gains"):
        yield "?" if said[key] is None else "yes" if said[key] else "no"
    for key in _FIGURES:
        yield figure(said.get(key))
    ratios = sorted(
        (one["steady"][1], trial)
        for trial, one in said.get("trials", {}).items()
        if "steady" in one
    )
    ends = [f"{trial} {figure(ratio)}" for ratio, trial in (ratios[:1] + ratios[1:][-1:])]
    yield ", ".join(ends)
    yield figure(said.get("memory"))


def figure(number: float | None) -> str:
    """A ratio as the page has it; "" for none."""
    return "" if number is None else f"{number:.2f}"


def _last(row: Mapping[str, Any]) -> str:
    """The line that says most of a fault: the last one that names an error."""
    lines = [line for line in row.get("last_lines", ()) if "Error: " in line]
    return f": `{lines[-1]}`" if lines else ""


def kept() -> list[EvidenceFile]:
    """The files of evidence/, by name."""
    return [file.read_evidence(path) for path in sorted(DIRECTORY.glob("*.json"))]


if __name__ == "__main__":
    print("\n".join(page(kept())))
