"""Which evidence counts in this place: that of the same GPU, driver, torch and Triton."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.evidence import file, machine
from rocm_autopatch.evidence.file import Evidence, EvidenceError
from rocm_autopatch.image import clues, facts
from rocm_autopatch.image.fact import CLUE, Fact, Facts, Named


@dataclass(frozen=True)
class Found:
    """The evidence files of a place: those that are for it, the oldest first; those that are not,
    and why; and what is wrong with others."""

    used: tuple[Evidence, ...] = ()
    stale: tuple[tuple[Evidence, str], ...] = ()
    wrong: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What the one line on stderr says of the evidence: the device, and the newest day."""
        return self.used[-1].label if self.used else ""

    @property
    def notes(self) -> list[str]:
        """A note on each file that is not for this place."""
        return [
            f"evidence {evidence.file} is not used: it was made with {why}"
            for evidence, why in self.stale
        ]

    def facts(self) -> list[Named]:
        """The facts ``proven`` and ``gains``. For each subject the newest verdict counts."""
        verdicts: dict[str, dict[str, tuple[bool, str]]] = {name: {} for name in file.VERDICTS}
        for evidence in self.used:
            for subject, said in evidence.subjects.items():
                for name, known in verdicts.items():
                    if said[name] is not None:
                        known[subject] = (said[name], evidence.file)
        sound, gains = ({s: f for s, (yes, f) in v.items() if yes} for v in verdicts.values())
        gains = {subject: source for subject, source in gains.items() if subject in sound}
        return [
            (name, Fact(" ".join(sorted(known)), ", ".join(sorted({*known.values()})), CLUE))
            for name, known in (("proven", sound), ("gains", gains))
            if known
        ]


def look(place: Mapping[str, str] | None, torch: str, paths: Iterable[Path] | None = None) -> Found:
    """The evidence in the files at *paths*, which are those of all sites unless given.

    *place* is what machine.here() says, None for this machine.
    """
    read: list[Evidence] = []
    wrong = []
    for path in file.site_paths() if paths is None else paths:
        try:
            read.append(file.read(path))
        except EvidenceError as error:
            wrong.append(f"evidence is not used: {error}")
    if not read:
        return Found(wrong=tuple(wrong))
    here = {**(machine.here() if place is None else place), "torch": torch}
    different = [(evidence, _difference(evidence, here)) for evidence in read]
    used = sorted((one for one, why in different if not why), key=lambda one: (one.made, one.file))
    return Found(tuple(used), tuple(pair for pair in different if pair[1]), tuple(wrong))


def _difference(evidence: Evidence, here: Mapping[str, str]) -> str:
    """What is not the same here, "" if all is."""
    return ", and with ".join(
        f"{name} {evidence.place[name] or 'unknown'}, here is {here[name] or 'unknown'}"
        for name in machine.BOUND
        # What is not known may be anything.
        if evidence.place[name] != here[name] or not here[name]
    )


def gather(
    known: Mapping[str, tuple[str, str]], place: Mapping[str, str] | None = None
) -> tuple[Facts, Found]:
    """All facts of this place, with those of its evidence. *known* is as in image.facts.gather.

    *place* is what machine.here() says, None for this machine.
    """
    torch, _ = known.get("torch", ("", ""))
    found = look(place, torch)
    return facts.gather(known, [*clues.gather(os.environ), *found.facts()]), found
