"""``rocm-autopatch cache pack``: write a place to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch.caches import CacheRefused, archive, fill_targets, image_layout, places, users
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
from rocm_autopatch.support.user_error import UserError


@dataclass(frozen=True)
class CachePackArguments:
    file: Path = position_field(
        parse=values.parse_path, metavar="FILE", help="the file that is written"
    )
    place: str = option_field(
        "--place",
        parse=str,
        default="",
        metavar="NAME",
        help="another place of the root, as status names it",
    )
    target: str = option_field(
        "--for",
        parse=str,
        default="",
        metavar="TARGET",
        help="the place that cache fill --for TARGET has filled",
    )
    even_if_used: bool = flag_field(
        "--even-if-used",
        help="also while processes use the place: what they are writing may be incomplete",
    )
    oci: bool = flag_field(
        "--oci",
        help="as an OCI image with this place alone, for COPY --from or as a volume",
    )
    json: bool = options.json_flag()


def pack_place(arguments: CachePackArguments) -> CommandResult:
    if arguments.place and arguments.target:
        raise UserError("--place and --for each name a place: give one", status=2)
    here = places.place_here(
        fill_targets.target_named(arguments.target).driver_words if arguments.target else ""
    )
    path = here.root / arguments.place if arguments.place else here.place
    places.judge_directory(here.root)
    if path.parent != here.root or not (path / caches.MARK).exists():
        how = "cache warm -- COMMAND makes one"
        if arguments.place:
            how = "cache status lists them"
        elif arguments.target:
            how = f"cache fill --for {arguments.target} -- COMMAND makes one"
        raise CacheRefused(f"there is no place {path.name} in {here.root}; {how}")
    places.judge_directory(path)
    using = users.users_of(path)
    if using and not arguments.even_if_used:
        raise CacheRefused(
            f"{users.processes_text(using)} uses {path}: end it before, because it may be writing "
            "there; --even-if-used packs nevertheless"
        )
    pack = image_layout.pack_image if arguments.oci else archive.pack_place
    done = pack(places.look_at_place(path), arguments.file, wording.tell_packed)
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
        "same bytes. Locks, builds of ninja and what is unfinished stay out. With --oci, FILE is "
        "an image in the OCI layout, and its digest is printed."
    ),
    example="rocm-autopatch cache pack caches.tar.gz",
    statuses=WRONG_OR_DONE,
    page="caches.md",
)
