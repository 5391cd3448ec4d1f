"""What a fact of a place is: a value, where it is from, and how far it is trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

ASSUMPTION, CLUE, TAG = "assumption", "clue", "tag"

# What clues call the ROCm of libraries. It is "rocm" only where nothing else says which ROCm is
# there: a distribution may have them for another program. Debian's libucx0 depends on HIP's.
LIBRARY = "library"
# HIP 7.0.51831 is of ROCm 7.0; its third number counts builds. After 7.2 the two may part
# (https://github.com/pytorch/pytorch/pull/168097): torch 2.13.0+rocm10.0.0 has HIP 7.15.26333.
ROCM_OF_HIP = re.compile(r"([1-6]\.[0-9]+|7\.[0-2])(?![0-9])")


@dataclass(frozen=True)
class SourcedFact:
    """A value as text, where it is from (a path, a variable, ...), and ASSUMPTION, CLUE or TAG."""

    value: str
    source: str
    kind: str


@dataclass(frozen=True)
class FactContradiction:
    """Two values of the fact *name*. *used* counts, unless one clue says both."""

    name: str
    used: SourcedFact
    other: SourcedFact

    @property
    def within_a_clue(self) -> bool:
        """Whether one clue says both, as of two GPUs. Neither counts then."""
        return self.used.source == self.other.source and self.used.kind == CLUE

    def __str__(self) -> str:
        used, other = self.used, self.other
        if self.within_a_clue:
            values = f"{used.value} and {other.value}"
            return f"{self.name} is not taken from {used.source}, which has {values}"
        return f"{self.name} is {used.value} ({used.source}), not {other.value} ({other.source})"


@dataclass(frozen=True)
class KnownFacts:
    """The facts that count, by name, and what contradicts them."""

    facts: Mapping[str, SourcedFact]
    contradictions: tuple[FactContradiction, ...]

    def values(self) -> dict[str, str]:
        """Name to value, as conditions want them (policy/when.py)."""
        return {name: fact.value for name, fact in self.facts.items()}


Named = tuple[str, SourcedFact]
