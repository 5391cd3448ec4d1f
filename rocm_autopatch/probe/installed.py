"""What is installed for this Python, and beside it: the files that may read variables.

They are in groups: an installed distribution with the files of its RECORD, or a directory. A
group's key changes when one of its files does, also one that was changed after it was installed.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_SUFFIXES = frozenset(
    (
        *("py", "pyx", "pth", "sh", "bash", "h", "hpp", "hh", "cuh", "cu", "c", "cc", "cpp", "cxx"),
        *("hip", "inc", "inl"),
    )
)
# What has other programs' files, or no programs.
_LEFT_OUT = frozenset(
    (
        *("__pycache__", "node_modules", "site-packages", "dist-packages", "idlelib", "lib2to3"),
        *("tkinter", "turtledemo", "test", "tests", "docs", "examples", "benchmarks"),
    )
)
_LIBRARIES = (
    *("/opt/rocm*/lib", "/opt/rocm*/lib64", "/usr/local/lib", "/usr/local/lib64"),
    *("/usr/lib/*-linux-gnu", "/lib/*-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib"),
)
_SCRIPTS = ("/*.sh", "/app/*.sh", "/workspace/*.sh", "/opt/*.sh", "/usr/local/bin/*")
_PROFILES = ("/etc/profile", "/etc/profile.d/*.sh", "/etc/bash.bashrc", "/etc/environment")
_MOST_FILES = 100_000
# We name what others read.
_OURS = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + "/"


@dataclass
class FileGroup:
    """Files that are looked at together. *files* are below *root*, or absolute."""

    name: str
    root: str
    files: list[str]
    key: str = ""

    def path(self, file: str) -> str:
        """Where a file is."""
        return os.path.join(self.root, file)

    def shown(self, file: str) -> str:
        """A file as a report names it: as the distribution does, or absolute."""
        return self.path(file) if self.name == self.root else file


@dataclass
class InstalledFiles:
    """The groups, and what was left out, in sentences."""

    groups: list[FileGroup] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_installed(path: Sequence[str], environment: Mapping[str, str]) -> InstalledFiles:
    """What is installed on a search path of Python, and what libraries and scripts are there."""
    found = InstalledFiles()
    seen: set[str] = set()
    editable: list[str] = []
    for directory in path:
        real = os.path.realpath(directory)
        if real in seen or not os.path.isdir(real):
            if os.path.isfile(real):
                found.notes.append(f"{directory} is an archive and was not looked at")
            continue
        seen.add(real)
        groups, projects = _find_distributions(real)
        found.groups += groups
        editable += projects
        covered = {os.path.normpath(group.path(f)) for group in groups for f in group.files}
        found.groups.append(
            FileGroup(real, real, [f for f in _files_below(real) if f not in covered])
        )
    for directory in editable:
        real = os.path.realpath(directory)
        if not any(real == one or real.startswith(one + "/") for one in seen):
            seen.add(real)
            found.groups.append(FileGroup(real, real, list(_files_below(real))))
    found.groups += _loadable_libraries(environment)
    scripts = [f for pattern in (*_SCRIPTS, *_PROFILES) for f in sorted(glob.glob(pattern))]
    found.groups.append(FileGroup("scripts", "/", [f for f in scripts if os.path.isfile(f)]))
    room = _MOST_FILES
    for group in found.groups:
        if len(group.files) > room:
            found.notes.append(f"{len(group.files) - room} files of {group.name} were left out")
            del group.files[room:]
        room -= len(group.files)
        _seal_group(group)
    found.groups = [group for group in found.groups if group.files]
    return found


def _find_distributions(directory: str) -> tuple[list[FileGroup], list[str]]:
    """The distributions of a directory, and the projects of those that are editable."""
    groups: list[FileGroup] = []
    projects: list[str] = []
    for info in sorted(glob.glob(glob.escape(directory) + "/*.dist-info")):
        name, _, version = os.path.basename(info)[: -len(".dist-info")].partition("-")
        if name == "rocm_autopatch":
            continue
        try:
            with open(info + "/RECORD", encoding="utf-8", newline="") as stream:
                files = [row[0] for row in csv.reader(stream) if row and _is_wanted(row[0])]
        except (OSError, ValueError, csv.Error):
            continue  # Its files count as the directory's.
        groups.append(FileGroup(f"{name} {version}", directory, files))
        projects += _editable_project(info)
    return groups, projects


def _editable_project(info: str) -> Iterator[str]:
    """The project of a distribution that was installed by ``pip install -e`` (PEP 610)."""
    try:
        with open(info + "/direct_url.json", encoding="utf-8") as stream:
            told = json.load(stream)
        if told["dir_info"].get("editable"):
            yield unquote(urlsplit(told["url"]).path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass


def _is_wanted(file: str) -> bool:
    last = file.rpartition("/")[2]
    stem, dot, suffix = last.rpartition(".")
    if not dot:
        # Programs: .../bin/vllm, vllm/vllm-rs.
        return last.islower() or last.startswith("lib")
    return suffix in _SUFFIXES or suffix == "so" or (".so." in last and stem != "")


def _files_below(directory: str) -> Iterator[str]:
    for at, directories, files in os.walk(directory):
        directories[:] = sorted(
            one for one in directories if one not in _LEFT_OUT and not one.startswith(".")
        )
        for file in sorted(files):
            if "." in file and _is_wanted(file):
                yield os.path.join(at, file)


def _loadable_libraries(environment: Mapping[str, str]) -> Iterator[FileGroup]:
    """The libraries that a program can load, by directory, and this interpreter itself."""
    named = [one for one in environment.get("LD_LIBRARY_PATH", "").split(":") if one[:1] == "/"]
    seen = set()
    for directory in [*named, *(one for text in _LIBRARIES for one in sorted(glob.glob(text)))]:
        real = os.path.realpath(directory)
        if real in seen:
            continue
        seen.add(real)
        files = sorted(glob.glob(glob.escape(real) + "/*.so*"))
        # A library has several names that are links.
        yield FileGroup(
            real, real, [f for f in files if not os.path.islink(f) and os.path.isfile(f)]
        )
    python = os.path.realpath(sys.executable)
    yield FileGroup(os.path.dirname(python), os.path.dirname(python), [python])


def _seal_group(group: FileGroup) -> None:
    """Leave out files that are not there, and make the key of what each of them is."""
    digest = hashlib.sha256(f"{group.name}\0{group.root}".encode("utf-8", "surrogateescape"))
    there = []
    for file in _each_once(group.files):
        if os.path.normpath(group.path(file)).startswith(_OURS):
            continue
        try:
            status = os.stat(group.path(file))
        except OSError:
            continue
        there.append(file)
        row = f"\n{file}\0{status.st_size}\0{status.st_mtime_ns}"
        digest.update(row.encode("utf-8", "surrogateescape"))
    group.files, group.key = there, digest.hexdigest()


def _each_once(files: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(files))
