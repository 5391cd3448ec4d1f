"""The records of the ledger: public defects of graphs on AMD GPUs, and where each may hold.

Evidence allows, the ledger forbids (docs/evidence.md#the-ledger). The records are in ledger.yaml.
The wheel has them in the form of a plan alone, so that a process that captures needs no PyYAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from rocm_autopatch import _HERE, failure, startup
from rocm_autopatch.evidence import machine
from rocm_autopatch.evidence.file import FRESH_STARTS, EvidenceFile

SOURCE = f"{_HERE}/evidence/ledger.yaml"
# The same as setup.py writes it: startup.load reads it.
INDEX = "ledger.index"

# What a record may forbid.
GRAPHS, INDUCTOR, OP, THREADS, RANKS, NOTHING = FORBIDS = (
    *("graphs", "inductor", "op", "threads", "ranks", "nothing"),
)
# The subjects of evidence that capture: by Inductor itself, and all of them.
OF_INDUCTOR = ("cudagraphs", "max-autotune")
CAPTURING = ("graphs", "training-graphs", "autotune-graphs", *OF_INDUCTOR)
# What a record's "when" may have: a list of words, or ranges.
WORDS = ("gfx",)
RANGES = ("rocm", "torch", "hip_runtime", "ranks")
_BOUND = re.compile(r"(>=|<)([0-9]+(?:\.[0-9]+)*)")
_ENDED = "ended"
_Span = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class KnownDefect:
    """A record of the ledger, as ledger.yaml describes it; *op* is the op that it forbids."""

    name: str
    when: Mapping[str, Any]
    defect: str
    source: tuple[str, ...]
    forbids: str
    op: str = ""
    trial: str = ""
    starts: int = 0

    @property
    def sentence(self) -> str:
        """The first thread, and what goes wrong: ``ROCm/clr#279: In about one of ...``."""
        return f"{self.source[0]}: {self.defect.partition('. ')[0].rstrip('.')}"

    def may_hold(self, facts: Mapping[str, str], doubt: bool = True) -> bool:
        """Whether the facts of a place do not rule it out.

        What is not known rules out nothing, but for the number of ranks: a process that no launcher
        has counted is alone. Without *doubt*, all that the record asks for has to be known.
        """
        for name, wanted in self.when.items():
            fact = facts.get(name, "")
            if not fact:
                if name == "ranks" or not doubt:
                    return False
            elif name in WORDS:
                if fact not in wanted:
                    return False
            elif not _spans_overlap(_version_span(fact), _range_bounds(wanted)):
                return False
        return True

    def forbids_subject(self, subject: str) -> bool:
        """Whether no evidence that could not have seen it proves *subject*."""
        if self.forbids == INDUCTOR:
            return subject in OF_INDUCTOR
        return self.forbids in (GRAPHS, RANKS) and subject in CAPTURING

    def seen_by(self, evidence: EvidenceFile, subject: str) -> bool:
        """Whether the trials of *subject* would have shown it."""
        said = evidence.subjects.get(subject, {})
        tried = any(
            (row["trial"], row["subject"], row["status"]) == (self.trial, subject, _ENDED)
            for row in evidence.trials
        )
        return bool(self.trial) and tried and said.get(FRESH_STARTS, 0) >= self.starts


@cache
def read_ledger() -> tuple[KnownDefect, ...]:
    """All records. Raises what an installation raises that is not whole."""
    packed = startup.load(f"{_HERE}/plans/{INDEX}")
    return tuple(_parse_defect(row) for row in (packed or read_source()))


def read_source() -> list[dict[str, Any]]:
    """The records of ledger.yaml as plain data."""
    import yaml

    with open(SOURCE, encoding="utf-8") as stream:
        rows: list[dict[str, Any]] = yaml.load(stream, Loader=yaml.SafeLoader)["defects"]
    return rows


def _parse_defect(row: Mapping[str, Any]) -> KnownDefect:
    forbids, _, op = row["forbids"].partition(" ")
    return KnownDefect(**{**row, "source": tuple(row["source"]), "forbids": forbids, "op": op})


def find_defects(facts: Mapping[str, str], doubt: bool = False) -> Iterator[KnownDefect]:
    """The records for a place; with *doubt*, those too that its facts do not rule out."""
    if facts.get("accelerator") == "rocm":
        yield from (one for one in read_ledger() if one.may_hold(facts, doubt))


def find_objection(subject: str, facts: Mapping[str, str]) -> KnownDefect | None:
    """The first record that speaks against a subject of evidence where *facts* are known."""
    found = (one for one in find_defects(facts) if one.forbids_subject(subject))
    return next(found, None)


def why_withheld(evidence: EvidenceFile, subject: str, facts: Mapping[str, str]) -> str | None:
    """Why a subject is not proven here although *evidence* says so, None if it is.

    *facts* are those of the place. Only AMD's GPUs have these defects.
    """
    device = evidence.place["device"]
    if subject not in CAPTURING or not machine.is_amd(device):
        return None
    if not evidence.place.get("runtime"):
        return "the file does not say with which HIP runtime it was made"
    # A plan may be baked where there is another GPU or none.
    facts = {**facts, "gfx": device.split()[0]}
    try:
        ledger = read_ledger()
    except Exception as error:
        return f"the ledger can't be read: {failure.describe(error)}"
    for one in ledger:
        if (
            one.forbids_subject(subject)
            and one.may_hold(facts)
            and not one.seen_by(evidence, subject)
        ):
            return one.sentence
    return None


def _range_bounds(text: str) -> _Span:
    """The first version of a range, and the first after it; () is open."""
    ends = dict(_BOUND.findall(text))
    since, until = (
        tuple(map(int, ends[sign].split("."))) if sign in ends else () for sign in (">=", "<")
    )
    return since, until


def _version_span(fact: str) -> _Span:
    """All versions that a fact may mean: 7.2 is any from 7.2.0 up to, not including, 7.3."""
    found = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", fact)
    if not found:
        return (), ()
    numbers = tuple(map(int, found[0].split(".")))
    return numbers, (*numbers[:-1], numbers[-1] + 1)


def _spans_overlap(one: _Span, other: _Span) -> bool:
    """Whether there is a version in both."""
    return all(
        not until or _padded_version(since) < _padded_version(until)
        for since, until in ((one[0], other[1]), (other[0], one[1]))
    )


def _padded_version(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """7.2 and 7.2.0 are the same version."""
    return numbers + (0,) * (6 - len(numbers))
