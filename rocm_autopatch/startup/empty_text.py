"""Variables that are set to nothing: ``NAME=``.

A start loads it only where the value of any variable is the empty text.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Union

    from rocm_autopatch.plan import EnvRow, Plan, Row


def empty_rules(
    plan: "Plan", for_this_torch: "Callable[[tuple[EnvRow, ...]], list[EnvRow]]"
) -> "list[EnvRow]":
    """The rules of the plan for variables whose value is the empty text here.

    *for_this_torch* is that of ``startup``.
    """
    found = []
    for rule in for_this_torch(unpack_part(plan["empty"])):
        name, _, _, _, _, _, _ = rule  # plan.ENV_FIELDS
        if os.environb.get(name.encode()) == b"":
            found.append(rule)
    return found


def unpack_part(part: "Union[bytes, str, tuple[Row, ...]]") -> "tuple[Row, ...]":
    """A part of a plan that few starts read: of a file, or lowered here; a text is the name of a
    file beside the plans, which several plans have."""
    if isinstance(part, str):
        from rocm_autopatch import _HERE, _read

        part = _read("%s/plans/%s" % (_HERE, part))
    if not isinstance(part, bytes):
        return part
    # Imported only here, because it is a shared library.
    import marshal
    import zlib

    rows: tuple[Row, ...] = marshal.loads(zlib.decompress(part))
    return rows
