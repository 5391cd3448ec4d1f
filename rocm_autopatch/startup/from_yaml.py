"""A plan that a start lowers from YAML: where a user's own policy is not baked."""

import sys

from rocm_autopatch import _RECORD, late_site, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from rocm_autopatch.plan import Plan


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
