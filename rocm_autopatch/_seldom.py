"""What a start does in few places: assumptions, an image's file, baked plans that do not fit."""

import os

from rocm_autopatch import _ASSUME, _RECORD, _SITE, _start, trust

FACTS = (
    *("accelerator", "torch", "hip", "rocm", "gfx", "gpu", "python", "image", "repository", "tag"),
    *("framework", "framework_version", "date", "os", "flavour"),
)


def assume(facts: "dict[str, tuple[str, str]]") -> None:
    """Take the facts of ROCM_AUTOPATCH_ASSUME in place of those found here."""
    for item in os.environ[_ASSUME].split(","):
        name, equals, value = item.strip().partition("=")
        if equals and name in FACTS:
            facts[name] = (value, _ASSUME)
        elif name:
            from rocm_autopatch import _say

            _say.fail(
                "assume",
                "%s: %r ignored, expected NAME=VALUE with a name of %s"
                % (_ASSUME, item.strip(), ", ".join(FACTS)),
            )


def read_image(facts: "dict[str, tuple[str, str]]") -> None:
    """Take the image's name from the file that an overlay wrote, if it is to be trusted."""
    path = _SITE + "/image"
    try:
        image = trust.read(path, 4096).decode("utf-8", "replace").partition("\n")[0].strip()
    except OSError as error:
        from rocm_autopatch import _say

        _say.fail("image", "no image is named: %s" % trust.reason(path, error))
        return
    if image:
        facts["image"] = (image, path)


def not_baked(why: str) -> None:
    """Say why the baked plan does not serve here.

    *why* is a variable or ``gfx`` where somebody wants something else than was baked: no reason to
    bake anew.
    """
    wish = why == "gfx" or why.startswith("ROCM_AUTOPATCH_")
    line = "the baked plan is not used: %s" % why
    if wish:
        line += " is not what it was baked for"
    _RECORD["notes"].append(line)
    if not wish:
        _start.say("baked", line + "; run rocm-autopatch bake again")


def gfx(known: "dict[str, tuple[str, str]]") -> str:
    """The GPU's architecture, "" if unknown. It costs milliseconds: asked where a layer does."""
    from rocm_autopatch.image import facts

    return facts.gather(known).values().get("gfx", "")
