"""Whose value of a variable it is: the image's own, or one that a user gave.

A layer of an image can't unset what a layer below it sets, so a start does. It must tell the
image's value from one that a user gave, for example by ``docker run -e NAME=VALUE``. Either is
known from one side: the overlay's build, or the hook of a host that starts the container, records
the image's own variables, the baseline, and what starts a container may name those that it sets
(``ROCM_AUTOPATCH_GIVEN``).
"""

import os

from rocm_autopatch import _BASELINE, _RECORD, _SITE, _read, trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Optional

    from rocm_autopatch.plan import Plan
    from rocm_autopatch.record.shapes import EnvRecord

PATH = _BASELINE
LONGEST = 1 << 20
# Names of variables, with commas between them: what a Pod itself sets (deploy/kubernetes).
VARIABLE = "ROCM_AUTOPATCH_GIVEN"
# Why a variable that is set is not changed. Only a baseline or VARIABLE tells the last.
GIVEN = (
    "it was set again after a start had changed it",
    "no image is known to set it",
    "a user set it, not the image",
)
# What the command of a pool's worker has in it: multiprocessing's, joblib's, Ray's.
WORKERS = (b"multiprocessing", b"loky", b"default_worker")

# What read() has said in this start, once it was asked.
_known: "list[Optional[dict[str, str]]]" = []


def read() -> "tuple[Optional[dict[str, str]], Optional[str]]":
    """The image's variables, and why they are not known.

    The variables are None where nobody recorded them, and where somebody else could have changed
    the record. Only in the second case there is a reason; else it is None.
    """
    if not os.access(PATH, os.R_OK):
        return None, None
    try:
        # As "env -0" writes it: a value may hold anything but a NUL. What a host's hook has put
        # beside our code is trusted like the code.
        data = trust.read(PATH, LONGEST, PATH.startswith(_SITE))
    except OSError as error:
        return None, "the baseline is not used: " + trust.reason(PATH, error)
    # As os.environ decodes.
    lines = data.decode("utf-8", "surrogateescape").split("\0")
    return dict([line.split("=", 1) for line in lines if "=" in line]), None


def named() -> "list[str]":
    """The variables that VARIABLE names. It is not there in most places."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def given(
    plan: "Plan", name: str, value: str, said: str, say: "Callable[[str, str], None]"
) -> "Optional[str]":
    """Who gave this value, in words of GIVEN; None if the image did, or if nobody knows.

    *said* is what ``startup.SAID`` holds: "=NAME" is a variable that a start in this process tree
    has changed. *say* is ``startup.say``.
    """
    if name in plan["insist"]:
        return None
    if "=" + name in said.split(","):
        return GIVEN[0]
    if name in named():
        return GIVEN[2]
    if not _known:
        _known.append(_told(say))
    if _known[0] is None:
        return GIVEN[1] if name in plan["image_only"] else None
    return GIVEN[2] if _known[0].get(name) != value else None


def _told(say: "Callable[[str, str], None]") -> "Optional[dict[str, str]]":
    """The image's variables, for a start. If the record can't be trusted, a line says why.

    In that case, a value that a user gave is changed like any other.
    """
    values, why = read()
    if why:
        _RECORD["notes"].append(why)
        say("baseline", why)
    return values


def tell(rows: "list[EnvRecord]", say: "Callable[[str, str], None]") -> None:
    """Write a line for each reason why variables were not changed."""
    for why in GIVEN:
        # Their values are not shown: they may be secrets.
        names = [name for (name, *_), _, status in rows if status == why]
        # The workers of a pool are many, and can't know of one another.
        if names and not (why is GIVEN[0] and _is_a_worker()):
            kind = "given%d" % GIVEN.index(why)
            say(kind, "not changed, because %s: %s" % (why, ", ".join(names)))


def _is_a_worker() -> bool:
    return any(map(_read("/proc/self/cmdline").count, WORKERS))


def origin(name: str, value: "Optional[str]", image: "Optional[dict[str, str]]") -> str:
    """Whose value of a variable it is: ``image`` or ``user``, "" where the variable is not set.

    It is ``unknown`` where *image* is None and nobody names the variable.
    """
    if value is None:
        return ""
    if name in named():
        return "user"
    if image is None:
        return "unknown"
    return "image" if image.get(name) == value else "user"
