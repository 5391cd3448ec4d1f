"""Numbers of the caches, in words. No command of its own."""

from __future__ import annotations

from collections.abc import Mapping

from rocm_autopatch.caches import warm
from rocm_autopatch.cli.values import SIZE_UNITS
from rocm_autopatch.support import progress

# What torch calls its caches, in words.
_CALLED = {"fx_graph_cache": "FX graph cache", "aotautograd_cache": "AOTAutograd cache"}


def count_files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def size_text(size: int) -> str:
    """Bytes as --max takes them: 512, 1.5M, 10G."""
    if abs(size) < 1024:
        return f"{size} bytes"
    power = 1
    while power < len(SIZE_UNITS) and abs(size) >= 1000 * 1024**power:
        power += 1
    value = size / 1024**power
    digits = 1 if abs(value) < 9.95 else 0
    return f"{value:.{digits}f}{SIZE_UNITS[power - 1]}"


def lookups_text(row: Mapping[str, object]) -> str:
    """What a run found in torch's caches: rows of the file may be another release's."""
    told = []
    for name, called in _CALLED.items():
        found = row.get(name)
        if isinstance(found, dict):
            states = [f"{found[state]} {state}" for state in warm.STATES if found.get(state)]
            told.append(f"{called} {', '.join(states) or 'not asked'}")
    return "; ".join(told) or "unknown"


def tell_packed(done: int, size: int) -> None:
    """Say how many bytes of an archive are done."""
    progress.tell_step("working on the archive", done >> 20, size >> 20, "MiB")
