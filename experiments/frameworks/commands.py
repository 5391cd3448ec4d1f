"""What our commands say of a program, compared with what torch counted in it and has in its config.

inside.py notes torch's counters and compilation metrics when a process ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any


def report(told: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    """Where ``report --json`` differs from torch's own counts."""
    ends = {row["pid"]: row for row in rows if row["event"] == "exit"}
    pids = {process["number"]: process["pid"] for process in told["processes"]}
    unseen = {pids[graph["process"]] for graph in told["graphs"]} - ends.keys()
    if unseen or not told["graphs"]:
        yield f"{len(told['graphs'])} graphs in the report, {len(unseen)} processes without an exit"
        return
    yield from _unequal(
        "the report",
        {
            "graphs": sorted((pids[one["process"]], one["id"]) for one in told["graphs"]),
            "breaks": sum(one["count"] for one in told["breaks"]),
            "recompiles": sum(one["count"] for one in told["recompiles"]),
            "limits": sum(one["limit"] for one in told["recompiles"]),
            "caches": Counter(one["cache"] for one in told["graphs"]),
        },
        torch_counts(ends),
    )
    yield from (f"the report notes: {note}" for note in told["notes"])


def summary(told: dict[str, Any]) -> str:
    caches = Counter(one["cache"] or "none" for one in told["graphs"])
    counts = {
        "graphs": len(told["graphs"]),
        "breaks": sum(one["count"] for one in told["breaks"]),
        "recompiles": sum(one["count"] for one in told["recompiles"]),
        **{f"cache {what}": number for what, number in sorted(caches.items())},
    }
    return ", ".join(f"{number} {what}" for what, number in counts.items())


def torch_counts(ends: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The same from what torch counted, by process id."""
    graphs: dict[tuple[int, str], list[dict[str, Any]]] = {}
    breaks = recompiles = limits = 0
    for pid, row in ends.items():
        counted = row["counted"]
        # A break counts here or there. A compile that failed has counted in the second.
        breaks += counted["graph_break"] + counted["unimplemented"]
        for one in counted["compiles"]:
            breaks -= one["failed"]
            limits += one["limit"]
            recompiles += one["recompile"] and not one["limit"]
            if not one["limit"]:
                graphs.setdefault((pid, one["id"]), []).append(one)
    return {
        "graphs": sorted(graphs),
        "breaks": breaks,
        "recompiles": recompiles,
        "limits": limits,
        "caches": Counter(map(_cache, graphs.values())),
    }


def _cache(compiles: list[dict[str, Any]]) -> str:
    hits, misses = (sum(one[what] for one in compiles) for what in ("hits", "misses"))
    return "part" if hits and misses else "hit" if hits else "miss" if misses else ""


def probe(told: dict[str, Any], off: dict[str, Any], safe: dict[str, Any]) -> Iterator[str]:
    """Where ``probe --json`` differs from the config that bare imports of torch had."""
    rows = {row["name"]: row for row in told["config"]}
    before, after = off["here"], safe["here"]
    for name in sorted({name for name in before if before[name] != after[name]} | rows.keys()):
        # Other config modules were not imported.
        if name in before and "0x" not in before[name]:
            row = rows.get(name)
            said = row and (repr(row["without"]), repr(row["with"]))
            if said != (before[name], after[name]):
                yield f"probe says {name} {said}, it is {before[name], after[name]}"


def status(told: dict[str, Any], safe: dict[str, Any]) -> Iterator[str]:
    """Where ``status --json`` differs from what a bare import of torch had, and was told."""
    if told["policy"] != safe["policy"] or told["errors"]:
        yield f"status says {told['policy']}, {told['errors']}; inside it is {safe['policy']}"
    for row in told["config"]:
        name, said = row["name"], repr(row["after"])
        if name in safe["here"] and said != safe["here"][name]:
            yield f"status says {name} {said}, it is {safe['here'][name]}"


def _unequal(who: str, told: dict[str, Any], counted: dict[str, Any]) -> Iterator[str]:
    for what, value in told.items():
        if value != counted[what]:
            yield f"{who} has {what} {value}, torch counted {counted[what]}"
