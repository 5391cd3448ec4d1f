"""``rocm-autopatch cache seed``: unpack what ``pack`` has written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.caches import archive, places
from rocm_autopatch.cli import options, values
from rocm_autopatch.cli.cache import wording
from rocm_autopatch.cli.command import (
    Command,
    CommandResult,
    flag_field,
    option_field,
    position_field,
)
from rocm_autopatch.cli.statuses import WRONG_OR_DONE
from rocm_autopatch.startup import caches
from rocm_autopatch.support.text import wrapped


@dataclass(frozen=True)
class CacheSeedArguments:
    file: Path = position_field(parse=values.parse_path, metavar="FILE", help="the archive")
    checksum: str = option_field(
        "--checksum",
        parse=values.parse_checksum,
        default="",
        metavar="sha256:HEX",
        help="refuse FILE if it has another checksum than pack has printed",
    )
    for_other_place: bool = flag_field(
        "--for-other-place", help="take FILE for this place, although it was made for another one"
    )
    replace: bool = flag_field("--replace", help="remove what the place has, if it has something")
    into: Path | None = option_field(
        "--into",
        parse=values.parse_path,
        default=None,
        metavar="PATH",
        help=f"the directory of places to unpack into, such as {caches.LAYER} of an image",
    )
    json: bool = options.json_flag()


def seed_place(arguments: CacheSeedArguments) -> CommandResult:
    here = places.place_here()
    done = archive.seed_place(
        arguments.file,
        here,
        wording.tell_packed,
        checksum=arguments.checksum,
        other_place=arguments.for_other_place,
        replace=arguments.replace,
        into=arguments.into,
    )
    return CommandResult(
        lambda: _seeded_lines(arguments.file, done, here),
        lambda: {
            "place": str(done.place),
            "here": done.place.name == here.place.name,
            "owner": done.owner,
            "files": done.files,
            "bytes": done.unpacked,
            "differs": sorted(done.other),
            "rewritten": done.rewritten,
            "filled_for": done.filled_for,
        },
    )


COMMAND = Command(
    CacheSeedArguments,
    seed_place,
    description=(
        "Unpack FILE as a place of the root, as a whole or not at all. What is in it is code: "
        "whoever wrote FILE can run what they want in programs here. So FILE must be one that "
        "nobody else can write, made for the same kind of place."
    ),
    example="rocm-autopatch cache seed caches.tar.gz --checksum sha256:HEX",
    statuses=WRONG_OR_DONE,
    page="caches.md",
)


def _seeded_lines(file: Path, done: archive.SeededPlace, here: places.StartPlace) -> Iterator[str]:
    what = f"{wording.count_files(done.files)}, {wording.size_text(done.unpacked)}"
    yield f"{done.place}: {what}"
    yield f"  {file} belongs to {done.owner}"
    if done.filled_for:
        yield from wrapped(f"it was filled without a GPU, for {done.filled_for}", "  ", "    ")
    if done.other:
        told = places.differences_text(done.other)
        yield from wrapped(f"it was made for another place: {told}", "  ", "    ")
    if done.place.name != here.place.name:
        yield "  starts here do not use it; starts in a place with these fields do"
    elif here.unused:
        yield from wrapped(f"starts here do not use caches: {here.unused}", "  ", "    ")
    if done.rewritten:
        yield from wrapped(
            f"it was packed at another path. {wording.count_files(done.rewritten)} of Triton were "
            "put right; what else names the old path is compiled anew",
            "  ",
            "    ",
        )
