"""Which layers there are at a place, from the three sources of policies.

They are: built in, then the sites, of which /etc/rocm-autopatch is the last, then the policy that
ROCM_AUTOPATCH_POLICY names. The later ones are more specific. ``lower`` decides which layers hold
here, by their ``when``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch import policy_dirs as places
from rocm_autopatch.evidence import match
from rocm_autopatch.image import reference
from rocm_autopatch.image.fact import ASSUMPTION
from rocm_autopatch.plan import Plan
from rocm_autopatch.policy import load, lower, when
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.policy.problem import Problem


@dataclass(frozen=True)
class Selection:
    """The name of the policy that was chosen, all layers, general to specific, and the image
    records that are for this place, those included that change nothing."""

    policy: str
    layers: tuple[Policy, ...]
    records: tuple[Policy, ...]


def sites() -> tuple[Path, ...]:
    """The directories whose policies apply at this place, general to specific."""
    return tuple(map(Path, places.directories()))


def select(
    facts: Mapping[str, str], named: str = "", at: Sequence[Path] | None = None
) -> Selection:
    """What there is for a place of which *facts* are known, and where *named* is
    ROCM_AUTOPATCH_POLICY. Raises PolicyError.

    The stack begins with what *named* extends; where that says nothing of it, with the policy that
    the most specific image record chooses. On that come the image records, then the files in
    the directories *at*, then *named* itself. They are those of this place unless given.
    """
    reading = load.Reading()
    if at is None:
        _, _, why = places.read_sites()
        if why:
            reading.add(Problem(places.VARIABLE, 0, 0, "", why.partition(": ")[2]))
        at = sites()
    chosen = records(_images(at, reading), facts)
    bases = [row for row in chosen if row.base]
    base = reading.base(bases[-1]) if bases else reading.top(load.DEFAULT)
    stack = reading.layers(base)
    last = reading.top(named) if named else None
    below = reading.layers(last)[:-1]
    if last and last.extends is not None:
        stack = below
    on_it = [row for row in chosen if row.changes]
    on_it += [layer for file in files(at) for layer in reading.layers(reading.policy(file))]
    reading.finish()
    # If it were None, finish() would have raised.
    assert base is not None
    layers = {(layer.file, layer.name): layer for layer in (*stack, *on_it)}
    if last:
        layers.pop((last.file, last.name), None)
        layers[last.file, last.name] = last
    return Selection((last or base).name, tuple(layers.values()), chosen)


def files(at: Iterable[Path]) -> Iterator[Path]:
    """The policy files in directories, in the order in which they become layers."""
    for site in at:
        for file in sorted(site.glob("*.yaml")):
            if file.name != load.IMAGES.name:
                yield file


def known(facts: Mapping[str, str]) -> tuple[Policy, ...]:
    """The image records for this place. Raises PolicyError."""
    return records(images(), facts)


def images() -> tuple[Policy, ...]:
    """All image records, ours and then those of the sites. Raises PolicyError."""
    reading = load.Reading()
    rows = _images(sites(), reading)
    reading.finish()
    return rows


def _images(at: Iterable[Path], reading: load.Reading) -> tuple[Policy, ...]:
    rows = reading.images(load.IMAGES)
    for site in at:
        # A broken link counts as a file: somebody meant it to be read.
        if os.path.lexists(site / load.IMAGES.name):
            rows += reading.images(site / load.IMAGES.name)
    return rows


def records(rows: Iterable[Policy], facts: Mapping[str, str]) -> tuple[Policy, ...]:
    """The rows of images files that are for an image of which *facts* are known.

    The registry of a mirror and a digest do not matter: it is the same image.
    """
    names = set()
    try:
        image = reference.parse_reference(facts.get("image", ""))
    except ValueError:
        pass
    else:
        names = {image.short, f"{image.name}:{image.tag}"}
    return tuple(
        row for row in rows if (not row.image or row.image in names) and when.holds(row.when, facts)
    )


@dataclass(frozen=True)
class Lowered:
    """The plan of a place and the one without its evidence, from which layers, by which facts."""

    plan: Plan
    without: Plan
    chosen: Selection
    facts: Mapping[str, str]
    evidence: match.FoundEvidence


def lowered(
    start: Mapping[str, tuple[str, str]],
    named: str = "",
    machine: Mapping[str, str] | None = None,
) -> Lowered:
    """The plan for this machine: *start* is what its start recorded, name -> (value, source).

    *machine* is another one, as evidence.machine.here() says it. Raises PolicyError.
    """
    place, evidence = match.gather_with_evidence(start, machine)
    facts = place.values()
    chosen = select(facts, named)
    whole = without = lower.lower(chosen.layers, facts, chosen.policy)
    if evidence.used:
        bare = {
            name: fact.value
            for name, fact in place.facts.items()
            if name not in when.SETS or fact.kind == ASSUMPTION
        }
        below = chosen
        if any(name in row.when for row in chosen.records for name in when.SETS):
            below = select(bare, named)
        without = lower.lower(below.layers, bare, below.policy)
    return Lowered(whole, without, chosen, facts, evidence)
