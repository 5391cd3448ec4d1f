"""What a process records while it starts and patches: the types of the record and of its rows.

``rocm_autopatch._RECORD`` is a StartRecord. A patch gives one row for each of its entries, and adds
what only it knows. Only a type checker imports this module, so no start pays for it.
"""

from __future__ import annotations

from typing import Optional, TypedDict

from rocm_autopatch.plan import EnvRow, Plan

# A rule that a start looked at, the variable's value before it, and what became of the rule: its
# status, or one of ``startup.baseline.GIVEN``.
EnvRecord = tuple[EnvRow, Optional[str], str]


class EntryRow(TypedDict):
    """What every row of a patch has. Its values are those of the torch that is here."""

    name: str
    before: object
    after: object
    wanted: object
    status: str
    reason: str
    layer: str
    why: str


class RefusedWriter(TypedDict):
    """A line of a program that tried to change a pinned value, and how often."""

    value: str
    file: str
    line: int
    count: int


class _RefusedRow(TypedDict, total=False):
    refused: list[RefusedWriter]
    refused_more: int


class ConfigRow(EntryRow, _RefusedRow):
    """A config value. A pinned one has who tried to change it, where that can be seen."""

    strength: str
    yields_to: str
    switch: str


class WordRow(TypedDict):
    """A setting with a few words for values: ``off``, ``guard``, the name of a compile mode."""

    name: str
    before: str
    after: str
    wanted: str
    status: str
    reason: str
    layer: str
    why: str


class CountedRow(WordRow):
    """A word, and how often it took effect in this process."""

    uses: int


class WatchdogRow(TypedDict):
    """A setting of the watchdog: seconds or a switch, and None where it does nothing."""

    name: str
    before: None
    after: float | None
    wanted: float | None
    status: str
    reason: str
    layer: str
    why: str
    uses: int


class PatchRecord(TypedDict):
    """What became of a patch in one module, and of its entries there."""

    status: str
    reason: str
    entries: list[EntryRow]


class CachesRecord(TypedDict):
    """Where caches are kept, why they are not, and how many graphs were found in them.

    ``of`` is what the place is for, by name.
    """

    use: str
    layer: str
    root: str
    place: str
    node: str
    of: dict[str, str]
    reason: str
    require: bool
    hits: int
    misses: int


class EvidenceRow(TypedDict):
    """An evidence file in a report. It is ``used`` or ``stale``, and the reason says why."""

    file: str
    made: str
    by: str
    battery: str
    device: str
    status: str
    reason: str


class StartRecord(TypedDict):
    """What a process did. The facts have a value and its source; patches are by name and module."""

    active: bool
    observe: bool
    reason: str
    facts: dict[str, tuple[str, str]]
    plan: Plan | None
    baked: str
    evidence: str
    caches: CachesRecord | None
    keep: tuple[str, ...]
    env: list[EnvRecord]
    patches: dict[tuple[str, str], PatchRecord]
    notes: list[str]
    errors: list[str]
