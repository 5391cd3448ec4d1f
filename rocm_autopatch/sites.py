"""The directories whose policies apply: those that a variable names, then /etc/rocm-autopatch.

A fleet's or a namespace's directory is mounted beside what an image or a Pod has in
/etc/rocm-autopatch, so that nothing hides anything. A process loads this only where the variable is
set, or to read policies.
"""

import os

from rocm_autopatch import _SITE, trust

# Absolute paths with colons between them, general to specific. /etc/rocm-autopatch, which an image
# or a Pod has for itself, is more specific than all of them.
VARIABLE = "ROCM_AUTOPATCH_SITE"


def directories() -> "list[str]":
    """Where policies, image records and evidence are read, general to specific."""
    return [*filter(os.path.isabs, named()), _SITE]


def names() -> "list[str]":
    """What is in the directories that the variable names. Raises OSError where wrong() says why."""
    return [name for directory in named() for name in os.listdir(directory)]


def wrong() -> str:
    """Why the policies in what the variable names can't be known, "" if they can."""
    for directory in named():
        if not os.path.isabs(directory):
            return "%s: %s is no absolute path" % (VARIABLE, directory)
        try:
            os.listdir(directory)
        except (OSError, ValueError) as error:
            return "%s: %s: %s" % (VARIABLE, directory, getattr(error, "strerror", error))
    return ""


def named() -> "list[str]":
    """The directories that the variable names."""
    given = trust.named(VARIABLE)
    return [directory for directory in given.split(":") if directory]
