"""A baked plan that does not fit this process: what is said then, and the fact that may differ."""

# The source of the fact "image" in a baked plan, if bake got it as an option.
BAKED_IMAGE = "rocm-autopatch bake --image"


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from rocm_autopatch.plan import BakedPlan


def told(why: str, plan: "Optional[BakedPlan]") -> "tuple[str, str]":
    """A note for the record, and a line for stderr, on a baked plan that is not used.

    *why* names what differs. If it is a variable or ``gfx``, somebody wants something else than was
    baked here: that is no reason to bake again, and the line is "".
    """
    wish = why == "gfx" or why.startswith("ROCM_AUTOPATCH_")
    note = "the baked plan is not used: " + ("it was baked for another " if wish else "") + why
    options = ", ".join(_options(plan)) if plan else ""
    if options:
        note += "; these options of bake no longer apply: " + options
    return note, "" if wish else note + "; run rocm-autopatch bake again"


def _options(plan: "BakedPlan") -> "list[str]":
    """The options of bake that a start does not know of when it decides for itself."""
    found = []
    if plan["named"] and (b"ROCM_AUTOPATCH_POLICY", (b"",)) in plan["wishes"]:
        found.append("--policy " + plan["named"])
    image, source = plan["facts"].get("image", ("", ""))
    if source == BAKED_IMAGE:
        found.append("--image " + image)
    return found


def gfx(known: "dict[str, tuple[str, str]]") -> str:
    """The GPU's architecture, "" if unknown. It costs milliseconds, so few plans ask for it."""
    from rocm_autopatch.image import facts

    return facts.gather(known).values().get("gfx", "")
