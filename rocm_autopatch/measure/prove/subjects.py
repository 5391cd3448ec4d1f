"""What is tried: each mode and switch as a policy of its own, and the mode that programs ask for.

The base is ``default``. All ratios are to it.
"""

from __future__ import annotations

from typing import Any

from rocm_autopatch.switches import MODES, SWITCH_GROUP, SWITCHES, EvidenceSubject, Switch

BASE = MODES[0].name


def _of_switch(row: Switch) -> EvidenceSubject:
    """A row of the registry as a subject: the policy safe, with the value of the switch."""
    policy: dict[str, Any] = {"extends": ["safe"]}
    keys: tuple[str, ...] = ()
    if row.is_variable:
        policy["env"] = {row.key: {"set": row.value, "insist": True}}
    else:
        module, key = row.setting
        policy["config"] = {module: {key: {"pin": row.value, "insist": True}}}
        keys = (f"{module}.{key}",)
    about = (row.key, *row.also)
    return EvidenceSubject(row.subject, row.proven, SWITCH_GROUP, None, policy, keys, about=about)


SUBJECTS: dict[str, EvidenceSubject] = {
    subject.name: subject
    for subject in (*MODES, *(_of_switch(row) for row in SWITCHES if row.subject))
}
