"""All facts of a place: what a user assumes, what the place shows, what a tag states.

clues.py reads the place, the start records what torch says of itself. docs/images.md has the facts
and their order for users.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rocm_autopatch import _ASSUME
from rocm_autopatch.image import reference
from rocm_autopatch.image.fact import (
    ASSUMPTION,
    CLUE,
    LIBRARY,
    ROCM_OF_HIP,
    TAG,
    FactContradiction,
    KnownFacts,
    Named,
    SourcedFact,
)

# 2.9.1+rocm7.2.0.lw.git7e1940d4, 2.11.0+rocm7.2, 2.10.0a0+rocm7.10.0a20251015. A build of a
# developer is 2.11.0a0+devrocm7.13.0.dev0 (ROCm/TheRock, build_tools/github_actions/
# determine_version.py). +rocmsdk20260116 and +gfx1151 name no ROCm.
_ROCM_OF_TORCH = re.compile(
    r"[^+]*\+(?:[^+]*[.-])?(?:dev)?rocm([0-9]+\.[0-9]+(?:\.[0-9]+)?)", re.DOTALL
)
# What a version may have more than a less precise one: numbers, and a local part.
_PRECISION = re.compile(r"(?:\.[0-9]+)*(?:\+.*)?", re.DOTALL)


def gather_facts(
    known: Mapping[str, tuple[str, str]], clues: Iterable[Named] | None = None
) -> KnownFacts:
    """What holds where *known*, name to value and source, was recorded.

    What has ROCM_AUTOPATCH_ASSUME as its source is an assumption. *clues* are, unless given, those
    of this container: clues.gather(), of each name the most trusted first. To ask about another
    place, give () and of what is known the assumptions only. Raises nothing.
    """
    if clues is None:
        from rocm_autopatch.image import clues as this_place

        clues = this_place.gather_clues(os.environ)
    stated = {
        name: SourcedFact(value, source, ASSUMPTION if source == _ASSUME else CLUE)
        for name, (value, source) in known.items()
    }
    follows = [*_of_torch(stated), *clues, *_of_hip(stated), *_of_image(stated)]
    # A user who assumes an image asks what would hold there, not what this place shows. Recorded
    # facts still come first: the torch that gets patched is this one, not the one of a tag.
    follows.sort(key=lambda named: not _is_assumed(named[1]))
    said: dict[str, list[SourcedFact]] = {}
    for name, fact in (*stated.items(), *follows):
        said.setdefault(name, []).append(fact)
    libraries = said.pop(LIBRARY, [])
    # Beside a torch for CUDA they are another program's: Ubuntu's libucx0 needs libamdhip64.so.5.
    if "accelerator" not in stated or stated["accelerator"].value == "rocm":
        said.setdefault("rocm", libraries)
    versions = said.pop("framework_version", [])
    facts: dict[str, SourcedFact] = {}
    contradictions: list[FactContradiction] = []
    for name, candidates in said.items():
        facts.update(_settle_fact(name, candidates, contradictions))
    # Only now is the framework known whose version this is.
    if "framework" in facts:
        package = _framework_package(facts["framework"].value)
        versions += [facts[package]] if package in facts else []
    facts.update(_settle_fact("framework_version", versions, contradictions))
    return KnownFacts(facts, tuple(contradictions))


def _settle_fact(
    name: str, candidates: Sequence[SourcedFact], contradictions: list[FactContradiction]
) -> dict[str, SourcedFact]:
    """The fact that follows from *candidates*, the most trusted first; {} if none does."""
    first: dict[str, SourcedFact] = {}
    pairs = [
        FactContradiction(name, first.setdefault(fact.source, fact), fact) for fact in candidates
    ]
    torn = [
        pair
        for pair in pairs
        if pair.within_a_clue and not _values_agree(pair.used.value, pair.other.value)
    ]
    contradictions += torn
    doubted = {pair.used.source for pair in torn}
    used = None
    others = []
    for fact in candidates:
        if fact.source in doubted:
            continue
        if used is None:
            used = fact
        elif not _values_agree(used.value, fact.value):
            others.append(fact)
        elif len(fact.value) > len(used.value) and not _is_assumed(used):
            used = fact
    if used is None:
        return {}
    contradictions += [FactContradiction(name, used, other) for other in others]
    return {name: used}


def _values_agree(one: str, other: str) -> bool:
    """Whether one is the other, or a more precise form of it: 7.2 and 7.2.4."""
    short, long = sorted((one, other), key=len)
    return long.startswith(short) and bool(_PRECISION.fullmatch(long[len(short) :]))


def _is_assumed(fact: SourcedFact) -> bool:
    """Whether it is an assumption or follows from one."""
    return fact.source.endswith(_ASSUME)


def _framework_package(framework: str) -> str:
    """The fact that has the version of *framework*: its distribution's name."""
    return "torch" if framework == "pytorch" else framework


def _of_torch(stated: Mapping[str, SourcedFact]) -> Iterator[Named]:
    if "torch" in stated:
        torch = stated["torch"]
        found = _ROCM_OF_TORCH.match(torch.value)
        if found:
            yield "rocm", SourcedFact(found[1], f"torch, by {torch.source}", torch.kind)


def _of_hip(stated: Mapping[str, SourcedFact]) -> Iterator[Named]:
    # Where torch names its ROCm, HIP's version adds nothing, and in previews says something else:
    # HIP 7.1 is in ROCm 7.10.
    named = any(_of_torch(stated)) or ("rocm" in stated and stated["rocm"].kind == CLUE)
    if "hip" in stated and not named:
        hip = stated["hip"]
        found = ROCM_OF_HIP.match(hip.value)
        if found:
            yield "rocm", SourcedFact(found[1], f"hip, by {hip.source}", hip.kind)


def _of_image(stated: Mapping[str, SourcedFact]) -> Iterator[Named]:
    """What the reference says; a framework's version under the framework's name."""
    if "image" not in stated:
        return
    image = stated["image"]
    try:
        parsed = reference.parse_reference(image.value)
    except ValueError:
        return
    said = reference.reference_facts(parsed)
    if "framework_version" in said:
        said[_framework_package(said["framework"])] = said.pop("framework_version")
    if parsed.tag:
        said["tag"] = parsed.tag
    for name, value in said.items():
        yield name, SourcedFact(value, f"image, by {image.source}", TAG)
