"""Plans as files, in the form that ``startup.load`` reads.

They are marshalled, in a version of marshal's format that every Python from 3.4 on reads.
"""

from __future__ import annotations

import marshal
from typing import Any

from rocm_autopatch import startup
from rocm_autopatch.plan import Plan

_MARSHAL_VERSION = 4


def content(plan: Plan) -> bytes:
    """A plan, or a baked one, as the content of a file.

    The patches are marshalled apart: most processes never import torch.
    """
    return pack({**plan, "patches": marshal.dumps(plan["patches"], _MARSHAL_VERSION)})


def pack(value: Any) -> bytes:
    """Plain data as the content of a file."""
    return startup.MAGIC + startup.UNSEALED + marshal.dumps(value, _MARSHAL_VERSION)


def seal(file: bytes) -> bytes:
    """The content with a digest, by which this version of Python notices damage."""
    data = file[len(startup.MAGIC + startup.UNSEALED) :]
    return startup.MAGIC + startup.digest(data) + data
