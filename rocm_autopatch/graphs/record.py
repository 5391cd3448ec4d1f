"""Which calls ran as graphs, and why others did not: the ``graphs`` section of a report."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TypedDict

from rocm_autopatch import startup

# How many callables are kept on the record, and how many reasons of each.
MOST = 1000
MOST_REASONS = 20
# From so many graphs of a callable on, those that are dropped are only counted.
MOST_GRAPHS = 1000
_lock = threading.Lock()


class GraphRow(TypedDict):
    """What is told of one captured graph. Memory is in bytes."""

    signature: str
    replays: int
    capture_seconds: float
    memory_before: int
    memory_after: int
    verified: bool
    checks: int


class RefusalRow(TypedDict):
    """Why calls with one signature have no graph."""

    signature: str
    reason: str


class CallableRow(TypedDict):
    """What is told of one callable. :func:`row` describes it."""

    name: str
    origin: str
    calls: int
    replays: int
    plain: dict[str, int]
    graphs: list[GraphRow]
    refused: list[RefusalRow]
    dropped: int
    cuts: list[str]


_rows: list[CallableRow] = []


def new_row(name: str, origin: str) -> CallableRow:
    """A new row of the record. Its owner may change it at any time.

    ``calls`` counts all calls, and ``replays`` those that were replays. ``plain`` counts the others
    by reason. ``graphs`` has a row for each captured graph. ``refused`` says why signatures have no
    graph. ``dropped`` counts graphs that made room for others. ``cuts`` says around what the
    compiled function is cut, so that the rest has graphs.
    """
    made: CallableRow = {
        "name": name,
        "origin": origin,
        "calls": 0,
        "replays": 0,
        "plain": {},
        "graphs": [],
        "refused": [],
        "dropped": 0,
        "cuts": [],
    }
    with _lock:
        if len(_rows) < MOST:
            _rows.append(made)
    return made


def count_plain_call(row: CallableRow, reason: str) -> None:
    """Count a call that ran without a graph."""
    reasons = row["plain"]
    if reason in reasons or len(reasons) < MOST_REASONS:
        reasons[reason] = reasons.get(reason, 0) + 1


def record_refusal(row: CallableRow, signature: str, why: str) -> None:
    """Put on the record, and write once to stderr, that calls like this have no graph."""
    if len(row["refused"]) < MOST_REASONS:
        row["refused"].append({"signature": signature, "reason": why})
    startup.say(
        "graphs",
        f"graphs: {row['name']} runs without a graph: {why}; rocm_autopatch.status()['graphs'] "
        "lists all such functions",
    )


def record_cuts(row: CallableRow, why: Iterable[str]) -> None:
    """Put on the record around what a compiled function is cut."""
    new = [one for one in why if one not in row["cuts"]]
    row["cuts"] += new[: MOST_REASONS - len(row["cuts"])]


def drop_graph(row: CallableRow, graph: GraphRow) -> None:
    """A graph is gone. Its row stays, unless there are too many."""
    with _lock:
        if len(row["graphs"]) > MOST_GRAPHS:
            row["graphs"] = [one for one in row["graphs"] if one is not graph]
            row["replays"] += graph["replays"]


def render_rows() -> list[CallableRow]:
    """The rows so far, as plain data, without those of callables that were not called."""
    with _lock:
        rows = list(_rows)
    return [finished_row(one) for one in rows if one["plain"] or one["graphs"]]


def finished_row(row: CallableRow) -> CallableRow:
    """A copy of a row, with the counts of its graphs added up."""
    # Other threads add to them meanwhile. A copy of a dict or a list is one step.
    done: CallableRow = {
        **row,
        "plain": row["plain"].copy(),
        "graphs": [one.copy() for one in list(row["graphs"])],
        "refused": [one.copy() for one in list(row["refused"])],
        "cuts": row["cuts"].copy(),
    }
    done["replays"] += sum(graph["replays"] for graph in done["graphs"])
    done["calls"] = done["replays"] + sum(done["plain"].values())
    return done
