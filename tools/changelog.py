"""Read CHANGELOG.md, which is in the form of Keep a Changelog 1.1: print what a version changed.

    python -m tools.changelog VERSION

Raises no error for a text that is right: the versions fall, each has a date, and each change stands
under one of the six kinds.
"""

from __future__ import annotations

import re
import sys
from datetime import date
from pathlib import Path

from packaging.version import InvalidVersion, Version

FILE = Path(__file__).resolve().parent.parent / "CHANGELOG.md"
UNRELEASED = "Unreleased"
KINDS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
HEADING = re.compile(r"## \[(?P<name>[^]]+)\](?: - (?P<date>\S+))?(?P<yanked> \[YANKED\])?")


class ChangelogError(Exception):
    """What is wrong, with its line."""


def sections(text: str) -> dict[str, str]:
    """Each version, and its changes as they are written; first the one named Unreleased.

    Raises ChangelogError if the text has another form.
    """
    found: dict[str, list[str]] = {}
    kind = name = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("## "):
            name, kind = _heading(line, number, list(found)), None
            found[name] = []
            continue
        if line.startswith("### "):
            kind = line[4:]
            if kind not in KINDS:
                raise ChangelogError(f"line {number}: {kind!r} is none of {', '.join(KINDS)}")
            if name is not None and line in found[name]:
                raise ChangelogError(f"line {number}: {kind} stands twice in {name}")
        elif line.startswith("- ") and kind is None:
            raise ChangelogError(f"line {number}: a change stands under none of {', '.join(KINDS)}")
        if name is not None:
            found[name].append(line)
    if next(iter(found), None) != UNRELEASED:
        raise ChangelogError(f"the first section is not ## [{UNRELEASED}]")
    return {name: "\n".join(lines).strip() for name, lines in found.items()}


def _heading(line: str, number: int, before: list[str]) -> str:
    """The name in the heading of a section."""
    match = HEADING.fullmatch(line)
    if match is None:
        raise ChangelogError(f"line {number}: expected ## [VERSION] - YYYY-MM-DD, found {line!r}")
    name, day = match["name"], match["date"]
    if name == UNRELEASED:
        if before or day:
            raise ChangelogError(f"line {number}: [{UNRELEASED}] stands first, without a date")
        return name
    try:
        this = Version(name)
        date.fromisoformat(day or "")
    except InvalidVersion:
        raise ChangelogError(f"line {number}: {name!r} is no version") from None
    except ValueError:
        raise ChangelogError(f"line {number}: {name} has no date, such as 2026-11-23") from None
    if len(before) > 1 and not this < Version(before[-1]):
        raise ChangelogError(f"line {number}: {name} stands below {before[-1]}")
    return name


def section(text: str, version: str) -> str:
    """What *version* changed. Raises ChangelogError if there is nothing about it."""
    found = sections(text)
    if not found.get(version):
        raise ChangelogError(f"it has nothing about {version}")
    return found[version]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        print(section(FILE.read_text(encoding="utf-8"), sys.argv[1]))
    except ChangelogError as error:
        sys.exit(f"{FILE.name}: {error}")


if __name__ == "__main__":
    main()
