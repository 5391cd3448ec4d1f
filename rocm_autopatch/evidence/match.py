"""Which evidence counts in this place: that of the same GPU, driver, torch, Triton and HIP runtime.

What it proves of graphs counts only where no record of the ledger speaks against it (``defects``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rocm_autopatch.evidence import defects, file, machine
from rocm_autopatch.evidence.file import EvidenceError, EvidenceFile
from rocm_autopatch.image import clues, facts
from rocm_autopatch.image.fact import CLUE, KnownFacts, Named, SourcedFact


@dataclass(frozen=True)
class FoundEvidence:
    """The evidence files of a place: those that are for it, the oldest first; those that are not,
    and why; and what is wrong with others.

    ``withheld`` has the subjects that are not proven here although a file says so, and why.
    """

    used: tuple[EvidenceFile, ...] = ()
    stale: tuple[tuple[EvidenceFile, str], ...] = ()
    wrong: tuple[str, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What the one line on stderr says of the evidence: the device and the newest day, and
        what does not count of it."""
        if not self.used:
            return ""
        return "; ".join((self.used[-1].label, *self._exception_notes("not for")))

    @property
    def notes(self) -> list[str]:
        """A note on each file that is not for this place, and on what does not count."""
        return [
            f"evidence {evidence.file} is not used: it was made with {why}"
            for evidence, why in self.stale
        ] + self.exceptions

    @property
    def exceptions(self) -> list[str]:
        """What does not count of the evidence that is for this place, and why."""
        return [*self._exception_notes("evidence does not count for")]

    def _exception_notes(self, words: str) -> Iterator[str]:
        by_reason: dict[str, list[str]] = {}
        for subject, why in self.withheld.items():
            by_reason.setdefault(why, []).append(subject)
        for why, subjects in by_reason.items():
            yield f"{words} {', '.join(subjects)} ({why})"

    def obey_ledger(self, place: Mapping[str, str]) -> FoundEvidence:
        """The same, with what the ledger withholds where the facts of *place* are known."""
        reasons = {
            subject: defects.why_withheld(evidence, subject, place)
            for subject, (sound, evidence) in self.careful_verdicts("sound").items()
            if sound
        }
        return replace(self, withheld={name: why for name, why in reasons.items() if why})

    def careful_verdicts(self, verdict: str) -> dict[str, tuple[bool, EvidenceFile]]:
        """For each subject the verdict that counts, and the evidence that has it.

        Where files disagree, the careful verdict wins: only a newer file takes back that a subject
        is not sound, and what a full battery has found, only a full one.
        """
        said: dict[str, list[tuple[bool, EvidenceFile]]] = {}
        for evidence in self.used:
            for subject, its in evidence.subjects.items():
                if its[verdict] is not None:
                    said.setdefault(subject, []).append((its[verdict], evidence))
        return {subject: _weigh_verdicts(verdicts) for subject, verdicts in said.items()}

    def facts(self) -> list[Named]:
        """The facts ``proven`` and ``gains``, without what is withheld."""
        sound, gains = (
            {
                subject: one.file
                for subject, (yes, one) in self.careful_verdicts(verdict).items()
                if yes
            }
            for verdict in file.VERDICTS
        )
        sound = {name: source for name, source in sound.items() if name not in self.withheld}
        gains = {name: source for name, source in gains.items() if name in sound}
        return [
            (name, SourcedFact(" ".join(sorted(known)), ", ".join(sorted({*known.values()})), CLUE))
            for name, known in (("proven", sound), ("gains", gains))
            if known
        ]


def _weigh_verdicts(verdicts: Sequence[tuple[bool, EvidenceFile]]) -> tuple[bool, EvidenceFile]:
    """The verdict on one subject that counts, of those in files, the oldest first."""
    good = [evidence for sound, evidence in verdicts if sound]
    standing = [
        evidence
        for sound, evidence in verdicts
        if not sound and not any(_takes_back(newer, evidence) for newer in good)
    ]
    return (False, standing[-1]) if standing else (True, good[-1])


def _takes_back(newer: EvidenceFile, older: EvidenceFile) -> bool:
    return newer.made > older.made and (newer.battery == "full" or older.battery != "full")


def look_for_evidence(
    place: Mapping[str, str] | None, torch: str, paths: Iterable[Path] | None = None
) -> FoundEvidence:
    """The evidence in the files at *paths*, which are those of all sites unless given.

    *place* is what machine.here() says, None for this machine.
    """
    read: list[EvidenceFile] = []
    wrong = []
    for path in file.site_paths() if paths is None else paths:
        try:
            read.append(file.read_evidence(path))
        except EvidenceError as error:
            wrong.append(f"evidence is not used: {error}")
    if not read:
        return FoundEvidence(wrong=tuple(wrong))
    here = {**(machine.machine_here() if place is None else place), "torch": torch}
    different = [(evidence, _place_difference(evidence, here)) for evidence in read]
    used = sorted((one for one, why in different if not why), key=lambda one: (one.made, one.file))
    stale = tuple((evidence, why) for evidence, why in different if why)
    return FoundEvidence(tuple(used), stale, tuple(wrong))


def _place_difference(evidence: EvidenceFile, here: Mapping[str, str]) -> str | None:
    """What is not the same here, None if all is."""
    different = [
        f"{name} {evidence.place[name] or 'unknown'}, here is {here[name] or 'unknown'}"
        for name in machine.BOUND
        # Files of earlier releases do not name it; defects.why_withheld has what that means.
        if name in machine.REQUIRED or evidence.place.get(name)
        # What is not known may be anything.
        if evidence.place[name] != here[name] or not here[name]
    ]
    return ", and with ".join(different) or None


def gather_with_evidence(
    known: Mapping[str, tuple[str, str]], place: Mapping[str, str] | None = None
) -> tuple[KnownFacts, FoundEvidence]:
    """All facts of this place, with those of its evidence. *known* is as in image.facts.gather.

    *place* is what machine.here() says, None for this machine.
    """
    torch, _ = known.get("torch", ("", ""))
    found = look_for_evidence(place, torch)
    shown = clues.gather_clues(os.environ)
    if found.used:
        found = found.obey_ledger(facts.gather_facts(known, shown).values())
    return facts.gather_facts(known, [*shown, *found.facts()]), found
