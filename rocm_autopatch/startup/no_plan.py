"""The policy that ROCM_AUTOPATCH_POLICY names has no plan that can be read: what is said then."""

import os

from rocm_autopatch import _HERE, _RECORD, startup


def refuse(policy: str) -> None:
    """Record and say why no policy is applied."""
    files = os.listdir(_HERE + "/plans")
    names = sorted([name[:-5] for name in files if name.endswith(".plan")])
    if policy in names:
        _RECORD["reason"] += ": its plan can't be used"
        why = "%s/plans/%s.plan can't be read, is damaged, or is of another release" % (
            _HERE,
            policy,
        )
        why += "; install rocm_autopatch again"
    else:
        _RECORD["reason"] += ": there is no such policy"
        why = "no such policy. Built-in policies: %s. " % ", ".join(names)
        why += "The name of a file has a / or ends in .yaml"
    startup.fail("policy", "no policy is applied: ROCM_AUTOPATCH_POLICY=%s: %s" % (policy, why))
