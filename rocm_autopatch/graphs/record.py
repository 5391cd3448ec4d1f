"""Which calls ran as graphs, and why others did not: the ``graphs`` section of a report."""

from __future__ import annotations

import threading
from typing import Any

from rocm_autopatch import startup

# How many callables are kept on the record, and how many reasons of each.
MOST = 1000
MOST_REASONS = 20
# From so many graphs of a callable on, those that are dropped are only counted.
MOST_GRAPHS = 1000
_rows: list[dict[str, Any]] = []
_lock = threading.Lock()


def row(name: str, origin: str) -> dict[str, Any]:
    """A new row of the record. Its owner may change it at any time.

    ``calls`` counts all calls, and ``replays`` those that were replays. ``plain`` counts the others
    by reason. ``graphs`` has a row for each captured graph. ``refused`` says why signatures have no
    graph. ``dropped`` counts graphs that made room for others.
    """
    made: dict[str, Any] = {
        "name": name,
        "origin": origin,
        "calls": 0,
        "replays": 0,
        "plain": {},
        "graphs": [],
        "refused": [],
        "dropped": 0,
    }
    with _lock:
        if len(_rows) < MOST:
            _rows.append(made)
    return made


def plain(row: dict[str, Any], reason: str) -> None:
    """Count a call that ran without a graph."""
    reasons = row["plain"]
    if reason in reasons or len(reasons) < MOST_REASONS:
        reasons[reason] = reasons.get(reason, 0) + 1


def record_refusal(row: dict[str, Any], signature: str, why: str) -> None:
    """Put on the record, and write once to stderr, that calls like this have no graph."""
    if len(row["refused"]) < MOST_REASONS:
        row["refused"].append({"signature": signature, "reason": why})
    startup.say(
        "graphs",
        f"graphs: {row['name']} runs without a graph: {why}; rocm_autopatch.status()['graphs'] "
        "lists all such functions",
    )


def drop_graph(row: dict[str, Any], graph: dict[str, Any]) -> None:
    """A graph is gone. Its row stays, unless there are too many."""
    with _lock:
        if len(row["graphs"]) > MOST_GRAPHS:
            row["graphs"] = [one for one in row["graphs"] if one is not graph]
            row["replays"] += graph["replays"]


def render() -> list[dict[str, Any]]:
    """The rows so far, as plain data, without those of callables that were not called."""
    with _lock:
        rows = list(_rows)
    return [finished(one) for one in rows if one["plain"] or one["graphs"]]


def finished(row: dict[str, Any]) -> dict[str, Any]:
    """A copy of a row, with the counts of its graphs added up."""
    # Other threads add to them meanwhile. A copy of a dict or a list is one step.
    done = {**row, "plain": dict(row["plain"])}
    for part in ("graphs", "refused"):
        done[part] = [dict(one) for one in list(row[part])]
    done["replays"] += sum(graph["replays"] for graph in done["graphs"])
    done["calls"] = done["replays"] + sum(done["plain"].values())
    return done
