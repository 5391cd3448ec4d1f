"""What of a place may go to another machine, and what stays: locks, and what is bound to its paths.

research/caches-rocm.md has the reasons, in its section 16. A lock that goes elsewhere is never
broken there: its owner is a process of another host.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote

from rocm_autopatch.caches import OWN_FILES, UNFINISHED
from rocm_autopatch.startup import caches

# Files and directories that are locks, or that somebody was still writing.
_LEFT_OUT = (
    *("lock", "lock_*", "*.lock", "*.lock.steal", ".ninja_lock", "locks", "miopen-lockfiles"),
    *(".staging*", "tmp", "*.tmp", "tmp.*", UNFINISHED + "*"),
)
# ninja compares times, so it builds them anew.
_WITHOUT_USE = "extensions"
# In aiter's build trees, sources and objects have absolute paths, may be cut off, and take
# gigabytes. Of cpp_itfs, which is in build/ itself, these are what is loaded.
_AITER_LOADS = (".so", ".hsaco", ".json")
_SQLITE = b"SQLite format 3\0"
# What SQLite has beside a database. A copy by its own means has all of it.
_BESIDE = ("-wal", "-shm", "-journal")
_BUSY_S = 10.0
# So many parts a name has at most. What compilers write has less than ten; with a thousand,
# Python's own walks through directories end in RecursionError.
DEEPEST = 64


def removable_files(place: Path) -> Iterator[tuple[str, Path]]:
    """Each file that may go: its name in the place, with slashes, and where to read it.

    A link is the file that it leads to, if that is in the place or in the layer.
    """
    inside = tuple(os.path.realpath(path) + "/" for path in (place, caches.LAYER))
    for directory, directories, names in os.walk(place):
        part = os.path.relpath(directory, place)
        part = "" if part == "." else part + "/"
        directories[:] = [name for name in directories if may_go(part + name + "/")]
        for name in names:
            path = Path(directory, name)
            resolved = os.path.realpath(path)
            with contextlib.suppress(OSError):  # A link may lead nowhere.
                is_file = stat.S_ISREG(os.stat(resolved).st_mode)
                if is_file and resolved.startswith(inside) and may_go(part + name):
                    yield part + name, Path(resolved)


def may_go(name: str) -> bool:
    """Whether a file may go, or a directory, whose *name* ends with a slash."""
    parts = name.rstrip("/").split("/")
    last = parts[-1]
    if name in (caches.MARK, caches.LINKED, *OWN_FILES) or parts[0] == _WITHOUT_USE:
        return False
    if len(parts) > DEEPEST:
        return False
    if any(fnmatchcase(last, pattern) for pattern in _LEFT_OUT):
        return False
    if parts[:2] == ["aiter-modules", "build"]:
        return False
    if parts[:2] == ["aiter", "build"] and not name.endswith("/"):
        return last.endswith(_AITER_LOADS)
    return True


def is_database(path: Path) -> bool:
    """Whether a file is an SQLite database, by its first bytes. Raises OSError."""
    with open(path, "rb") as stream:
        return stream.read(len(_SQLITE)) == _SQLITE


def database_of(path: Path) -> str:
    """The database that a file belongs to, by its name; "" if to none."""
    for suffix in _BESIDE:
        if path.name.endswith(suffix):
            return str(path)[: -len(suffix)]
    return ""


def copy_database(source: Path, target: Path) -> None:
    """Copy an SQLite database with what its -wal has. Raises sqlite3.Error.

    The same contents give the same bytes. The source is opened for reading only.
    """
    name = f"file:{quote(os.fsencode(source))}?mode=ro"
    with contextlib.ExitStack() as stack:
        reader = sqlite3.connect(name, uri=True, timeout=_BUSY_S)
        stack.enter_context(contextlib.closing(reader))
        writer = stack.enter_context(contextlib.closing(sqlite3.connect(target)))
        reader.backup(writer)
