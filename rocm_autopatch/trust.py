"""What a start obeys: files that nobody else can change, and a caller who may name files.

A start obeys a regular file that only root and this process's user can change. The rule is that of
OpenSSH's StrictModes (``safe_path`` in its misc.c), for the file and for every directory and link
on the way to it: it belongs to root or to the effective user, and neither its group nor everybody
may write it. The rule is laxer in three places:

- What is mounted read-only is not judged: nobody in here can change it. A ConfigMap is mounted so,
  and with ``fsGroup`` its directories have mode 777; so is an image volume.
- A directory with the sticky bit (``/tmp``) may be writable by all: nobody can replace a file in it
  that belongs to root or to this user.
- A file may belong to the owner of the root of the mount that it is on. A directory of a host's
  user, mounted into a container, has files of that user, and whoever mounted it chose them.
"""

import os
import stat
import sys

from rocm_autopatch import _RECORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Optional

# Linux ends a lookup after as many (path_resolution(7)).
_MOST_LINKS = 40


def named(variable: str) -> str:
    """The value of a variable of ours that may name a file, "" if it is not obeyed.

    It is not obeyed under ``python -E`` and ``-I``, nor in a program that runs as another user than
    its caller: there the environment may be another's.
    """
    value = os.environ.get(variable, "").strip()
    if not value:
        return ""
    if sys.flags.ignore_environment:
        why = "under python -E or -I"
    elif os.getuid() != os.geteuid() or os.getgid() != os.getegid():
        why = "in a program that runs as another user than its caller"
    else:
        return value
    note = "%s is ignored %s" % (variable, why)
    if note not in _RECORD["notes"]:
        _RECORD["notes"].append(note)
    return ""


def is_path(name: str) -> bool:
    """Whether a policy's name is that of a file."""
    return "/" in name or name.endswith((".yaml", ".yml"))


def read(path: str, longest: int, judged: bool = True) -> bytes:
    """The first *longest* bytes of the file at *path*.

    Never waits: neither a pipe nor a device is read. Raises OSError if there is no regular file or
    it can't be read, and, if *judged*, PermissionError if somebody else can change it. reason()
    says why.
    """
    data, why = look(path, longest, judged)
    if why:
        raise PermissionError(why)
    return data


def look(path: str, longest: int, judged: bool = True) -> "tuple[bytes, Optional[str]]":
    """What :func:`read` returns, and, if *judged*, why it must not be obeyed, None if it may be.

    The reason is a sentence on the file, without its name.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        opened = os.fstat(descriptor)
        if not stat.S_ISREG(opened.st_mode):
            raise OSError("it is not a regular file")
        why = _objection(path, opened) if judged else None
        data = os.read(descriptor, longest)
        # A file system in a program (FUSE) may give less than there is.
        while data and len(data) < longest:
            more = os.read(descriptor, longest - len(data))
            if not more:
                break
            data += more
        return data, why
    finally:
        os.close(descriptor)


def directory(path: str, sticky: bool = False) -> "Optional[str]":
    """Why nothing in a directory may be obeyed, None if it may be. Raises OSError.

    The rule is that of a file. In it, nobody else may make a file either, so its sticky bit changes
    nothing. It does if *sticky*: then only what is there counts, and what this process makes there.
    """
    status = os.stat(path)
    if not stat.S_ISDIR(status.st_mode):
        return "it is not a directory"
    writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if writable and not sticky and not _is_read_only(path):
        return "others may write it; run chmod go-w %s" % path
    return _objection(path, status)


def reason(path: str, error: OSError) -> str:
    """Why :func:`read` raised, with the name of the file."""
    return "%s: %s" % (path, error.strerror or error)


def _objection(path: str, opened: os.stat_result) -> "Optional[str]":
    """Why an opened file must not be obeyed, None if it may be."""
    status = opened
    # os.path.abspath is wrong here: "link/.." is not the directory of the link.
    for step, status in _way(path if path.startswith("/") else os.getcwd() + "/" + path):
        link = stat.S_ISLNK(status.st_mode)
        sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        # The mode of a link says nothing.
        writable = 0 if link or sticky else status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        stranger = status.st_uid not in (0, os.geteuid())
        if not (writable or stranger) or _is_read_only(os.path.dirname(step) if link else step):
            continue
        what = "it" if step == path else step
        if writable:
            who, letters = "its group", "g"
            if writable & stat.S_IWOTH:
                who, letters = "everybody", "go" if writable & stat.S_IWGRP else "o"
            return "%s may write %s; run chmod %s-w %s" % (who, what, letters, step)
        if status.st_uid != os.stat(_mount(step)).st_uid:
            return "%s belongs to user %d, not to root or to this user" % (what, status.st_uid)
    # Whoever may rename files in a sticky directory may have put another file there by now.
    if not os.path.samestat(status, opened):
        return "it was replaced while it was read"
    return None


def _way(path: str) -> "Iterator[tuple[str, os.stat_result]]":
    """Each directory and link that opening an absolute path goes through, and the file."""
    yield "/", os.stat("/")
    rest = path.split("/")[::-1]
    here = ""
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            here = here.rpartition("/")[0]
        if part in ("", ".", ".."):
            continue
        step = here + "/" + part
        status = os.lstat(step)
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            here = step
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError("too many links on the way to it")
        to = os.readlink(step)
        if to.startswith("/"):
            here = ""
        rest += to.split("/")[::-1]


def _is_read_only(path: str) -> bool:
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _mount(path: str) -> str:
    """The root of the mount that a resolved path is on, "/" where that can't be told."""
    found = "/"
    try:
        with open("/proc/self/mountinfo", "rb") as stream:
            lines = stream.read().split(b"\n")
    except OSError:
        return found
    for line in lines:
        fields = line.split(b" ")
        if len(fields) < 5:
            continue
        # A space and such is an octal escape there (proc(5)).
        point = os.fsdecode(fields[4].decode("unicode_escape").encode("latin-1"))
        if len(point) > len(found) and (path + "/").startswith(point + "/"):
            found = point
    return found
