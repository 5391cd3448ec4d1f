"""``rocm-autopatch cache status``: the root of the caches, and its places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rocm_autopatch.caches import places
from rocm_autopatch.cli import options
from rocm_autopatch.cli.cache import wording
from rocm_autopatch.cli.command import Command, CommandResult
from rocm_autopatch.cli.statuses import WRONG_OR_DONE
from rocm_autopatch.startup import caches
from rocm_autopatch.support.text import wrapped

# A place that differs in more fields is not one that a reader expects to be the same.
_FEW = 3


@dataclass(frozen=True)
class CacheStatusArguments:
    json: bool = options.json_flag()


def show_places(_: CacheStatusArguments) -> CommandResult:
    here = places.place_here()
    places.judge_directory(here.root)
    refusal = "" if here.unused else here.place_refusal() or ""
    found = places.places_beneath(here.root)
    layer = places.places_beneath(Path(caches.LAYER))
    left = [(path, places.measure_place(path)[0]) for path in places.unfinished_places(here.root)]
    unmarked = places.unmarked_places(here.root)
    return CommandResult(
        lambda: _status_lines(here, refusal, found, layer, left, unmarked),
        lambda: {
            "root": str(here.root),
            "used": not (here.unused or refusal),
            "layer": here.layer,
            "reason": here.unused or refusal,
            "place": str(here.place),
            "of": here.fields,
            "places": [_place_data(place, here) for place in found],
            "image": [_place_data(place, here) for place in layer],
            "unmarked": [{"path": str(one.path), "bytes": one.size} for one in unmarked],
            "unfinished": [{"path": str(path), "bytes": size} for path, size in left],
        },
    )


COMMAND = Command(
    CacheStatusArguments,
    show_places,
    description=(
        "Show the root of the caches, whether starts use it, and its places: what they hold, "
        "when a start used them last, and the last run of warm."
    ),
    example="rocm-autopatch cache status",
    statuses=WRONG_OR_DONE,
    page="caches.md",
)


def _place_data(place: places.CachePlace, here: places.StartPlace) -> dict[str, object]:
    differing = places.field_differences(place.fields, here.fields)
    return {
        "path": str(place.path),
        "here": place.path.name == here.place.name,
        "of": place.fields,
        "differs": sorted(differing),
        "bytes": place.size,
        "files": place.files,
        "used": place.used,
        "parts": place.parts,
        "warmed": next(reversed(places.warm_runs(place.path)), None),
    }


def _status_lines(
    here: places.StartPlace,
    refusal: str,
    found: list[places.CachePlace],
    layer: list[places.CachePlace],
    left: list[tuple[Path, int]],
    unmarked: list[places.CachePlace],
) -> Iterator[str]:
    yield f"root: {here.root}"
    if here.unused.startswith("ROCM_AUTOPATCH"):  # it, or ROCM_AUTOPATCH_CACHE
        yield from wrapped(f"starts do not use it, by {here.unused}", "  ", "    ")
    elif here.unused:
        how = f'{caches.VARIABLE}=on or a policy with "caches: on" turns it on'
        yield from wrapped(f"starts do not use it: {here.unused}; {how}", "  ", "    ")
    elif refusal:
        yield from wrapped(f"starts keep nothing in it: {refusal}  [{here.layer}]", "  ", "    ")
    else:
        yield from wrapped(f"starts use it  [{here.layer}]", "  ", "    ")
    if here.node:
        text = f"it is on a network file system: what programs compile stays in {here.node}"
        yield from wrapped(text, "  ", "    ")
    if all(place.path != here.place for place in found):
        yield f"  the place of starts here is not there yet: {here.place.name}"
    for place in found:
        yield from _place_lines(place, here)
    for place in unmarked:
        held = f"{wording.size_text(place.size)} in {wording.count_files(place.files)}"
        text = (
            f"{place.path.name}: {held}, without the file that says which place it is; a start "
            "that uses it writes this file, and rocm-autopatch cache gc counts it"
        )
        yield from ["", *wrapped(text, "", "  ")]
    if left:
        text = f"left over: {len(left)}, {wording.size_text(sum(size for _, size in left))}; "
        yield from ["", *wrapped(text + "rocm-autopatch cache gc removes them", "", "  ")]
    if layer:
        yield from ["", f"in the image, {caches.LAYER}"]
        for place in layer:
            yield from _place_lines(place, here)


def _place_lines(place: places.CachePlace, here: places.StartPlace) -> Iterator[str]:
    same = place.path.name == here.place.name
    yield ""
    yield place.path.name + ("  (the place of starts here)" if same else "")
    used = datetime.fromtimestamp(place.used).strftime("%Y-%m-%d %H:%M")
    held = f"{wording.size_text(place.size)} in {wording.count_files(place.files)}"
    yield f"  {held}, last used {used}"
    parts = ", ".join(
        f"{name} {wording.size_text(size)}" for name, size in place.parts.items() if size
    )
    if parts:
        yield from wrapped(parts, "  ", "    ")
    differing = places.field_differences(place.fields, here.fields)
    if 0 < len(differing) <= _FEW:
        told = places.differences_text(differing)
        yield from wrapped(f"differs in {told}", "  ", "    ")
    for row in places.warm_runs(place.path)[-1:]:
        yield from wrapped(f"last run of warm: {wording.lookups_text(row)}", "  ", "    ")
