"""The conditions of a policy's ``when``: what each may say, and whether it holds for some facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

ACCELERATORS = ("rocm", "cuda", "cpu")
# One word or a list of them, of which the fact has to be one.
WORDS = ("accelerator", "framework", "gfx", "repository")
# A PEP 440 range of versions, or of dates.
RANGES = ("date", "framework_version", "python", "rocm", "torch")
# A pattern with * and ?, or a list of them.
GLOBS = ("tag",)
NAMES = (*WORDS, *RANGES, *GLOBS)

Conditions = Mapping[str, tuple[str, ...]]


def holds(conditions: Conditions, facts: Mapping[str, str]) -> bool:
    """Whether all conditions hold. One on a fact that is not known does not."""
    return all(_holds(name, wanted, facts.get(name, "")) for name, wanted in conditions.items())


def _holds(name: str, wanted: tuple[str, ...], fact: str) -> bool:
    if not fact:
        return False
    if name in RANGES:
        # A build's local part (2.9.1+rocm7.2.0) is not compared, and what a HIP version has behind
        # its numbers (7.0.51831-a3e329ad8) is no version.
        release = _numbers(fact)
        return bool(release) and all(_range(text).contains(release, True) for text in wanted)
    if name in GLOBS:
        return any(fnmatchcase(fact, pattern) for pattern in wanted)
    return fact in wanted


def problem(name: str, text: str) -> str:
    """What is wrong with a condition's text, "" if nothing is."""
    if name == "accelerator" and text not in ACCELERATORS:
        return f"{text!r} is not one of {', '.join(ACCELERATORS)}"
    if name in RANGES:
        try:
            _range(text)
        except ValueError:
            example = ">=2026-02-01" if name == "date" else ">=2.6,<2.10"
            return f"{text!r} is not a range such as '{example}'"
    return ""


def _range(text: str) -> SpecifierSet:
    # Here, not above: an overlay installs the wheel alone, and a policy without ranges is to be
    # read where packaging is missing.
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(re.sub(r"(?<=[0-9])-(?=[0-9])", ".", text))


def _numbers(fact: str) -> str:
    """The numbers that a version or an ISO date begins with, as PEP 440 has them."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*(?:\.?(?:a|b|rc|post|dev)[0-9]+)*", _dotted(fact))
    return found.group() if found else ""


def _dotted(fact: str) -> str:
    return fact.replace("-", ".") if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", fact) else fact
