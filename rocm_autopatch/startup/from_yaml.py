"""A plan that a start lowers from YAML: where a user's own policy is not baked."""

import sys

from rocm_autopatch import _RECORD, late_site, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

    from rocm_autopatch.plan import Plan


def lower(policy: str, needed: bool = True) -> "Optional[Plan]":
    """The plan of this place; *policy* is the named one, or "". If it fails, says why; None.

    It is not *needed* if it is wanted for evidence only: the plan in the wheel is there, too. It
    takes tens of milliseconds, most of them for PyYAML.
    """
    # PyYAML, packaging and the frameworks that a policy asks for may be in a directory that site
    # adds after our .pth line has run. site adds no directory twice and keeps its own order, so
    # these are taken off again.
    late = late_site.directories()
    sys.path += late
    try:
        from rocm_autopatch.policy import PolicyError

        try:
            from rocm_autopatch.policy import select

            lowered = select.lowered(_RECORD["facts"], policy)
        except (PolicyError, ImportError) as error:
            if not needed:
                startup.fail("evidence", "evidence is not used: %s" % error)
                return None
            _RECORD["reason"] = "the policy can't be used, see errors (%s)" % _RECORD["reason"]
            startup.fail("policy", "no policy is applied: %s" % error)
            return None
        for text in lowered.evidence.wrong:
            startup.fail("evidence", text)
        if lowered.plan != lowered.without:
            _RECORD["evidence"] = lowered.evidence.label
        else:
            for text in lowered.evidence.exceptions:
                startup.say("ledger", text)
        return lowered.plan
    finally:
        for directory in late:
            sys.path.remove(directory)
