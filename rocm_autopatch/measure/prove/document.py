"""The evidence file of a battery, and rows of an earlier one that still count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from rocm_autopatch.evidence import file
from rocm_autopatch.measure.prove import FAULTS, FRESH_STARTS, verdicts
from rocm_autopatch.measure.prove.battery import FULL, QUICK, BatteryThoroughness, TrialBattery
from rocm_autopatch.measure.prove.rows import TrialRow

# Of what is known of a place, these may change without making a row worthless.
_FREE = ("image", "os", "framework", "framework_version", "python")
# What of each row is kept. Samples are many, and their median and interval say as much.
_DIGITS = 7


class EvidenceDocument(TypedDict):
    """What an evidence file has."""

    version: int
    made: str
    by: str
    battery: str
    place: dict[str, str]
    subjects: dict[str, dict[str, object]]
    trials: list[dict[str, object]]


def our_version() -> str:
    """Our version."""
    return metadata.version("rocm_autopatch")


def make_document(battery: TrialBattery, place: Mapping[str, str]) -> EvidenceDocument:
    """The document of what a battery knows so far."""
    every = [_WholeBattery(battery, how) for how in (FULL, QUICK)]
    tried = dict.fromkeys(row.subject for row in battery.rows)
    # A subject of which only some trials were run is not proven.
    chosen = {name: next((one for one in every if one.is_done(name)), every[0]) for name in tried}
    units = [unit for name, whole in chosen.items() for unit in whole.units_of(name)]
    # A fault counts, too, if it was found in a trial that a quick battery does not have.
    faults = {row.unit for row in battery.rows if row.status in FAULTS}
    units += sorted(unit for unit in faults.difference(units) if unit[0] != FRESH_STARTS)
    fresh = {name: whole.fresh.get(name, 0) for name, whole in chosen.items()}
    return {
        "version": file.VERSION,
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "by": our_version(),
        "battery": next((one.name for one in every if one.are_all_done()), "partial"),
        "place": dict(place),
        "subjects": {
            name: said.document()
            for name, said in verdicts.subject_verdicts(battery.rows, units, fresh).items()
        },
        "trials": [_rounded_row(row).document() for row in battery.rows],
    }


class _WholeBattery:
    """All that a battery of this thoroughness has here, beside what is known."""

    def __init__(self, battery: TrialBattery, how: BatteryThoroughness) -> None:
        self.name = how.name
        self.fresh = dict.fromkeys(battery.fresh_subjects(how), how.fresh)
        self._units = battery.units(how)
        self._rows = battery.rows
        self._finished = verdicts.finished_units(battery.rows)

    def units_of(self, subject: str) -> list[tuple[str, str]]:
        return [unit for unit in self._units if unit[1] == subject]

    def is_done(self, subject: str) -> bool:
        """Whether a subject was tried in all that there is."""
        units = self.units_of(subject)
        return bool(units) and self._finished.issuperset(units) and self._has_fresh(subject)

    def are_all_done(self) -> bool:
        return self._finished.issuperset(self._units) and all(map(self._has_fresh, self.fresh))

    def _has_fresh(self, subject: str) -> bool:
        right = verdicts.count_fresh(self._rows, subject)
        enough = right >= self.fresh.get(subject, 0)
        return enough or verdicts.has_fresh_faults(self._rows, subject)


def _rounded_row(row: TrialRow) -> TrialRow:
    return replace(row, samples=tuple(round(number, _DIGITS) for number in row.samples))


def kept_rows(path: Path, place: Mapping[str, str]) -> Sequence[TrialRow]:
    """The rows of an earlier run of the same version in the same place; none if it is another.

    Raises EvidenceError if the file is not evidence.
    """
    if not path.exists():
        return ()
    found = file.read_evidence(path)
    bound = [name for name in {*place, *found.place} if name not in _FREE]
    same = all(found.place.get(name) == place.get(name) for name in bound)
    if not same or found.by != our_version():
        return ()
    return [TrialRow.read(row) for row in found.trials]
