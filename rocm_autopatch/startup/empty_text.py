"""Variables that are set to nothing: ``NAME=``.

A start loads it only where the value of any variable is the empty text.
"""

import marshal
import os

from rocm_autopatch import startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rocm_autopatch.plan import Plan


def rules(plan: "Plan") -> "list[tuple[Any, ...]]":
    """The rules of the plan for variables whose value is the empty text here."""
    packed: Any = plan["empty"]
    rows = marshal.loads(packed) if type(packed) is bytes else packed
    present = os.environb
    return [rule for rule in startup.for_this_torch(rows) if present.get(rule[0].encode()) == b""]
