"""``ROCM_AUTOPATCH_WATCHDOG``: when the watchdog warns, for a user without a policy of their own.

It becomes a row of the plan, so all else is as with a policy's ``watchdog``. It is read when torch
is imported, and only where it is set.
"""

import os

from rocm_autopatch import _RECORD, OFF, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional, Union

    from rocm_autopatch.plan import PatchEntry, PatchRow

VARIABLE = "ROCM_AUTOPATCH_WATCHDOG"
PATCH = "watchdog"
# In seconds: as long as a policy may say (policy.settings.LONGEST_DURATION).
LONGEST = 1000000000


def add(rows: "tuple[PatchRow, ...]") -> "tuple[PatchRow, ...]":
    """The patches of a plan, with what the variable says in place of the policy's watchdog.

    A plan without a watchdog stays without one; the report has a note. Of a wrong value, a line on
    stderr says that it counts for nothing.
    """
    said = os.environ.get(VARIABLE, "").strip()
    if not said:
        return rows
    off = said.lower() in OFF
    seconds = False if off else _seconds(said)
    if seconds is None:
        text = "%s=%s is neither a number of seconds above 0 nor off; what the policy says is used"
        if text % (VARIABLE, said) not in _RECORD["errors"]:
            startup.fail(PATCH, text % (VARIABLE, said))
        return rows
    fields: dict[str, Optional[float]] = {"warn_after": seconds}
    if off:
        # As "watchdog: off" in a policy.
        fields["abort_after"] = None
    why = "a variable says it"
    ours = tuple((f"{PATCH}.{name}", its, VARIABLE, why, (), ()) for name, its in fields.items())
    return tuple(
        (name, target, (*_others(entries, ours), *ours) if name == PATCH else entries)
        for name, target, entries in rows
    )


def _others(
    entries: "tuple[PatchEntry, ...]", ours: "tuple[PatchEntry, ...]"
) -> "tuple[PatchEntry, ...]":
    """The entries of other fields."""
    names = {name for name, *_ in ours}
    others = []
    for entry in entries:
        name, *_ = entry
        if name not in names:
            others.append(entry)
    return tuple(others)


def _seconds(text: str) -> "Optional[Union[int, float]]":
    """A number of seconds, None if it is none that a policy could have."""
    try:
        number = float(text)
    except ValueError:
        return None
    # Of nan, the comparison is false.
    if not 0 < number <= LONGEST:
        return None
    return int(number) if number == int(number) else number
