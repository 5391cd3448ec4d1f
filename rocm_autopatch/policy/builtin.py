"""The built-in policies as plans.

``setup.py`` writes these names into ``rocm_autopatch/_builtin.py`` when a wheel is built. Where
there is no such file, in a checkout, the start imports this module in its place.
"""

from __future__ import annotations

from rocm_autopatch.plan import Plan
from rocm_autopatch.policy import load, lower

# The policy of an accelerator whose image says nothing else.
DEFAULT = "safe"

_rows = load.images()
_differing = [row for row in _rows if row.env or row.config or row.compile_modes]
# Policy, or image whose row differs from its policy -> plan.
POLICIES: dict[str, Plan] = {
    **{name: lower.file(str(load.BUILTIN / f"{name}.yaml")) for name in load.names()},
    **{row.name: lower.lower(load.layers(row)) for row in _differing},
}
# Image reference -> key of POLICIES, known issues.
IMAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    row.name: (row.name if row in _differing else row.extends[0], row.known_issues) for row in _rows
}
