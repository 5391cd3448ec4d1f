"""The plan: what crosses from the policy half to the start-up half, as plain data.

Strings, numbers, booleans, None, tuples, and one dict at the top: readable without a parser. The
policy half lowers policies to it, ``_start`` carries it out. In a file it is marshalled, in a
version of marshal's format that every Python from 3.4 on reads.
"""

from __future__ import annotations

import marshal
from typing import Any, TypedDict

from rocm_autopatch import _start

FORMAT = 3
_MARSHAL_VERSION = 4


class Plan(TypedDict):
    """What a process has to do.

    ``env`` rows are (name, action, value, layer, why, since, until): action ``delete`` (value
    None), ``default`` or ``set``; those named in ``insist`` hold against a user too. ``patches``
    rows are (patch, target module, entries); an entry begins with its name and ends with layer,
    why, since and until, and each patch documents what is between. ``targets`` are the modules that
    the patches wait for. ``since`` and ``until`` are torch releases as tuples of numbers, () where
    open; of rows with one name, the last that is for this torch counts. ``layers`` are names,
    general to specific, and ``counts`` is what the one line says of the patches: "12 config values,
    2 compile modes".
    """

    format: int
    policy: str
    layers: tuple[str, ...]
    env: tuple[tuple[Any, ...], ...]
    insist: tuple[str, ...]
    counts: str
    targets: tuple[str, ...]
    patches: tuple[tuple[str, str, tuple[Any, ...]], ...]


def to_file(plan: Plan, **more: Any) -> bytes:
    """The plan as a file that ``_start.load`` reads, with *more* beside its keys.

    The patches are marshalled apart: most processes never import torch.
    """
    return pack({**plan, "patches": marshal.dumps(plan["patches"], _MARSHAL_VERSION), **more})


def pack(value: Any) -> bytes:
    """Plain data as a file that ``_start.load`` reads."""
    return _start.MAGIC + _start.UNSEALED + marshal.dumps(value, _MARSHAL_VERSION)


def seal(file: bytes) -> bytes:
    """The file with a digest, by which this version of Python notices damage."""
    data = file[len(_start.MAGIC + _start.UNSEALED) :]
    return _start.MAGIC + _start.digest(data) + data
