"""Variables that are set to nothing: ``NAME=``.

A start loads it only where the value of any variable is the empty text.
"""

import marshal
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rocm_autopatch.plan import Plan


def rules(
    plan: "Plan", for_this_torch: "Callable[[Any], list[tuple[Any, ...]]]"
) -> "list[tuple[Any, ...]]":
    """The rules of the plan for variables whose value is the empty text here.

    *for_this_torch* is that of ``startup``.
    """
    packed: Any = plan["empty"]
    rows = for_this_torch(marshal.loads(packed) if type(packed) is bytes else packed)
    return [rule for rule in rows if os.environb.get(rule[0].encode()) == b""]
