"""What our finder costs an import that has nothing to do with us.

This program runs in an interpreter in which we are active. Its argument is a directory, in which it
writes empty modules. Each import is done in three ways, in random order: without our finder, with
one in its place that does nothing, and with ours. The second shows what importlib itself costs: it
takes its lock around each finder. A module that is loaded already is found without any finder.

It prints JSON: what was imported, the nanoseconds of the first way, and for the two other ways the
median of their differences to it and the median absolute deviation.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

MODULES = 100


def nanoseconds(name: str, finders: list[Any]) -> int:
    sys.modules.pop(name, None)
    sys.meta_path = finders
    begin = time.perf_counter_ns()
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(name)
    return time.perf_counter_ns() - begin


def compare(names: Sequence[str], rounds: int, ways: Sequence[list[Any]]) -> list[float]:
    """The median of the first way, and the differences of the others to it."""
    times: list[list[int]] = [[] for _ in ways]
    order = list(range(len(ways)))
    for _ in range(rounds):
        for name in names:
            random.shuffle(order)
            for way in order:
                times[way].append(nanoseconds(name, ways[way]))
    found = [statistics.median(times[0])]
    for other in times[1:]:
        differences = [more - less for more, less in zip(other, times[0])]
        middle = statistics.median(differences)
        found += [middle, statistics.median(abs(one - middle) for one in differences)]
    return found


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    empty = [f"empty_{number:03d}" for number in range(MODULES)]
    for name in empty:
        (directory / f"{name}.py").touch()
    kinds = {
        "an empty module": (100, empty),
        "a module that does not exist": (300, [f"absent_{name}" for name in empty]),
    }
    sys.path[:] = [str(directory)]
    armed = list(sys.meta_path)
    without = [finder for finder in armed if "rocm_autopatch" not in repr(finder)]
    if len(without) == len(armed):
        sys.exit("no finder of ours is armed")
    nothing = SimpleNamespace(find_spec=lambda name, path=None, target=None: None)
    ways = (without, [nothing, *without], armed)
    random.seed(0)
    rows = []
    for kind, (rounds, names) in kinds.items():
        compare(names, 1, ways)
        rows.append([kind, *compare(names, rounds, ways)])
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
