"""The conditions of a policy's ``when``: what each may say, and whether it holds for some facts."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

ACCELERATORS = ("rocm", "cuda", "cpu")
# One word or a list of them, of which the fact has to be one.
WORDS = ("accelerator", "framework", "gfx", "repository")
# A PEP 440 range of versions or dates.
RANGES = ("date", "framework_version", "python", "rocm", "torch")
# A pattern with * and ?, or a list of them.
GLOBS = ("tag",)
# One of evidence.SUBJECTS or a list of them; the fact has to have all of them.
SETS = ("proven", "gains")
# Cheap ones first: of thousands of image records most are refused by a word.
NAMES = (*WORDS, *SETS, *GLOBS, *RANGES)

# A tag has up to 128 characters, and no version that we know has more.
LONGEST = 256

Conditions = Mapping[str, tuple[str, ...]]


def holds(conditions: Conditions, facts: Mapping[str, str]) -> bool:
    """Whether all conditions hold. A condition on an unknown fact does not hold."""
    for name, wanted in conditions.items():
        fact = facts.get(name)
        if not fact:
            return False
        if name in RANGES:
            if not _within(fact, wanted):
                return False
        elif name in GLOBS:
            if not any(_matches(fact, pattern) for pattern in wanted):
                return False
        elif name in SETS:
            if not set(fact.split()).issuperset(wanted):
                return False
        elif fact not in wanted:
            return False
    return True


def _within(fact: str, wanted: tuple[str, ...]) -> bool:
    release = _release(fact)
    return release is not None and all(_range(text).contains(release, True) for text in wanted)


@lru_cache(maxsize=64)
def _release(fact: str) -> Version | None:
    """The version, or the date as one, that a fact begins with; None if it does with neither."""
    # Not compared: the local part of a build (2.9.1+rocm7.2.0), and what follows the numbers of a
    # HIP version (7.0.51831-a3e329ad8).
    dotted = fact.replace("-", ".") if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", fact) else fact
    found = re.match(r"[0-9]+(?:\.[0-9]+)*(?:\.?(?:a|b|rc|post|dev)[0-9]+)*", dotted[:LONGEST])
    return _packaging("version").Version(found.group()) if found else None


def _matches(fact: str, pattern: str) -> bool:
    """Whether *pattern*, in which ``*`` is any text and ``?`` any character, is all of *fact*.

    fnmatch would compile each pattern: a tenth of a millisecond, too long for thousands of records,
    and milliseconds for one of many stars.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return _ends(fact, pattern) and len(fact) == len(pattern)
    last = parts.pop()
    if len(fact) < len(first) + len(last):
        return False
    if not (_ends(fact[: len(first)], first) and _ends(fact, last)):
        return False
    # The leftmost place of each part leaves the most for those after it.
    here, end = len(first), len(fact) - len(last)
    for part in parts:
        here = _find(fact, part, here, end)
        if here < 0:
            return False
        here += len(part)
    return True


def _ends(text: str, part: str) -> bool:
    """Whether *text* ends with *part*, in which ``?`` is any character."""
    if "?" not in part:
        return text.endswith(part)
    tail = text[len(text) - len(part) :] if len(part) <= len(text) else ""
    return len(tail) == len(part) and all(map(_fits, tail, part))


def _find(text: str, part: str, start: int, end: int) -> int:
    """Where *part*, in which ``?`` is any character, is in text[start:end] first; -1: nowhere."""
    # The longest run without a question mark is looked for, the rest compared where it is.
    run = max(part.split("?"), key=len)
    ahead = part.index(run)
    place = text.find(run, start + ahead, end)
    while 0 <= place <= end - len(part) + ahead:
        found = place - ahead
        if all(map(_fits, text[found : found + len(part)], part)):
            return found
        place = text.find(run, place + 1, end)
    return -1


def _fits(character: str, wanted: str) -> bool:
    return wanted in ("?", character)


def text(conditions: Conditions, quote: str = "") -> str:
    """The conditions as they are read aloud: ``framework sglang, torch <2.12``."""
    return ", ".join(
        f"{name} "
        + (" and " if name in SETS else " or ").join(f"{quote}{word}{quote}" for word in wanted)
        for name, wanted in conditions.items()
    )


def problem(name: str, text: str) -> str | None:
    """What is wrong with a condition's text, None if nothing is."""
    if len(text) > LONGEST:
        return f"longer than {LONGEST} characters"
    if name == "accelerator" and text not in ACCELERATORS:
        return f"{text!r} is not one of {', '.join(ACCELERATORS)}"
    if name in GLOBS and "[" in text:
        return f"{text!r} has a [: the only wildcards are * and ?"
    if name in RANGES:
        try:
            _range(text)
        except ValueError:
            example = ">=2026-02-01" if name == "date" else ">=2.6,<2.10"
            return f"{text!r} is not a range such as '{example}'"
    return None


@cache
def _range(text: str) -> SpecifierSet:
    # Cached without bound: the selection uses each range again that the reader of a file checked.
    # PEP 440 has no dates: 2026-02-01 is compared as 2026.02.01.
    plain = re.sub(r"(?<=[0-9])-(?=[0-9])", ".", text) if "-" in text else text
    return _packaging("specifiers").SpecifierSet(plain)  # type: ignore[no-any-return]


def _packaging(name: str) -> Any:
    # Not at the top: an overlay installs the wheel alone, and a policy without ranges must be
    # readable where packaging is missing.
    try:
        return importlib.import_module(f"packaging.{name}")
    except ModuleNotFoundError:
        why = "is not installed here"
    except Exception as error:
        # A broken installation raises anything.
        why = f"can't be imported: {type(error).__name__}: {error}"
    raise ImportError(f"reading a policy's version ranges needs packaging, which {why}")
