"""Plans as files, in the form that ``startup.load`` reads.

They are marshalled, in a version of marshal's format that every Python from 3.4 on reads.
"""

from __future__ import annotations

import _imp
import marshal
import zlib
from collections.abc import Mapping
from typing import Any

from rocm_autopatch import startup
from rocm_autopatch.plan import Plan

# The older version is the cheaper one to read: it has no references to what was there before. What
# is read by few starts has them, because its texts are often the same.
_MARSHAL_VERSION, _WITH_REFERENCES = 2, 4
# What few starts read is compressed: each start reads all bytes of the file.
_RARE = ("empty", "overruled")
_APART = ("patches", *_RARE)


def content(plan: Plan, shared: dict[str, bytes] | None = None) -> bytes:
    """A plan, or a baked one, as the content of a file.

    What few processes need is marshalled apart: most never import torch, and have no variable that
    is set to nothing. With *shared*, the part ``empty`` goes there under the name of its file, for
    ``empty_text.unpack_part``, because the built-in policies have the same.
    """
    packed: dict[str, bytes | str] = {**_packed(plan)}
    if shared is not None:
        part = packed["empty"]
        assert isinstance(part, bytes)
        packed["empty"] = name = f"empty-{zlib.crc32(part):08x}.part"
        shared[name] = part
    return pack({**plan, **packed})


def evidence(machine: Mapping[str, str], changes: Mapping[str, Any], label: str) -> bytes:
    """The field ``evidence`` of a baked plan: *changes* are parts of a plan."""
    packed = {**changes, **_packed(changes)}
    return _dumps({"machine": dict(machine), "plan": packed, "label": label})


def _packed(plan: Mapping[str, Any]) -> dict[str, bytes]:
    packed = {key: _dumps(part, _WITH_REFERENCES) for key, part in plan.items() if key in _APART}
    return {key: zlib.compress(part) if key in _RARE else part for key, part in packed.items()}


def pack(value: Any) -> bytes:
    """Plain data as the content of a file."""
    return startup.MAGIC + startup.UNSEALED + _dumps(value)


def _dumps(value: Any, version: int = _MARSHAL_VERSION) -> bytes:
    return marshal.dumps(value, version)


def seal(file: bytes) -> bytes:
    """The content with a digest, by which this version of Python notices damage."""
    data = file[len(startup.MAGIC + startup.UNSEALED) :]
    return startup.MAGIC + _imp.source_hash(startup.KEY, data) + data
