"""Evidence at a start: whether there is any, and whether it is for the machine that this is."""

import marshal
import os

from rocm_autopatch import _RECORD, policy_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def any_file() -> bool:
    """Whether a site has evidence files."""
    for directory in policy_dirs.directories():
        try:
            if any(name.endswith(".json") for name in os.listdir(directory + "/evidence")):
                return True
        except OSError:
            pass
    return False


def settle(plan: "Any", say: "Callable[[str, str], None]") -> None:
    """Make of a baked plan the one with evidence, if this is the machine that it is for.

    A second call does nothing. *say* is ``startup.say``.
    """
    packed = plan.get("evidence")
    if not packed:
        return
    from rocm_autopatch.evidence import machine

    evidence = marshal.loads(packed)
    here = machine.machine_here()
    different = [
        "%s %s, here is %s" % (name, evidence["machine"][name], here[name] or "unknown")
        for name in machine.NAMES
        if here[name] != evidence["machine"][name]
    ]
    if different:
        note = "evidence is not used: the plan was baked for " + ", and for ".join(different)
        _RECORD["notes"].append(note)
        say("evidence", note + '; "rocm-autopatch prove" makes evidence for this machine')
    else:
        plan.update(evidence["plan"])
        _RECORD["evidence"] = evidence["label"]
    # Last: another thread may be about to patch another module by this plan.
    plan["evidence"] = b""
