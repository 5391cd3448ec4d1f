"""What a run that fills a place found in the caches, and what of the image goes there before."""

from __future__ import annotations

import contextlib
import filecmp
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rocm_autopatch.caches import RUNS, UNFINISHED, contents
from rocm_autopatch.compile_report.model import CompileReport
from rocm_autopatch.compile_report.trace import CACHES, TraceFile
from rocm_autopatch.startup import caches, layer
from rocm_autopatch.support.progress import tell_step

STATES = ("hit", "miss", "bypass")
# The parts that a container has for itself (startup.caches).
PRIVATE = [part for _, part, use, _ in caches.PARTS if use == caches.PRIVATE]
_MODULES, _FLYDSL = "aiter-modules", "flydsl"


def bring_aiter(place: Path, torch: str) -> Iterator[tuple[str, int]]:
    """Make the parts of aiter in a place, with what the image has of them: parts, and their bytes.

    Where AITER_JIT_DIR is set, aiter does not look at the modules in the image, and builds them
    again: 10 minutes and more. A start sets it if the part is there. *torch* is the path of
    torch/version.py. Raises OSError; a part is there as a whole or not at all.
    """
    jit = Path(torch).parent.parent / "aiter" / "jit"
    if not (torch and jit.is_dir()):
        return
    for part in PRIVATE:
        if (place / part).exists():
            continue
        tell_step(f"copying {part} from the image")
        with _whole_directory(place / part) as new:
            if part == _MODULES:
                for module in sorted(jit.glob("*.so")):
                    shutil.copy(module, new)
            elif part == _FLYDSL and (jit / "flydsl_cache").is_dir():
                shutil.copytree(jit / "flydsl_cache", new, dirs_exist_ok=True)
            size = sum(path.stat().st_size for path in new.rglob("*") if path.is_file())
        if size:
            yield part, size


def keep_built(place: Path) -> None:
    """Copy into a place what this container has built for itself, and may go elsewhere.

    A part that stayed empty is removed: an empty one would hide what another image has. Raises
    OSError.
    """
    above = Path(caches.own(str(place)))
    # Only PRIVATE ones, unless the root is on a network file system.
    for part in dict.fromkeys(row[1].partition("/")[0] for row in caches.PARTS):
        own = above / part
        # Links lead to what the place has.
        built = [path for path in own.rglob("*") if path.is_file() and not path.is_symlink()]
        for path in built if (place / part).is_dir() else ():
            name = f"{part}/{path.relative_to(own)}"
            target = place / name
            if not contents.may_go(name):
                continue
            with tempfile.TemporaryDirectory(dir=place.parent, prefix=UNFINISHED) as scratch:
                copy = Path(shutil.copy(path, scratch))
                if layer.is_group(name):
                    layer.rewrite_group(str(copy), str(target.parent))
                if not (target.is_file() and filecmp.cmp(copy, target, shallow=False)):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(copy, target)
        if part in PRIVATE:
            with contextlib.suppress(OSError):
                (place / part).rmdir()


@contextlib.contextmanager
def _whole_directory(directory: Path) -> Iterator[Path]:
    """A directory to fill, which gets its name at the end."""
    # In the root: gc removes it there, should this process be killed.
    new = Path(tempfile.mkdtemp(dir=directory.parent.parent, prefix=UNFINISHED))
    try:
        yield new
        os.rename(new, directory)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def lookup_counts(report: CompileReport) -> dict[str, dict[str, int]]:
    """How often each cache of torch had what was looked for: by cache (trace.CACHES), by state."""
    found = {cache: dict.fromkeys(STATES, 0) for cache in CACHES}
    for path in report.traces:
        with contextlib.suppress(OSError):
            for event in TraceFile(Path(path)).events():
                for cache in CACHES:
                    if event.name.startswith(cache):
                        state = _lookup_state(event.name, event.payload)
                        if state in STATES:
                            found[cache][state] += 1
    return found


def _lookup_state(name: str, payload: str) -> str:
    if not name.endswith("_hash"):
        return name.rpartition("_")[2]
    # torch 2.4 to 2.6
    try:
        return str(json.loads(payload).get("cache_state", ""))
    except (ValueError, AttributeError):
        return ""


def note_run(place: Path, row: dict[str, Any]) -> None:
    """Add a line to the place's file of runs. Raises OSError."""
    line = json.dumps(row).encode() + b"\n"
    # One write at the end of the file: another run at the same time takes nothing away.
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(place / RUNS, flags, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
