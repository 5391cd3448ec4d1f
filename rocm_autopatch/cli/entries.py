"""The entries of a policy, as commands show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rocm_autopatch import startup
from rocm_autopatch.evidence import defects
from rocm_autopatch.policy import lower
from rocm_autopatch.policy.model import DELETE_EMPTY, Common, Policy

# Strengths that have no value.
DELETIONS = ("delete", DELETE_EMPTY)
_LACKS = {"proven": "no evidence here proves", "gains": "no evidence here shows a gain of"}


def entries_of(policy: Policy) -> Iterator[tuple[str, str, Any, Common]]:
    """Name, strength and value of each entry, as a record has them, and the entry."""
    for rule in policy.env:
        yield rule.name, rule.action, rule.value, rule
    for entry in policy.config:
        name = f"{entry.module}.{lower.current(entry.key)}"
        yield name, entry.strength, entry.value, entry
    for used in policy.uses:
        yield used.name, "use", used.use, used


def lacks_entries(entry: Common, facts: Mapping[str, str]) -> str | None:
    """Why an entry does not hold here, None if it does."""
    since, until = entry.range
    torch = startup.release(facts.get("torch", ""))
    if since > torch or (until and until <= torch):
        words = (("since", since), ("until", until))
        span = ", ".join(f"{word} {'.'.join(map(str, end))}" for word, end in words if end)
        return f"it is for torch {span}"
    return unproven_entries(entry, facts)


def unproven_entries(entry: Common, facts: Mapping[str, str]) -> str | None:
    """Which evidence an entry needs that is not here, None if it needs none."""
    lacking = {
        name: [word for word in words if word not in facts.get(name, "").split()]
        for name, words in entry.needs.items()
    }
    said = [f"{_LACKS[name]} {' and '.join(words)}" for name, words in lacking.items() if words]
    against = (defects.find_objection(word, facts) for word in lacking.get("proven", ()))
    said += [one.sentence for one in against if one][:1]
    return "; ".join(said) or None
