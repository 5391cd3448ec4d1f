"""Which signatures have to go so that there are not too many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

# So many signatures without a graph are known for each one that may have one.
_IDLE = 8


class UsedEntry(Protocol):
    """It knows by its owner's clock when it first appeared and when it was used last."""

    first: int
    used: int


Entry = TypeVar("Entry", bound=UsedEntry)
Key = TypeVar("Key")


def choose_evicted(
    entries: Mapping[Key, Entry], new: Entry, limit: int, holds: Callable[[Entry], bool]
) -> list[Key] | None:
    """The keys that have to go before *new* may hold one more thing; None if it may not.

    *holds* says whether an entry holds something, and at most *limit* may.
    """
    held = [(key, one) for key, one in entries.items() if holds(one)]
    if len(held) < limit:
        return []
    key, oldest = min(held, key=lambda item: item[1].used)
    # It was used after the new one first appeared, so it is needed, too. If both took turns, they
    # would be made again and again.
    return None if oldest.used > new.first else [key]


def choose_forgotten(
    entries: Mapping[Key, Entry], limit: int, holds: Callable[[Entry], bool]
) -> list[Key]:
    """The key that has to go before there may be one more entry that holds nothing, if one has."""
    idle = [key for key, one in entries.items() if not holds(one)]
    return [min(idle, key=lambda key: entries[key].used)] if len(idle) >= _IDLE * limit else []
