"""The evidence files in evidence/, as a section of docs/measurements.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rocm_autopatch.evidence import SUBJECTS, file
from rocm_autopatch.evidence.file import EvidenceFile
from rocm_autopatch.measure.prove import FAULTS

DIRECTORY = Path(__file__).resolve().parents[1] / "evidence"
TITLE = "What was proven"
ABOUT = """\
`rocm-autopatch prove` ([what its words mean](evidence.md#the-battery)). No file is from an AMD GPU
yet: [what to send from one](amd.md). Ratios to the mode `default` under `safe`, side by side in one
run; below 1.00 is faster, or less memory. *cold* and *warm*: first calls with empty and with filled
caches. *steady*: later calls. Geometric means over the trials, which are small programs. `?`: not
tried, or not finished."""
HEADINGS = ("", "sound", "gains", "cold", "warm", "steady", "memory")
_FIGURES = ("cold", "warm", "steady")


def section(found: Iterable[EvidenceFile]) -> Iterator[str]:
    """The lines of the section."""
    yield f"### {TITLE}"
    yield from ABOUT.splitlines()
    for one in found:
        yield from _device(one)


def _device(found: EvidenceFile) -> Iterator[str]:
    place, name = found.place, Path(found.file).name
    yield ""
    yield f"#### {place['device']}"
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
    faults: dict[tuple[str, str, str], list[str]] = {}
    for row in found.trials:
        if row["status"] in FAULTS:
            fault = f"{row['status']}: {row['reason'].rstrip(':')}{_last(row)}"
            faults.setdefault((row["subject"], row["start"], fault), []).append(f"`{row['trial']}`")
    if faults:
        yield from ("", "What failed:", "")
    for (subject, start, fault), trials in faults.items():
        yield f"- `{subject}`, {start} start, in {', '.join(trials)}: {fault}"


def _cells(name: str, said: Mapping[str, Any]) -> Iterator[str]:
    yield f"`{name}`"
    for key in ("sound", "gains"):
        yield "?" if said[key] is None else "yes" if said[key] else "no"
    for key in _FIGURES:
        yield figure(said.get(key))
    yield figure(said.get("memory"))


def figure(number: float | None) -> str:
    """A ratio as the page has it; "" for none."""
    return "" if number is None else f"{number:.2f}"


def _last(row: Mapping[str, Any]) -> str:
    """The line that says most of a fault: the last one that names an error."""
    lines = [line for line in row.get("last_lines", ()) if "Error: " in line]
    # The reason may have said it.
    is_new = lines and lines[-1].partition("Error: ")[2] not in row["reason"]
    return f": `{lines[-1]}`" if is_new else ""


def kept() -> list[EvidenceFile]:
    """The files of evidence/, by name."""
    return [file.read_evidence(path) for path in sorted(DIRECTORY.glob("*.json"))]
