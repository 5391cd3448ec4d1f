"""``rocm-autopatch cache gc``: remove what was not used for longest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rocm_autopatch.caches import gc, places
from rocm_autopatch.cli import options, values
from rocm_autopatch.cli.cache import wording
from rocm_autopatch.cli.command import Command, CommandResult, option_field


@dataclass(frozen=True)
class CacheGcArguments:
    max: int = option_field(
        "--max",
        parse=values.parse_size,
        default=0,
        required=True,
        metavar=values.SIZE,
        help="bytes, or with K, M, G or T: 500M, 10G",
    )
    json: bool = options.json_flag()


def collect_places(arguments: CacheGcArguments) -> CommandResult:
    here = places.place_here()
    places.judge_directory(here.root)
    done = gc.collect_places(here, arguments.max)
    remarks = []
    if done.size > arguments.max:
        why = "; ".join(f"{name} stays: {reason}" for name, reason in done.kept.items())
        why = why or "it is younger than an hour and unfinished"
        remarks = [f"more than {wording.size_text(arguments.max)} is left: {why}"]

    def lines() -> Iterator[str]:
        for path in done.unfinished:
            yield f"removed {path.name}, which was left over"
        for place in done.removed:
            yield f"removed {place.path.name}, {wording.size_text(place.size)}"
        yield f"{wording.size_text(done.size)} left in {here.root}"

    return CommandResult(
        lines,
        lambda: {
            "removed": [place.path.name for place in done.removed],
            "unfinished": [path.name for path in done.unfinished],
            "kept": done.kept,
            "bytes": done.size,
            "max": arguments.max,
        },
        status=1 if remarks else 0,
        remarks=remarks,
    )


COMMAND = Command(
    CacheGcArguments,
    collect_places,
    description=(
        "Remove what killed processes left over, and then the places that no start used for "
        "longest, until the root has at most SIZE. The place of this environment stays, and "
        "so does one that a process uses."
    ),
    example="rocm-autopatch cache gc --max 50G",
    statuses={
        0: "at most SIZE is left",
        1: "more than SIZE is left, or something is wrong with the root",
    },
    page="caches.md",
)
