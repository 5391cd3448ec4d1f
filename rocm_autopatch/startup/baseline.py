"""The baseline: the variables that the image itself carries, as the overlay's build recorded them.

A layer of an image can't unset what a layer below it sets, so a start does. The baseline tells the
image's value of a variable from one that a user gave, for example by ``docker run -e NAME=VALUE``.
"""

import os

from rocm_autopatch import _RECORD, _SITE, trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Optional

PATH = _SITE + "/baseline"
LONGEST = 1 << 20


def read() -> "tuple[Optional[dict[str, str]], str]":
    """The image's variables, and why they are not known.

    The variables are None where nobody recorded them, and where somebody else could have changed
    the record. Only in the second case the reason is not "".
    """
    if not os.access(PATH, os.R_OK):
        return None, ""
    try:
        # As "env -0" writes it: a value may hold anything but a NUL.
        data = trust.read(PATH, LONGEST)
    except OSError as error:
        return None, "the baseline is not used: " + trust.reason(PATH, error)
    # As os.environ decodes.
    lines = data.decode("utf-8", "surrogateescape").split("\0")
    return dict([line.split("=", 1) for line in lines if "=" in line]), ""


def told(say: "Callable[[str, str], None]") -> "Optional[dict[str, str]]":
    """The image's variables, for a start. If the record can't be trusted, a line says why.

    In that case, a value that a user gave is changed like any other.
    """
    values, why = read()
    if why:
        _RECORD["notes"].append(why)
        say("baseline", why)
    return values


def origin(name: str, value: "Optional[str]", image: "Optional[dict[str, str]]") -> str:
    """Whose value of a variable it is: ``image``, ``user``, or ``unknown`` where *image* is None.

    It is "" where the variable is not set.
    """
    if value is None:
        return ""
    if image is None:
        return "unknown"
    return "image" if image.get(name) == value else "user"
