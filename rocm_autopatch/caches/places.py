"""The places beneath a root of caches: which one is ours, what they hold, how they differ.

A place is a directory that ``startup.caches`` has made. Its file ``place`` has its fields.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rocm_autopatch import OFF, fresh_interpreter
from rocm_autopatch.caches import FACTS, OWN_FILES, RUNS, UNFINISHED, CacheRefused
from rocm_autopatch.startup import cache_place, caches, kfd
from rocm_autopatch.support.progress import tell_step

# What startup.caches.name() makes. Anything else in a root is not ours.
_NAME = re.compile(r"torch-[^/]*_[^/]+_[^/]+_[0-9a-f]{16}")
# What a field is where its value is not known: no file says it, or there is no GPU, as in a build.
UNKNOWN = ("", "no-gpu")


@dataclass(frozen=True)
class StartPlace:
    """The place of a process that starts in this environment."""

    root: Path
    place: Path
    fields: dict[str, str]
    torch: str  # the path of torch/version.py, "" if unknown
    layer: str  # who asks for caches: a policy, or ROCM_AUTOPATCH_CACHE; "" if nobody does
    unused: str  # why starts do not use caches, "" if they do
    node: str = ""  # where programs write instead, if the root is on a network file system
    home: bool = False  # whether nobody has named the root

    def place_refusal(self) -> str | None:
        """Why starts that use caches keep none here, None if nothing is in their way."""
        try:
            self.make_place(looks=True)
        except (OSError, caches.Unusable) as error:
            return str(error)
        return None

    def make_place(self, looks: bool) -> None:
        """Make the place as a start does, or only look. Raises caches.Unusable and OSError."""
        cache_place.make_place(
            str(self.root), str(self.place), self.fields, self.home, self.node, looks
        )


@dataclass
class CachePlace:
    """A place as it is on disk. Sizes are in bytes; links are not followed and count 0."""

    path: Path
    fields: dict[str, str]
    used: float  # the last start that used it, in seconds since 1970
    size: int = 0
    files: int = 0  # with links, without our own
    parts: dict[str, int] = field(default_factory=dict)  # bytes of each part that is not empty


def caches_environment() -> dict[str, str]:
    """What a command gets that shall use caches: on, unless the user or a policy says where.

    Raises Refused where starts do nothing, and NoReport.
    """
    environ = fresh_interpreter.before_us()
    switch = environ.get("ROCM_AUTOPATCH", "").strip().lower()
    if switch in OFF or switch == "observe":
        raise CacheRefused(f"starts use no caches, by ROCM_AUTOPATCH={switch}: unset it")
    # Under require, what is missing would be an error, and here it is what the command is for.
    require = environ.get(caches.VARIABLE, "").strip() == caches.REQUIRE
    if require or place_here().unused:
        environ[caches.VARIABLE] = "on"
    return environ


def place_here(described: str = "") -> StartPlace:
    """The place of this environment. Raises Refused where there is none, and NoReport.

    It makes nothing, and is no use of the place. Where nobody asks for caches, it is the place that
    ROCM_AUTOPATCH_CACHE=on would give. *described* is a GPU that is not here, as
    ROCM_AUTOPATCH_GPU has it.
    """
    environ = fresh_interpreter.before_us()
    if described:
        environ[kfd.DESCRIBED.decode()] = described
    switch = environ.get("ROCM_AUTOPATCH", "").strip().lower()
    unused = f"ROCM_AUTOPATCH={switch}" if switch in OFF or switch == "observe" else ""
    # A start that observes says which place it would use, and leaves it alone.
    environ["ROCM_AUTOPATCH"] = "observe"
    report = fresh_interpreter.report(torch=False, environ=environ)
    if report["caches"]["use"] == "off":
        off = environ.get(caches.VARIABLE, "").strip() == "off"
        by = report["caches"]["layer"]
        told = f"policy {by} says off" if by else "no policy asks for caches"
        unused = unused or (f"{caches.VARIABLE}=off" if off else told)
        environ[caches.VARIABLE] = "on"
        report = fresh_interpreter.report(torch=False, environ=environ)
    return _place_of_report(report, unused)


def start_place(environ: Mapping[str, str]) -> StartPlace:
    """The place of *environ*, made as any start makes it. Raises Refused, NoReport and OSError."""
    report = fresh_interpreter.report(torch=False, environ=environ)
    made = _place_of_report(report, "")
    try:
        made.make_place(looks=False)
    except caches.Unusable as error:
        raise CacheRefused(str(error)) from None
    return made


def _place_of_report(report: dict[str, Any], unused: str) -> StartPlace:
    said = report["caches"]
    if said["use"] == "off":
        raise CacheRefused(
            "; ".join([f"no policy applies here: {report['reason']}", *report["errors"]])
        )
    if said["reason"]:
        raise CacheRefused(said["reason"])
    source = str(report["facts"].get("torch", {}).get("source", ""))
    return StartPlace(
        root=Path(said["root"]),
        place=Path(said["place"]),
        fields=dict(said["of"]),
        torch=source if source.endswith("/torch/version.py") else "",
        layer="" if unused else said["layer"],
        unused=unused,
        node=said["node"],
        home=said["use"] == "on",
    )


def judge_directory(directory: Path) -> None:
    """Raise CacheRefused, in a start's words, if others may write a directory.

    It need not be there.
    """
    try:
        cache_place.check_directory(str(directory))
    except FileNotFoundError:
        return
    except caches.Unusable as error:
        raise CacheRefused(str(error)) from None


def make_root(root: Path) -> None:
    """Make a root and what is above it.

    Raises CacheRefused where others could write, and OSError.
    """
    try:
        cache_place.make_root(os.path.abspath(root), home=False)
    except caches.Unusable as error:
        raise CacheRefused(str(error)) from None


def places_beneath(root: Path) -> list[CachePlace]:
    """The places beneath a root, the last used one first; [] if there is no root."""
    found = []
    tell_step("looking at the caches")
    for path in _place_directories(root):
        with contextlib.suppress(OSError):  # Somebody removes it, or it belongs to somebody else.
            if not path.name.startswith(UNFINISHED) and (path / caches.MARK).exists():
                found.append(look_at_place(path))
    return sorted(found, key=lambda place: (-place.used, place.path.name))


def look_at_place(path: Path) -> CachePlace:
    """The place at *path*. Raises OSError if there is none or it can't be read."""
    fields = {}
    text = (path / caches.MARK).read_text(encoding="utf-8", errors="replace")
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        fields[name] = value
    place = CachePlace(path, fields, path.stat().st_mtime)
    place.size, place.files, place.parts = measure_place(path)
    return place


