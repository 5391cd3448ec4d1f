"""A place on top of a read-only one: links to its files, and copies of those that programs change.

An image's layer or a volume has what was compiled, and a container needs a place that it can write.
No gigabytes are copied: torch, Triton and aiter replace files by others and do not change them, so
they may be links. What is changed in its place is copied: databases, tables, and what frameworks
keep.
"""

import os
from contextlib import suppress

from rocm_autopatch import _read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# The parts of a place whose files are never changed, only replaced.
LINKED = (
    *("inductor", "triton", "aiter", "aiter-modules", "flydsl", "comgr", "tilelang"),
    "sglang-jit",
)
# What is changed in them, nevertheless: torch before 2.8 writes .best_config files in their place.
_CHANGED = (".best_config", ".csv", ".txt", ".db", ".lock")
# What the names of Triton's files with the paths of a kernel's files begin with.
GROUP = "__grp__"
_PIECE = 1 << 20


def link_layer(below: str, new: str, to: str, part: str = "") -> None:
    """Give the directory *new* all that the place *below* has, or that its *part* "/NAME" has.

    What is there already stays. *new* will be the directory *to*, or a part of it: Triton's group
    files, which have the paths of the files beside them, get paths of *to*, wherever they were
    written. Raises OSError.
    """
    for inner, directories, files in _walk(below, part):
        target = new + inner[len(part) :]
        for name in directories:
            with suppress(FileExistsError):
                os.mkdir("%s/%s" % (target, name), 0o755)
        for name in files:
            path = inner + "/" + name
            with suppress(FileExistsError):
                if is_group(name):
                    _copy(below + path, "%s/%s" % (target, name))
                    rewrite_group("%s/%s" % (target, name), to + inner)
                elif path.split("/")[1] in LINKED and not name.endswith(_CHANGED):
                    os.symlink(below + path, "%s/%s" % (target, name))
                else:
                    _copy(below + path, "%s/%s" % (target, name))


def _walk(top: str, first: str) -> "Iterator[tuple[str, list[str], list[str]]]":
    """As os.walk, with paths from *top*, each of which begins with a slash."""
    waiting = [first]
    while waiting:
        part = waiting.pop()
        directories, files = [], []
        with os.scandir(top + part) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                elif entry.is_file():
                    files.append(entry.name)
        yield part, directories, files
        waiting += [part + "/" + name for name in directories]


def _copy(source: str, target: str) -> None:
    with open(source, "rb") as reader, open(target, "xb") as writer:
        piece = reader.read(_PIECE)
        while piece:
            writer.write(piece)
            piece = reader.read(_PIECE)


def is_group(path: str) -> bool:
    """Whether a file has the absolute paths of the files beside it, by its name: Triton's."""
    return path.rpartition("/")[2].startswith(GROUP)


def rewrite_group(path: str, directory: str) -> bool:
    """Let a group file be one of *directory*. Returns whether its paths were others.

    Where they lead to nothing, Triton compiles anew and does not say so. Raises OSError.
    """
    # The name of a kernel's directory is the same in each cache.
    within = os.fsencode("/%s/" % os.path.basename(directory))
    new = os.fsencode(directory).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    with open(path, "r+b") as stream:
        data = stream.read()
        # The strings of JSON are between quotes, and Triton's names have none.
        pieces = data.split(b'"')
        for number, piece in enumerate(pieces):
            above, found, name = piece.rpartition(within)
            if found and above.startswith(b"/"):
                pieces[number] = b"%s/%s" % (new, name)
        right = b'"'.join(pieces)
        if right != data:
            stream.seek(0)
            stream.write(right)
            stream.truncate()
    return right != data


def apart(directory: str, mark: str, fields: "dict[str, str]") -> str:
    """How the places in a directory differ from this one, by the one that is nearest; "" if none.

    *mark* is the file in a place that has its fields, *fields* are those of this place.
    """
    nearest = None
    for name in os.listdir(directory):
        text = _read("%s/%s/%s" % (directory, name, mark)).decode("utf-8", "replace")
        its = dict(line.split(" ", 1) for line in text.split("\n") if " " in line)
        if its:
            different = [one for one in fields if its.get(one) != fields[one]]
            if nearest is None or len(different) < len(nearest[1]):
                nearest = (its, different)
    if nearest is None:
        return ""
    its, different = nearest
    # The digest says that something is another, but not what.
    plain = [one for one in different if one != "digest"]
    told = [
        "%s is %s there, here %s" % (one, its.get(one) or "unknown", fields[one] or "unknown")
        for one in plain
    ]
    return ", ".join(told) or "they were made under another version of policy " + fields["policy"]


def remove(directory: str) -> None:
    """Remove a place that is not finished, as far as possible."""
    import shutil

    shutil.rmtree(directory, ignore_errors=True)
