"""``rocm-autopatch cache pack``: write a place to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.caches import CacheRefused, archive, places, users
from rocm_autopatch.cli import options
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


@dataclass(frozen=True)
class CachePackArguments:
    file: Path = position_field(parse=Path, metavar="FILE", help="the file that is written")
    place: str = option_field(
        "--place",
        parse=str,
        default="",
        metavar="NAME",
        help="another place of the root, as status names it",
    )
    even_if_used: bool = flag_field(
        "--even-if-used",
        help="also while processes use the place: what they are writing may be incomplete",
    )
    json: bool = options.json_flag()


def pack_place(arguments: CachePackArguments) -> CommandResult:
    here = places.place_here()
    path = here.root / arguments.place if arguments.place else here.place
    places.judge_directory(here.root)
    if path.parent != here.root or not (path / caches.MARK).exists():
        how = "cache status lists them" if arguments.place else "cache warm -- COMMAND makes one"
        raise CacheRefused(f"there is no place {path.name} in {here.root}; {how}")
    places.judge_directory(path)
    using = users.users_of(path)
    if using and not arguments.even_if_used:
        raise CacheRefused(
            f"{users.processes_text(using)} uses {path}: end it before, because it may be writing "
            "there; --even-if-used packs nevertheless"
        )
    done = archive.pack_place(places.look_at_place(path), arguments.file, wording.tell_packed)
    what = (
        f"{wording.count_files(done.files)}, {wording.size_text(done.unpacked)}, packed "
        f"{wording.size_text(done.size)}"
    )
    return CommandResult(
        lambda: [f"{arguments.file}: {what}", f"sha256:{done.sha256}"],
        lambda: {
            "file": str(arguments.file),
            "checksum": f"sha256:{done.sha256}",
            "bytes": done.size,
            "place": path.name,
            "files": done.files,
            "unpacked": done.unpacked,
            "left_out": done.notes,
        },
        remarks=[f"left out {one}" for one in done.notes],
    )


COMMAND = Command(
    CachePackArguments,
    pack_place,
    description=(
        "Write a place to FILE, a .tar.gz, and print its checksum. The same contents give the "
        "same bytes. Locks, builds of ninja and what is unfinished stay out."
    ),
    example="rocm-autopatch cache pack caches.tar.gz",
    statuses=WRONG_OR_DONE,
    page="caches.md",
)
