"""The directories whose policies apply: those that a variable names, then /etc/rocm-autopatch.

A fleet's or a namespace's directory is mounted beside what an image or a Pod has in
/etc/rocm-autopatch, so that nothing hides anything. A process loads this only where the variable is
set, or to read policies.
"""

import errno
import os

from rocm_autopatch import _SITE, trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

# Absolute paths with colons between them, general to specific. /etc/rocm-autopatch, which an image
# or a Pod has for itself, is more specific than all of them.
VARIABLE = "ROCM_AUTOPATCH_SITE"


# One wrong letter in a fleet's parameters must not turn off what applies without the directory.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def directories() -> "list[str]":
    """Where policies, image records and evidence are read, general to specific."""
    return [*named(), _SITE]


def named() -> "list[str]":
    """The directories that the variable names and that are there."""
    return [directory for directory, _ in read_sites()[0]]


def read_sites() -> "tuple[list[tuple[str, list[str]]], list[tuple[str, str]], Optional[str]]":
    """What is in each directory that the variable names, what is left out, and what is wrong.

    What is no directory is left out, with the reason. The text says why a directory that is there
    can't be read, None if all can.
    """
    found, left_out = [], []
    wrong: Optional[str] = None
    for directory in filter(None, trust.named(VARIABLE).split(":")):
        if not os.path.isabs(directory):
            left_out.append((directory, "it is no absolute path"))
            continue
        names: list[str] = []
        try:
            names = os.listdir(directory)
        except (OSError, ValueError) as error:
            why = str(getattr(error, "strerror", error))
            if is_missing(error):
                left_out.append((directory, why))
                continue
            wrong = wrong or "%s: %s: %s" % (VARIABLE, directory, why)
        found.append((directory, names))
    return found, left_out, wrong


def is_missing(error: Exception) -> bool:
    """Whether an exception says that nothing is at a path. For another reason, something may be."""
    return getattr(error, "errno", 0) in _NOT_THERE
