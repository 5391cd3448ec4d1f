"""Whether the graphs of this process can be believed.

A graph is compared with a plain call once, before its first use. What breaks later, and only in
some processes, is public of ROCm (docs/claims.md#manual-capture). So on ROCm the first capture of a
process waits for a self-test, and some later replays are compared, too: the 2nd, 4th, 8th to the
64th of each graph, and then one of many. One difference ends all graphs of the process.
"""

from __future__ import annotations

import threading
import time

import torch

from rocm_autopatch import _RECORD, startup
from rocm_autopatch.graphs import captured_ops, self_test

# Up to this replay the numbers of checked ones double. Then at least so many are between them.
_DOUBLES = 64
# What the checks of a process may cost of its time, once those that double are over.
_SHARE = 0.01
# Why no graph of this process is replayed, captured or waited for any more; empty if all are well.
distrusted: list[str] = []
# The devices on which the self-test has run, and why several ranks must not capture.
_tested: set[torch.device] = set()
_ranks = ""
_lock = threading.RLock()


def checks_by_default() -> bool:
    """Whether replays are checked where nobody says it: on ROCm, unless a policy turns it off."""
    asked = _RECORD["patches"].get(("graph_check", "torch"))
    for row in asked["entries"] if asked else ():
        if row["status"] == "applied":
            return bool(row["wanted"] == "on")
    return bool(torch.version.hip)


def objection_to_capture(device: torch.device | None) -> str | None:
    """Why no graph may be captured on a device now; None if one may.

    On ROCm, before the first capture on a device, a few small graphs are captured and replayed, and
    the ledger of known defects says what this runtime must not do.
    """
    if torch.version.hip and device is not None:
        _test_first(device)
    return distrusted[0] if distrusted else _objection_to_ranks()


def _test_first(device: torch.device) -> None:
    with _lock:
        if distrusted or device in _tested:
            return
        _tested.add(device)
        _obey_ledger()
        faults = self_test.find_faults(device)
        if faults:
            distrust_graphs(f"the self-test of graphs found: {faults[0]}")


def _obey_ledger() -> None:
    global _ranks
    # Few processes need it, and it reads files.
    from rocm_autopatch.evidence import ledger

    found = ledger.restrictions_here()
    captured_ops.forbidden_here.update(found.ops)
    _ranks = found.ranks
    if found.graphs:
        startup.say("graphs-known", f"graphs are used although {found.graphs}")


def _objection_to_ranks() -> str | None:
    if not _ranks or not torch.distributed.is_available():
        return None
    several = torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
    return _ranks if several else None


def distrust_graphs(why: str) -> None:
    """Have no more graphs in this process, and say so in one line."""
    with _lock:
        if distrusted:
            return
        distrusted.append(f"graphs are wrong in this process: {why}")
    startup.fail(
        "graphs-wrong",
        f"{distrusted[0]}; all calls run without graphs from now on "
        "(rocm-autopatch help graphs#checks)",
    )


class CheckBudget:
    """What checks of replays may cost. All graphs of a process share one."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._spent = 0.0
        self._known_cost: dict[int, float] = {}

    def allows_check(self, graph: int, number: int) -> bool:
        """Whether there is time to check replay *number* of a graph with this id."""
        if number <= _DOUBLES:
            return True
        cost = self._known_cost.get(graph, 0.0)
        passed = time.perf_counter() - self._began
        return self._spent + cost <= _SHARE * passed

    def add_check(self, graph: int, number: int, seconds: float) -> None:
        """A check of replay *number* has taken so long."""
        self._known_cost[graph] = seconds
        if number > _DOUBLES:
            self._spent += seconds

    def forget_graph(self, graph: int) -> None:
        """A graph is gone."""
        self._known_cost.pop(graph, None)


budget = CheckBudget()


def next_check(number: int) -> int:
    """The replay to be checked after replay *number* of a graph; the first one is 2."""
    return max(2, 2 * number) if number < _DOUBLES else number + _DOUBLES
