"""Remove places that were not used for long, until a root has at most so many bytes."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from rocm_autopatch.caches import UNFINISHED, places, users

# What is younger may be in the making.
_UNFINISHED_S = 3600.0


@dataclass
class CollectedPlaces:
    """What was removed, and why the rest stays. Sizes are in bytes."""

    size: int  # what is left
    removed: list[places.CachePlace] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)  # what was left over, and removed
    kept: dict[str, str] = field(default_factory=dict)  # the places that had to stay, and why


def collect_places(here: places.StartPlace, most: int) -> CollectedPlaces:
    """Remove left-overs, and the least recently used places until at most *most* bytes are there.

    A place that a process uses stays, and so does the place of this process. Raises OSError.
    """
    left = CollectedPlaces(0)
    for path in places.unfinished_places(here.root):
        if time.time() - path.stat().st_mtime > _UNFINISHED_S:
            shutil.rmtree(path)
            left.unfinished.append(path)
        else:
            left.size += places.measure_place(path)[0]
    found = [*places.places_beneath(here.root), *places.unmarked_places(here.root)]
    found.sort(key=lambda place: (-place.used, place.path.name))
    left.size += sum(place.size for place in found)
    for place in reversed(found):
        if left.size <= most:
            break
        if place.path == here.place:
            left.kept[place.path.name] = "it is the place of starts here"
        elif processes := users.users_of(place.path):
            left.kept[place.path.name] = users.processes_text(processes) + " uses it"
        else:
            _remove_tree(place.path)
            left.size -= place.size
            left.removed.append(place)
    return left


def _remove_tree(path: Path) -> None:
    # Renamed first: half a place is never seen as one.
    aside = path.with_name(f"{UNFINISHED}{os.getpid()}-{os.urandom(4).hex()}")
    os.rename(path, aside)
    shutil.rmtree(aside)
