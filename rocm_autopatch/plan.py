"""The plan: what crosses from the policy half to the start-up half, as plain data.

Strings, numbers, booleans, None, tuples, and one dict at the top: readable without a parser, as a
Python literal in a ``.pyc``. The policy half lowers policies to it, ``_start`` carries it out.
"""

from __future__ import annotations

from pprint import pformat
from typing import Any, TypedDict

FORMAT = 1


class Plan(TypedDict):
    """What a process has to do.

    ``env`` rows are (name, action, value, layer, why, since, until): action ``delete`` (value
    None), ``default`` or ``set``. ``patches`` rows are (patch, target module, entries); an entry
    begins with its name and ends with layer, why, since and until, and each patch documents what
    is between. ``since`` and ``until`` are torch releases as tuples of numbers, () where open; of
    rows with one name, the last that is for this torch counts. ``layers`` are names, general to
    specific.
    """

    format: int
    policy: str
    layers: tuple[str, ...]
    env: tuple[tuple[Any, ...], ...]
    patches: tuple[tuple[str, str, tuple[Any, ...]], ...]


def to_source(**names: object) -> str:
    """Python source that assigns each name its value, a literal."""
    lines = [
        f"{name} = {pformat(value, width=100, sort_dicts=False)}" for name, value in names.items()
    ]
    return "# Made from policies/*.yaml when the wheel was built.\n" + "\n".join(lines) + "\n"
