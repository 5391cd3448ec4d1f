"""How long the policy half takes to select among many image records.

    make bench

The records have four forms that a large site's images file may have, and go through the schema.
The time is that of the selection alone, the best of five.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.image import facts
from rocm_autopatch.policy import schema, select
from rocm_autopatch.policy.document import Entry, Node
from rocm_autopatch.policy.model import Policy

IMAGE = "rocm/sgl-dev:v0.5.8.post1-rocm700-mi35x-20260219"
COUNTS = (10, 1_000, 10_000, 100_000)


def node(value: object) -> Node:
    """A document's node, as document.parse makes it."""
    if isinstance(value, dict):
        return Node({key: Entry(node(key), node(item)) for key, item in value.items()}, 1, 1)
    if isinstance(value, list):
        return Node([node(item) for item in value], 1, 1)
    assert isinstance(value, (str, int))
    return Node(value, 1, 1)


FORMS: dict[str, Callable[[int], dict[str, object]]] = {
    "exact image": lambda i: {"image": f"rocm/sgl-dev:v0.5.{i}-rocm700-mi35x"},
    "repository and range": lambda i: {
        "name": f"r{i}",
        "when": {"repository": f"team/repository-{i}", "framework_version": ">=0.5"},
    },
    "tag pattern": lambda i: {"name": f"t{i}", "when": {"tag": f"*-mi35x-{i:08d}*"}},
    "one of a hundred ranges": lambda i: {
        "name": f"h{i}",
        "when": {"framework": "sglang", "framework_version": f">=0.{i % 100}"},
    },
    "each a range of its own": lambda i: {
        "name": f"d{i}",
        "when": {"framework": "sglang", "framework_version": f">=0.{i % 100}.{i // 100}"},
    },
}


def records(form: str, count: int) -> tuple[Policy, ...]:
    rows = [FORMS[form](number) for number in range(count)]
    return schema.read_images(node({"version": 1, "images": rows}), "images.yaml")


def main() -> None:
    place = facts.gather_facts(
        {"image": (IMAGE, "a benchmark"), "accelerator": ("rocm", "")}, ()
    ).values()
    print(f"{'milliseconds to select among':28}", *(f"{count:>9,}" for count in COUNTS))
    for form in FORMS:
        cells = []
        for count in COUNTS:
            rows = records(form, count)
            best = float("inf")
            for _ in range(5):
                start = time.perf_counter()
                select.records(rows, place)
                best = min(best, time.perf_counter() - start)
            cells.append(f"{best * 1000:9.2f}")
        print(f"{form:28}", *cells)


if __name__ == "__main__":
    main()
