"""What differs between the traces of older and newer torches: an adapter for each generation.

experiments/matrix/trace_versions.py checks on the files of each torch from which version on a trace
has what.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rocm_autopatch.compile_report.trace import METRICS, TraceEvent

# From which torch on the trace has what.
SINCE = {
    "the line and the hints of a graph break": (2, 6),
    "which guard failed before a recompile": (2, 5),
    "seconds of autotuning": (2, 6),
    "the class of a model": (2, 9),
    "the settings that a graph was compiled with": (2, 6),
}


class TraceGeneration:
    """The traces of torch 2.7 and later. Older ones override what they say in another way."""

    since = (2, 7)
    # Whether the seconds of autotuning are in events alone, and not in compilation_metrics.
    times_tuning_by_events = False
    # What is said of the version, if the form of an event alone tells it.
    guessed_version = ""

    def restart_reasons(self, metrics: dict[str, Any]) -> list[str]:
        """The graph breaks that only the metrics of a compile have; others are events."""
        return []

    def read_cache(self, event: TraceEvent) -> tuple[str, str]:
        """Whether a cache had a graph ("hit", "miss", "bypass" or another word), and its key."""
        key = str(json.loads(event.payload).get("key", "")) if event.payload else ""
        return event.name.rpartition("_")[2], key


class Generation26(TraceGeneration):
    """The traces of torch 2.6."""

    since = (2, 6)
    times_tuning_by_events = True


class Generation24(Generation26):
    """The traces of torch 2.4 and 2.5."""

    since = (2, 4)
    guessed_version = "2.4 or 2.5"

    def restart_reasons(self, metrics: dict[str, Any]) -> list[str]:
        return list(map(str, metrics.get("restart_reasons") or ()))

    def read_cache(self, event: TraceEvent) -> tuple[str, str]:
        told = json.loads(event.payload) if event.payload else {}
        return str(told.get("cache_state", "")), str(told.get("key", ""))


# The newest first.
GENERATIONS = (TraceGeneration(), Generation26(), Generation24())


def find_generation(version: str, event: TraceEvent) -> TraceGeneration:
    """The generation of a trace, by the process's torch, or if that is unknown by an event's form.

    An event that all generations write in one form is taken for one of the newest.
    """
    newest, oldest = GENERATIONS[0], GENERATIONS[-1]
    found = release_of(version)
    if found:
        return next((one for one in GENERATIONS if found >= one.since), oldest)
    if event.name in METRICS:
        old = "duration_us" not in event.data and not event.data.get("is_runtime")
    else:
        old = event.name.startswith("fx_graph_cache_hash")
    return oldest if old else newest


def release_of(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:2])
