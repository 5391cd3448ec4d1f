"""What the ledger forbids in this process, for those who are about to capture.

Nothing here is imported by a start. A process asks before its first capture.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from rocm_autopatch import _RECORD, failure, startup
from rocm_autopatch.evidence import defects, match
from rocm_autopatch.evidence.defects import KnownDefect
from rocm_autopatch.evidence.file import EvidenceFile

# What the runtime's own graphs are called by evidence, whoever asked for them.
_OURS = ("graphs", "training-graphs", "autotune-graphs")


@dataclass(frozen=True)
class CaptureRestrictions:
    """What a process should not capture; "" and {} where nothing speaks against it.

    ``ops``: by the name of an op (``aten::topk``) the thread on it. The others are sentences that
    begin with the thread: ``ranks`` is why a process of several ranks must not capture, ``graphs``
    what speaks against graphs at all, ``threads`` why two threads must not capture at a time.
    """

    ops: Mapping[str, str] = field(default_factory=dict)
    ranks: str = ""
    graphs: str = ""
    threads: str = ""


def restrictions_here() -> CaptureRestrictions:
    """What the ledger forbids in this process. Raises only exceptions of the program itself.

    A ledger that can't be read is recorded as an error and forbids nothing.
    """
    try:
        place, found = match.gather_with_evidence(_facts_of_process())
        return find_restrictions(place.values(), found.used)
    except Exception as error:
        if failure.programs_own(error):
            raise
        startup.fail("ledger", f"the ledger is not obeyed: {failure.describe(error)}")
        return CaptureRestrictions()


def _facts_of_process() -> dict[str, tuple[str, str]]:
    """What the start recorded, and what the loaded torch says where there was no start."""
    facts = dict(_RECORD["facts"])
    version = getattr(sys.modules.get("torch"), "version", None)
    known = {"torch": getattr(version, "__version__", ""), "hip": getattr(version, "hip", "")}
    for name, value in known.items():
        if value:
            facts.setdefault(name, (str(value), "the loaded torch"))
    if known["hip"]:
        facts.setdefault("accelerator", ("rocm", "the loaded torch"))
    return facts


def find_restrictions(
    facts: Mapping[str, str], evidence: tuple[EvidenceFile, ...] = ()
) -> CaptureRestrictions:
    """What the ledger forbids where *facts* are known, and *evidence* is for this place."""
    # Whether there are several ranks is for the caller to know.
    several = {**facts, "ranks": "2"}
    left = [
        one
        for one in defects.find_defects(several, doubt=True)
        if not _trials_would_show(one, evidence)
    ]
    first = {one.forbids: one.sentence for one in reversed(left)}
    return CaptureRestrictions(
        {one.op: one.source[0] for one in left if one.op},
        first.get(defects.RANKS, ""),
        first.get(defects.GRAPHS, ""),
        first.get(defects.THREADS, ""),
    )


def _trials_would_show(defect: KnownDefect, evidence: tuple[EvidenceFile, ...]) -> bool:
    """Whether the trials of our graphs would have shown a defect, and found them sound."""
    verdicts = match.FoundEvidence(evidence).careful_verdicts("sound")
    return any(
        one.place.get("runtime")
        and one.subjects.get(subject, {}).get("sound")
        and defect.seen_by(one, subject)
        for one in evidence
        for subject in _OURS
        if verdicts.get(subject, (False,))[0]
    )
