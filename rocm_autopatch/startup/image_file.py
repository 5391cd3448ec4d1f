"""The image's name, from the file that an overlay or a site has."""

import os

from rocm_autopatch import _SITE, startup, trust

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def read(facts: "dict[str, tuple[str, str]]", directories: "Sequence[str]" = (_SITE,)) -> None:
    """Take the image's name from the first of these that has one, if it can be trusted."""
    for directory in directories:
        path = directory + "/image"
        if not os.access(path, os.F_OK):
            continue
        try:
            image = trust.read(path, 4096).decode("utf-8", "replace").partition("\n")[0].strip()
        except OSError as error:
            why = trust.reason(path, error)
            startup.fail("image", "the name of the image is not used: %s" % why)
            return
        if image:
            facts["image"] = (image, path)
            return
