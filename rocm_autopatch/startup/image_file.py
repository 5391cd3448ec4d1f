"""The image's name, from the file that an overlay wrote."""

from rocm_autopatch import _SITE, startup, trust

PATH = _SITE + "/image"


def read(facts: "dict[str, tuple[str, str]]") -> None:
    """Take the image's name, if the file can be trusted."""
    try:
        image = trust.read(PATH, 4096).decode("utf-8", "replace").partition("\n")[0].strip()
    except OSError as error:
        startup.fail("image", "the name of the image is not used: %s" % trust.reason(PATH, error))
        return
    if image:
        facts["image"] = (image, PATH)
