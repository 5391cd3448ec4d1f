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
class Collected:
    """What was removed, and why the rest stays. Sizes are in bytes."""

    size: int  # what is left
    removed: list[places.Place] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)  # what was left over, and removed
    kept: dict[str, str] = field(default_factory=dict)  # the places that had to stay, and why


def collect(here: places.Here, most: int) -> Collected:
    """Remove left-overs, and the least recently used places until at most *most* bytes are there.

    A place that a process uses stays, and so does the place of this process. Raises OSError.
    """
    left = Collected(0)
    for path in places.unfinished(here.root):
        if time.time() - path.stat().st_mtime > _UNFINISHED_S:
            shutil.rmtree(path)
            left.unfinished.append(path)
        else:
            left.size += places.measure(path)[0]
    found = [*places.beneath(here.root), *places.unmarked_places(here.root)]
    found.sort(key=lambda place: (-place.used, place.path.name))
    left.size += sum(place.size for place in found)
    for place in reversed(found):
        if left.size <= most:
            break
        if place.path == here.place:
            left.kept[place.path.name] = "it is the place of starts here"
        elif processes := users.of(place.path):
            left.kept[place.path.name] = users.told(processes) + " uses it"
        else:
            _remove(place.path)
            left.size -= place.size
            left.removed.append(place)
    return left


def _remove(path: Path) -> None:
    # Renamed first: half a place is never seen as one.
    aside = path.with_name(f"{UNFINISHED}{os.getpid()}-{os.urandom(4).hex()}")
    os.rename(path, aside)
    shutil.rmtree(aside)
