# mypy: disable-error-code="import-not-found, no-any-return"
"""How much memory graphs of training take, in segments of torch's allocator and in one piece.

    python experiments/gpu/segments.py record NAME FILE
    python experiments/gpu/segments.py simulate FILE ...

``record`` is for an interpreter with a GPU, torch, and what the model needs (``usual-resnet50`` and
the like, of regions.py): it makes some steps, and keeps what the allocator noted of the memory that
most captures lie in. ``simulate`` gives that to a model of torch 2.11's allocator, and prints MiB:
what the segments really had; what the simulation says they have where each value gets its own; what
it says where each capture takes one piece first for what it will leave in many values; and what
values take at most. Our graphs differ in one point: a backward that overwrites what it reads takes
no piece.
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

MIB = 1 << 20


class Event(NamedTuple):
    """An allocation, or that a value is freed; *capture* is the number of its capture, if any."""

    allocates: bool
    address: int
    size: int
    capture: int | None


class Block(NamedTuple):
    """A part of a segment."""

    segment: int
    start: int
    size: int


class Allocator:
    """torch 2.11's allocator of device memory, as far as one memory of graphs uses it.

    A value of at most 1 MiB lies in a segment of 2, one of less than 10 in a segment of 20, others
    in segments of their size. The smallest free block that is large enough is taken, and divided.
    """

    def __init__(self) -> None:
        self.total = 0
        self._is_small: list[bool] = []
        self._free: list[Block] = []

    def allocate(self, size: int) -> Block:
        """Take a block."""
        size = -(-size // 512) * 512
        small = size <= MIB
        fits = [
            one for one in self._free if one.size >= size and self._is_small[one.segment] == small
        ]
        if fits:
            found = min(fits, key=lambda one: (one.size, one.segment, one.start))
            self._free.remove(found)
        else:
            whole = (
                2 * MIB
                if small
                else 20 * MIB
                if size < 10 * MIB
                else -(-size // (2 * MIB)) * 2 * MIB
            )
            found = Block(len(self._is_small), 0, whole)
            self._is_small.append(small)
            self.total += whole
        rest = found.size - size
        if rest >= 512 if small else rest > MIB:
            self._free.append(Block(found.segment, found.start + size, rest))
            found = found._replace(size=size)
        return found

    def free(self, block: Block) -> None:
        """Give a block back. It is one with its free neighbours."""
        for other in [*self._free]:
            if other.segment != block.segment:
                continue
            if other.start + other.size == block.start or block.start + block.size == other.start:
                self._free.remove(other)
                start = min(other.start, block.start)
                block = Block(block.segment, start, other.size + block.size)
        self._free.append(block)


def simulate(events: list[Event], pieces: bool) -> tuple[float, float]:
    """The MiB of segments at the end, and of values at most."""
    left = left_side_by_side(events) if pieces else {}
    allocator, live = Allocator(), dict[int, tuple[Block, int]]()
    now = most = 0
    for event in events:
        if event.allocates:
            piece = left.pop(event.capture, 0) if event.capture is not None else 0
            if piece:
                allocator.free(allocator.allocate(piece))
            live[event.address] = allocator.allocate(event.size), event.size
            now += event.size
            most = max(most, now)
        elif event.address in live:
            block, size = live.pop(event.address)
            allocator.free(block)
            now -= size
    return allocator.total / MIB, most / MIB


def left_side_by_side(events: list[Event]) -> dict[int, int]:
    """By the number of a capture, the bytes of a piece for what it leaves."""
    live: dict[int, Event] = {}
    left: dict[int, int] = {}

    def close(capture: int | None) -> None:
        sizes = [one.size for one in live.values() if one.capture == capture]
        if capture is not None:
            left[capture] = sum(size for size in sizes if MIB < size < sum(sizes) / 8)

    current: int | None = None
    for event in events:
        if event.allocates:
            if event.capture != current:
                close(current)
                current = event.capture
            live[event.address] = event
        else:
            live.pop(event.address, None)
    close(current)
    return left


def record(name: str, file: Path) -> None:
    """Make steps of training, and keep what the allocator noted."""
    import regions
    import torch

    regions.use_our_graphs()
    torch.cuda.memory._record_memory_history(
        enabled="all", context="alloc", stacks="python", max_entries=1_000_000
    )
    run_steps = regions._make_steps(name, True)
    for _ in range(6):
        run_steps(1)
    noted: Any = torch.cuda.memory._snapshot()["device_traces"][0]
    rows, number, before = [], 0, False
    for one in noted:
        functions = {frame["name"] for frame in one.get("frames", ())}
        captures = "_record" in functions
        if one["action"] == "alloc":
            number += captures and not before
            before = captures
        if "_take_piece" not in functions:
            rows.append((one["action"], one["addr"], one["size"], number if captures else None))
    segments = [
        (one["address"], one["total_size"], str(one["segment_pool_id"]))
        for one in torch.cuda.memory_snapshot()
    ]
    with gzip.open(file, "wt") as stream:
        json.dump({"segments": segments, "events": rows}, stream)


def read(file: Path) -> tuple[float, list[Event]]:
    """The MiB of the memory that most captures lie in, and what happened there."""
    with gzip.open(file, "rt") as stream:
        kept = json.load(stream)
    segments = sorted(map(tuple, kept["segments"]))
    starts = [address for address, _, _ in segments]

    def segment_of(address: int) -> tuple[int, int, str] | None:
        at = bisect.bisect_right(starts, address) - 1
        found = segments[at]
        return found if at >= 0 and address < found[0] + found[1] else None

    rows = [(segment_of(row[1]), *row) for row in kept["events"]]
    captured = Counter[str]()
    since: dict[int, int] = {}
    for number, (segment, action, _, size, capture) in enumerate(rows):
        if segment and action == "segment_alloc":
            # Others lay at these addresses before.
            since[segment[0]] = number
        if segment and action == "alloc" and capture is not None:
            captured[segment[2]] += size
    pool = captured.most_common(1)[0][0]
    events = [
        Event(action == "alloc", address, size, capture)
        for number, (segment, action, address, size, capture) in enumerate(rows)
        if segment and segment[2] == pool and number >= since.get(segment[0], 0)
        if action in ("alloc", "free_completed")
    ]
    return sum(size for _, size, name in segments if name == pool) / MIB, events


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description="Memory of graphs, in segments and in one piece.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("record")
    command.add_argument("name")
    command.add_argument("file", type=Path)
    commands.add_parser("simulate").add_argument("file", type=Path, nargs="+")
    args = parser.parse_args()
    if args.command == "record":
        record(args.name, args.file)
        return
    for file in args.file:
        real, events = read(file)
        segments, most = simulate(events, False)
        piece, _ = simulate(events, True)
        print(
            f"{file.name}: real {real:.0f}, in segments {segments:.0f}, in one piece {piece:.0f},"
            f" values at most {most:.0f}"
        )


if __name__ == "__main__":
    main()
