"""The baseline: the variables that the image itself carries, as the overlay's build recorded them.

A layer of an image can't unset what a layer below it sets, so a start does. By the baseline it
tells the image's value from one that a user gave, with ``docker run -e NAME=VALUE`` say.
"""

import os

from rocm_autopatch import _RECORD, _SITE, _start, trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

PATH = _SITE + "/baseline"
LONGEST = 1 << 20


def read() -> "Optional[dict[str, str]]":
    """The image's variables, None where nobody recorded them or anybody may have."""
    if not os.access(PATH, os.R_OK):
        return None
    try:
        # As "env -0" writes it: a value may hold anything but a NUL.
        data = trust.read(PATH, LONGEST)
    except OSError as error:
        note = "there is no baseline: " + trust.reason(PATH, error)
        if note not in _RECORD["notes"]:
            _RECORD["notes"].append(note)
            # What a user gave is changed now.
            _start.say("baseline", note)
        return None
    # As os.environ decodes.
    lines = data.decode("utf-8", "surrogateescape").split("\0")
    return dict([line.split("=", 1) for line in lines if "=" in line])


def origin(name: str, value: "Optional[str]") -> str:
    """Whose value it is: ``image``, ``user``, ``unknown`` without a baseline, "" if not set."""
    if value is None:
        return ""
    image = read()
    if image is None:
        return "unknown"
    return "image" if image.get(name) == value else "user"
