"""A baked plan that does not fit this process: what is said then, and the fact that may differ."""

import os
import sys

# The source of the fact "image" in a baked plan, if bake got it as an option.
BAKED_IMAGE = "rocm-autopatch bake --image"

# How its note begins, and goes on where somebody wants something else than was baked here.
UNUSED, WISHED = "the baked plan is not used: ", "it was baked for another "

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from rocm_autopatch.plan import BakedPlan


def told(why: str, plan: "Optional[BakedPlan]") -> "tuple[str, str]":
    """A note for the record, and a line for stderr, on a baked plan that is not used.

    *why* names what differs. If it is a variable, ``gfx`` or where this process looks for modules,
    somebody wants something else than was baked here: that is no reason to bake again, and the line
    is "".
    """
    wish = why == "gfx" or why.startswith("ROCM_AUTOPATCH_")
    if not wish and plan and _out_of_sight(plan["torch"]):
        wish, why = True, "sys.path: " + why
    note = UNUSED + (WISHED if wish else "") + why
    options = ", ".join(_options(plan)) if plan else ""
    if options:
        note += "; these options of bake no longer apply: " + options
    return note, "" if wish else note + "; run rocm-autopatch bake again"


def _out_of_sight(torch: str) -> bool:
    """Whether a torch/version.py is there, but this process does not look there.

    So it is where PYTHONPATH names torch's directory, and a Python is started with -I or -E or
    without the variable.
    """
    if not os.access(torch, os.R_OK):
        return False
    from rocm_autopatch import late_site

    return torch[: -len("/torch/version.py")] not in (*sys.path, *late_site.directories())


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

    return facts.gather_facts(known).values().get("gfx", "")