def measure_place(path: Path) -> tuple[int, int, dict[str, int]]:
    """Bytes and files of a place, and the bytes of each part."""
    size = files = 0
    parts: dict[str, int] = {}
    for directory, _, names in os.walk(path):
        part = os.path.relpath(directory, path).split(os.sep)[0]
        for name in names:
            if part == "." and name in (caches.MARK, caches.LINKED, *OWN_FILES):
                continue
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(directory, name))
                own = 0 if os.path.islink(os.path.join(directory, name)) else status.st_size
                size += own
                files += 1
                parts[part] = parts.get(part, 0) + own
    return size, files, dict(sorted(parts.items(), key=lambda row: (-row[1], row[0])))


def is_empty(path: Path) -> bool:
    """Whether a place has no files yet: a start makes it so."""
    return not measure_place(path)[1]


def unmarked_places(root: Path) -> list[CachePlace]:
    """Directories with the name of a place, but no file that says which: the last used one first.

    Where gc removed a place beside a running program, the program has made its directories again.
    """
    found = []
    for path in _place_directories(root):
        with contextlib.suppress(OSError):
            if _NAME.fullmatch(path.name) and not (path / caches.MARK).exists():
                place = CachePlace(path, {}, path.stat().st_mtime)
                place.size, place.files, place.parts = measure_place(path)
                found.append(place)
    return sorted(found, key=lambda place: (-place.used, place.path.name))


def unfinished_places(root: Path) -> Iterator[Path]:
    """What was left by a process that was killed, or is being made right now."""
    for path in _place_directories(root):
        if path.name.startswith(UNFINISHED):
            yield path


def _place_directories(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and not path.is_symlink())
    except (FileNotFoundError, NotADirectoryError):
        return []


def field_differences(
    one: Mapping[str, str], other: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """The fields in which two places differ, and both values."""
    names = dict.fromkeys([*one, *other])
    pairs = {name: (one.get(name, ""), other.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def differences_text(differing: Mapping[str, tuple[str, str]]) -> str:
    """What ``field_differences`` found, in words. The digest of a plan is called by the plan: it is
    another one than that of ``status``."""
    return ", ".join(
        f"{'plan' if name == 'digest' else name} {theirs or 'unknown'} (here {ours or 'unknown'})"
        for name, (theirs, ours) in differing.items()
    )


def filled_for(path: Path) -> dict[str, Any]:
    """The facts of the GPU that ``fill`` compiled for in a place, {} if a GPU was there."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        facts = json.loads((path / FACTS).read_bytes())
        if isinstance(facts, dict):
            return facts
    return {}


def warm_runs(path: Path) -> list[dict[str, Any]]:
    """What each ``warm`` has noted in a place, the last one last. Damaged lines are left out."""
    found = []
    with contextlib.suppress(OSError):
        for line in (path / RUNS).read_bytes().splitlines():
            with contextlib.suppress(ValueError, RecursionError):
                row = json.loads(line)
                if isinstance(row, dict):
                    found.append(row)
    return found
