"""Plans as files, in the form that ``startup.load`` reads.

They are marshalled, in a version of marshal's format that every Python from 3.4 on reads.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from typing import Any

from rocm_autopatch import startup
from rocm_autopatch.plan import Plan

_MARSHAL_VERSION = 4
_APART = ("patches", "empty", "overruled")


def content(plan: Plan) -> bytes:
    """A plan, or a baked one, as the content of a file.

    What few processes need is marshalled apart: most never import torch, and have no variable that
    is set to nothing.
    """
    return pack({**plan, **{key: _dumps(part) for key, part in plan.items() if key in _APART}})


def evidence(machine: Mapping[str, str], changes: Mapping[str, Any], label: str) -> bytes:
    """The field ``evidence`` of a baked plan: *changes* are parts of a plan."""
    packed = {key: _dumps(part) if key in _APART else part for key, part in changes.items()}
    return _dumps({"machine": dict(machine), "plan": packed, "label": label})


def pack(value: Any) -> bytes:
    """Plain data as the content of a file."""
    return startup.MAGIC + startup.UNSEALED + _dumps(value)


def _dumps(value: Any) -> bytes:
    return marshal.dumps(value, _MARSHAL_VERSION)


def seal(file: bytes) -> bytes:
    """The content with a digest, by which this version of Python notices damage."""
    data = file[len(startup.MAGIC + startup.UNSEALED) :]
    return startup.MAGIC + startup.digest(data) + data
