"""``rocm-autopatch cache``: the compile caches beneath one root."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Callable

from rocm_autopatch.caches import CacheRefused, archive, gc, places, users, warm
from rocm_autopatch.cli import options, statuses, terminal
from rocm_autopatch.compile_report import session
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.startup import caches
from rocm_autopatch.support import progress
from rocm_autopatch.support.text import duration, wrapped

_UNITS = "KMGT"
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)([{_UNITS}]?)")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
# A place that differs in more fields is not one that a reader expects to be the same.
_FEW = 3
_STATUSES: statuses.Statuses = {0: "done", 1: "something is wrong with what was asked for"}
# What takes longer says how far it is, that often, in seconds.
# What torch calls its caches, in words.
_CALLED = {"fx_graph_cache": "FX graph cache", "aotautograd_cache": "AOTAutograd cache"}


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "cache",
        help="show, fill, pack, seed and clean up the compile caches beneath one root",
        description=(
            "Where a policy or ROCM_AUTOPATCH_CACHE asks for it, all compile caches are in one "
            "root, with a directory for each kind of place: torch, Triton, HIP, GPUs, Python and "
            "policy. These commands work on this root, or on its default where nobody asks."
        ),
        epilog="example: rocm-autopatch cache warm -- python serve.py --one-request",
    )
    statuses.state_statuses(parser, _STATUSES)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    for declare in (_add_status, _add_warm, _add_pack, _add_seed, _add_gc, _add_path):
        declare(actions)


def _add_status(actions: Any) -> None:
    status = actions.add_parser(
        "status",
        help="the root, its places, and how they differ from the one of this environment",
        description=(
            "Show the root of the caches, whether starts use it, and its places: what they hold, "
            "when a start used them last, and the last run of warm."
        ),
        epilog="example: rocm-autopatch cache status",
    )
    statuses.state_statuses(status, _STATUSES)
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(run=_with_errors_told("status", _run_status))


def _add_warm(actions: Any) -> None:
    fill = actions.add_parser(
        "warm",
        help="run a command that fills the caches, and say what was in them",
        description=(
            "Run COMMAND with caches on, and end with its exit status. Before, copy the modules "
            "of the image's aiter. Afterwards, say on stderr what COMMAND found in torch's caches "
            "and what it added."
        ),
        epilog="example: rocm-autopatch cache warm -- python serve.py --one-request",
    )
    statuses.state_statuses(fill, {**statuses.PASSED_ON, 1: "nothing was run"})
    fill.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND")
    fill.set_defaults(run=_with_errors_told("warm", _run_warm), parser=fill)


def _add_pack(actions: Any) -> None:
    pack = actions.add_parser(
        "pack",
        help="write the place of this environment to a file",
        description=(
            "Write a place to FILE, a .tar.gz, and print its digest. The same contents give the "
            "same bytes. Locks, builds of ninja and what is unfinished stay out."
        ),
        epilog="example: rocm-autopatch cache pack caches.tar.gz",
    )
    statuses.state_statuses(pack, _STATUSES)
    pack.add_argument("file", type=Path, metavar="FILE", help="the file that is written")
    pack.add_argument(
        "--place", metavar="NAME", help="another place of the root, as status names it"
    )
    pack.add_argument(
        "--even-if-used",
        action="store_true",
        help="also while processes use the place: what they are writing may be incomplete",
    )
    pack.add_argument("--json", action="store_true", help="print JSON")
    pack.set_defaults(run=_with_errors_told("pack", _run_pack))


def _add_seed(actions: Any) -> None:
    seed = actions.add_parser(
        "seed",
        help="unpack what pack has written",
        description=(
            "Unpack FILE as a place of the root, as a whole or not at all. What is in it is code: "
            "whoever wrote FILE can run what they want in programs here. So FILE must be one that "
            "nobody else can write, made for the same kind of place."
        ),
        epilog="example: rocm-autopatch cache seed caches.tar.gz --digest sha256:HEX",
    )
    statuses.state_statuses(seed, _STATUSES)
    seed.add_argument("file", type=Path, metavar="FILE", help="the archive")
    seed.add_argument(
        "--digest",
        type=_parse_digest,
        metavar="sha256:HEX",
        help="refuse FILE if it has another digest than pack has printed",
    )
    seed.add_argument(
        "--for-other-place",
        action="store_true",
        help="take FILE for this place, although it was made for another one",
    )
    seed.add_argument(
        "--replace", action="store_true", help="remove what the place has, if it has something"
    )
    seed.add_argument(
        "--into",
        type=Path,
        metavar="PATH",
        help=f"the directory of places to unpack into, such as {caches.LAYER} of an image",
    )
    seed.add_argument("--json", action="store_true", help="print JSON")
    seed.set_defaults(run=_with_errors_told("seed", _run_seed))


def _add_gc(actions: Any) -> None:
    collect = actions.add_parser(
        "gc",
        help="remove the places that were not used for longest",
        description=(
            "Remove what killed processes left over, and then the places that no start used for "
            "longest, until the root has at most SIZE. The place of this environment stays, and "
            "so does one that a process uses."
        ),
        epilog="example: rocm-autopatch cache gc --max 50G",
    )
    statuses.state_statuses(
        collect,
        {
            0: "at most SIZE is left",
            1: "more than SIZE is left, or something is wrong with the root",
        },
    )
    collect.add_argument(
        "--max",
        type=_parse_size,
        required=True,
        metavar="SIZE",
        dest="most",
        help="bytes, or with K, M, G or T: 500M, 10G",
    )
    collect.add_argument("--json", action="store_true", help="print JSON")
    collect.set_defaults(run=_with_errors_told("gc", _run_gc))


def _add_path(actions: Any) -> None:
    path = actions.add_parser(
        "path",
        help="print the directory of this environment's place",
        description=(
            "Print the directory of the place that starts here use. It need not be there."
        ),
        epilog="example: rocm-autopatch cache path",
    )
    statuses.state_statuses(path, _STATUSES)
    path.set_defaults(run=_with_errors_told("path", _run_path))


def _parse_size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write bytes, 500M or 10G")
    return int(float(match[1]) * 1024 ** (_UNITS.find(match[2]) + 1 if match[2] else 0))


def _parse_digest(text: str) -> str:
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not sha256: and 64 hex digits")
    return match[1]


def _with_errors_told(
    name: str, run: Callable[[argparse.Namespace], int]
) -> Callable[[argparse.Namespace], int]:
    """A command that says in one line why it can't do what it was asked for."""

    def guarded(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except CacheRefused as error:
            terminal.print_error(f"rocm-autopatch cache {name}: {error}")
        except OSError as error:
            if error.filename is None:
                raise  # stdout
            terminal.print_error(f"rocm-autopatch cache {name}: {error.filename}: {error.strerror}")
        return 1

    return guarded


def _run_path(arguments: argparse.Namespace) -> int:
    terminal.print_lines([str(places.place_here().place)])
    return 0


# --- status


def _run_status(arguments: argparse.Namespace) -> int:
    here = places.place_here()
    places.judge_directory(here.root)
    refusal = "" if here.unused else here.place_refusal()
    found = places.places_beneath(here.root)
    layer = places.places_beneath(Path(caches.LAYER))
    left = [(path, places.measure_place(path)[0]) for path in places.unfinished_places(here.root)]
    unmarked = places.unmarked_places(here.root)
    if arguments.json:
        terminal.print_data(
            {
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
            }
        )
    else:
        terminal.print_lines(_status_lines(here, refusal, found, layer, left, unmarked))
    return 0


def _place_data(place: places.CachePlace, here: places.StartPlace) -> dict[str, Any]:
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
        text = (
            f"{place.path.name}: {_of_size(place.size)} in {_count_files(place.files)}, without "
            "the file that says which place it is; a start that uses it writes this file, and "
            "rocm-autopatch cache gc counts it"
        )
        yield from ["", *wrapped(text, "", "  ")]
    if left:
        text = f"left over: {len(left)}, {_of_size(sum(size for _, size in left))}; "
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
    yield f"  {_of_size(place.size)} in {_count_files(place.files)}, last used {used}"
    parts = ", ".join(f"{name} {_of_size(size)}" for name, size in place.parts.items() if size)
    if parts:
        yield from wrapped(parts, "  ", "    ")
    differing = places.field_differences(place.fields, here.fields)
    if 0 < len(differing) <= _FEW:
        told = ", ".join(
            f"{name} {theirs or 'unknown'} (here {ours or 'unknown'})"
            for name, (theirs, ours) in differing.items()
        )
        yield from wrapped(f"differs in {told}", "  ", "    ")
    for row in places.warm_runs(place.path)[-1:]:
        yield from wrapped(f"last run of warm: {_cache_lines(row)}", "  ", "    ")


def _cache_lines(row: dict[str, Any]) -> str:
    """What a run found in torch's caches: rows of the file may be another release's."""
    told = []
    for name, called in _CALLED.items():
        found = row.get(name)
        if isinstance(found, dict):
            states = [f"{found[state]} {state}" for state in warm.STATES if found.get(state)]
            told.append(f"{called} {', '.join(states) or 'not asked'}")
    return "; ".join(told) or "unknown"


# --- warm


def _run_warm(arguments: argparse.Namespace) -> int:
    words = options.parse_command(arguments.words)
    if not words:
        arguments.parser.error("the COMMAND is missing: rocm-autopatch cache warm -- COMMAND")
    environ = places.caches_environment()
    here = places.start_place(environ)
    places.judge_directory(here.place)
    for part, size in warm.bring_aiter(here.place, here.torch):
        terminal.print_error(
            f"rocm-autopatch cache warm: {part}: {_of_size(size)} copied from the image"
        )
    before = {place.path: place.size for place in places.places_beneath(here.root)}
    with tempfile.TemporaryDirectory(prefix="rocm-autopatch-warm-") as directory:
        session.prepare_environment(Path(directory), None, environ)
        began = time.time()
        try:
            status = session.run_command(words, environ)
        except session.NotRun as error:
            terminal.print_error(f"rocm-autopatch cache warm: {words[0]}: {error}")
            return error.status
        seconds = time.time() - began
        # An error here does not change the command's status.
        try:
            _tell_after_warm(here, before, Path(directory), began, seconds, status)
        except (Exception, KeyboardInterrupt) as error:
            terminal.print_error(f"rocm-autopatch cache warm: {type(error).__name__}: {error}")
    return status


def _tell_after_warm(
    here: places.StartPlace,
    before: dict[Path, int],
    directory: Path,
    began: float,
    seconds: float,
    status: int,
) -> None:
    report = gather_report(directory)
    warm.keep_built(here.place)
    after = {place.path: place.size for place in places.places_beneath(here.root)}
    added = after.get(here.place, 0) - before.get(here.place, 0)
    row = {
        "time": round(began),
        "seconds": round(seconds, 1),
        "status": status,
        "graphs": len(report.graphs),
        **warm.lookup_counts(report),
        "bytes": added,
    }
    warm.note_run(here.place, row)
    found = _cache_lines(row) if report.graphs else "torch.compile compiled nothing"
    text = f"{_of_size(added)} added in {duration(seconds)}; {found}"
    terminal.print_lines(wrapped(f"rocm-autopatch cache warm: {text}", "", "  "), sys.stderr)
    others = [path.name for path, size in after.items() if size != before.get(path, 0)]
    for name in others:
        if name != here.place.name:
            terminal.print_error(
                f"rocm-autopatch cache warm: COMMAND filled another place, too: {name}"
            )


# --- pack, seed, gc


def _tell_packed(done: int, size: int) -> None:
    progress.tell_step("working on the archive", done >> 20, size >> 20, "MiB")


def _run_pack(arguments: argparse.Namespace) -> int:
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
    done = archive.pack_place(places.look_at_place(path), arguments.file, _tell_packed)
    for left_out in done.notes:
        terminal.print_error(f"rocm-autopatch cache pack: left out {left_out}")
    if arguments.json:
        terminal.print_data(
            {
                "file": str(arguments.file),
                "digest": f"sha256:{done.sha256}",
                "bytes": done.size,
                "place": path.name,
                "files": done.files,
                "unpacked": done.unpacked,
                "left_out": done.notes,
            }
        )
    else:
        what = (
            f"{_count_files(done.files)}, {_of_size(done.unpacked)}, packed {_of_size(done.size)}"
        )
        terminal.print_lines([f"{arguments.file}: {what}", f"sha256:{done.sha256}"])
    return 0


def _run_seed(arguments: argparse.Namespace) -> int:
    here = places.place_here()
    done = archive.seed_place(
        arguments.file,
        here,
        _tell_packed,
        digest=arguments.digest or "",
        other_place=arguments.for_other_place,
        replace=arguments.replace,
        into=arguments.into,
    )
    if arguments.json:
        terminal.print_data(
            {
                "place": str(done.place),
                "here": done.place.name == here.place.name,
                "owner": done.owner,
                "files": done.files,
                "bytes": done.unpacked,
                "differs": sorted(done.other),
                "rewritten": done.rewritten,
            }
        )
        return 0
    what = f"{_count_files(done.files)}, {_of_size(done.unpacked)}"
    terminal.print_lines([f"{done.place}: {what}", f"  {arguments.file} belongs to {done.owner}"])
    terminal.print_lines(_seeded_lines(done, here))
    return 0


def _seeded_lines(done: archive.SeededPlace, here: places.StartPlace) -> Iterator[str]:
    if done.other:
        told = ", ".join(
            f"{name} {theirs or 'unknown'} (here {ours or 'unknown'})"
            for name, (theirs, ours) in done.other.items()
        )
        yield from wrapped(f"it was made for another place: {told}", "  ", "    ")
    if done.place.name != here.place.name:
        yield "  starts here do not use it; starts in a place with these fields do"
    elif here.unused:
        yield from wrapped(f"starts here do not use caches: {here.unused}", "  ", "    ")
    if done.rewritten:
        yield from wrapped(
            f"it was packed at another path. {_count_files(done.rewritten)} of Triton were put "
            "right; what else names the old path is compiled anew",
            "  ",
            "    ",
        )


def _run_gc(arguments: argparse.Namespace) -> int:
    here = places.place_here()
    places.judge_directory(here.root)
    done = gc.collect_places(here, arguments.most)
    if arguments.json:
        terminal.print_data(
            {
                "removed": [place.path.name for place in done.removed],
                "unfinished": [path.name for path in done.unfinished],
                "kept": done.kept,
                "bytes": done.size,
                "max": arguments.most,
            }
        )
    else:
        for path in done.unfinished:
            terminal.print_lines([f"removed {path.name}, which was left over"])
        for place in done.removed:
            terminal.print_lines([f"removed {place.path.name}, {_of_size(place.size)}"])
        terminal.print_lines([f"{_of_size(done.size)} left in {here.root}"])
    if done.size <= arguments.most:
        return 0
    why = "; ".join(f"{name} stays: {reason}" for name, reason in done.kept.items())
    why = why or "it is younger than an hour and unfinished"
    terminal.print_error(
        f"rocm-autopatch cache gc: more than {_of_size(arguments.most)} is left: {why}"
    )
    return 1


def _count_files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _of_size(size: int) -> str:
    """Bytes as --max takes them: 512, 1.5M, 10G."""
    if abs(size) < 1024:
        return f"{size} bytes"
    power = 1
    while power < len(_UNITS) and abs(size) >= 1000 * 1024**power:
        power += 1
    value = size / 1024**power
    digits = 1 if abs(value) < 9.95 else 0
    return f"{value:.{digits}f}{_UNITS[power - 1]}"
