"""Variables that somebody set, and that a config key which a policy pins or sets overrules.

A start loads it only where a variable is set that torch reads for such a key.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from rocm_autopatch.plan import OverruledRow, Plan


def name_overruled(
    plan: "Plan",
    keep: "tuple[str, ...]",
    for_this_torch: "Callable[[tuple[OverruledRow, ...]], list[OverruledRow]]",
) -> str:
    """Each such variable, as the line on stderr says it; "" if there is none.

    *keep* is what ROCM_AUTOPATCH_KEEP names. *for_this_torch* is that of ``startup``.
    """
    # Where evidence is looked at later, it may lift a pin.
    if plan.get("evidence"):
        return ""
    from rocm_autopatch.patches import kept
    from rocm_autopatch.startup.empty_text import unpack_part

    rows = unpack_part(plan["overruled"])
    names: dict[str, None] = {}
    for about, text, equal, _, _ in for_this_torch(rows):
        name, key = about
        value = os.environb.get(name)
        if value is not None and (value == text) is equal and not kept(key, keep):
            names[name.decode()] = None
    return "".join(["overruled %s, " % name for name in names])
