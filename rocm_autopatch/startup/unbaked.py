"""Where no baked plan serves: why one does not, and a plan that is lowered from YAML here."""

import sys

from rocm_autopatch import _RECORD, late_site, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from rocm_autopatch.plan import Plan


def told(why: str) -> "tuple[str, str]":
    """A note for the record, and a line for stderr, on a baked plan that is not used.

    *why* names what differs. If it is a variable or ``gfx``, somebody wants something else than was
    baked here: that is no reason to bake again, and the line is "".
    """
    note = "the baked plan is not used: %s" % why
    if why == "gfx" or why.startswith("ROCM_AUTOPATCH_"):
        return note + " is not what it was baked for", ""
    return note, note + "; run rocm-autopatch bake again"


def gfx(known: "dict[str, tuple[str, str]]") -> str:
    """The GPU's architecture, "" if unknown. It costs milliseconds: asked where a layer does."""
    from rocm_autopatch.image import facts

    return facts.gather(known).values().get("gfx", "")


def lower(policy: str) -> "Optional[Plan]":
    """The plan of this place, where *policy* is named, "" if none is. None, and said, if it fails.

    It takes tens of milliseconds, for PyYAML.
    """
    # PyYAML, packaging and the frameworks that a policy asks for may be in a directory that site
    # adds after us. It adds nothing that is there already, and keeps its order: so they go again.
    late = late_site.directories()
    sys.path += late
    try:
        from rocm_autopatch.policy import PolicyError, select

        try:
            return select.lowered(_RECORD["facts"], policy)
        except PolicyError as error:
            _RECORD["reason"] += ": it could not be used"
            startup.fail("policy", "nothing was changed: %s" % error)
            return None
    finally:
        for directory in late:
            sys.path.remove(directory)
