"""The evidence file of a battery, and rows of an earlier one that still count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from rocm_autopatch.evidence import file
from rocm_autopatch.prove import FAULTS, verdicts
from rocm_autopatch.prove.battery import FULL, QUICK, Battery, Row

# Of what is known of a place, these may change without making a row worthless.
_FREE = ("image", "os", "framework", "framework_version", "python")
# What of each row is kept. Samples are many, and their median and interval say as much.
_DIGITS = 7


def version() -> str:
    """Our version."""
    return metadata.version("rocm_autopatch")


def make(battery: Battery, place: Mapping[str, str]) -> dict[str, Any]:
    """The document of what a battery knows so far."""
    every = {how.name: battery.units(how) for how in (FULL, QUICK)}
    finished = verdicts.finished(battery.rows)
    done = (name for name, units in every.items() if finished.issuperset(units))
    units = []
    for tried in dict.fromkeys(row["subject"] for row in battery.rows):
        # A subject of which only some trials were run is not proven.
        own = [[unit for unit in those if unit[1] == tried] for those in every.values()]
        units += next((those for those in own if those and finished.issuperset(those)), own[0])
    # A fault counts, too, if it was found in a trial that a quick battery does not have.
    faults = {(row["trial"], row["subject"]) for row in battery.rows if row["status"] in FAULTS}
    units += sorted(faults.difference(units))
    return {
        "version": file.VERSION,
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "by": version(),
        "battery": next(done, "partial"),
        "place": dict(place),
        "subjects": verdicts.subjects(battery.rows, units),
        "trials": [_rounded(row) for row in battery.rows],
    }


def _rounded(row: Row) -> Row:
    if "samples" not in row:
        return row
    return {**row, "samples": [round(number, _DIGITS) for number in row["samples"]]}


def kept(path: Path, place: Mapping[str, str]) -> Sequence[Row]:
    """The rows of an earlier run of the same version in the same place; none if it is another.

    Raises EvidenceError if the file is not evidence.
    """
    if not path.exists():
        return ()
    found = file.read(path)
    bound = [name for name in {*place, *found.place} if name not in _FREE]
    same = all(found.place.get(name) == place.get(name) for name in bound)
    return found.trials if same and found.by == version() else ()
