"""On a machine with a GPU: faults planted behind its graphs, and when the sampled check finds each.

    python experiments/gpu/checked_faults.py [--runs 10] [--at-once 10] [--calls 300]

For an interpreter that has torch 2.11 or later and our wheel. The faults are those of
experiments/gpu/planted_graphs.py. Each run is a process of its own, in which one function shows the
fault. It is graphed with ``check=True``; ``verify=False`` keeps the comparison at the capture from
finding the fault first. Each result is compared with eager mode. A line of JSON for each run says
how many results were wrong until the check had found the fault. The exit status is 1 if that were
more than 64 replays in a run, if a result was wrong later, or if a run without a fault was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import planted_graphs

UNHARMED = "none"
MOST_WRONG = 64
_LIMIT_S = 300


def make_call(fault: str, torch: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A graphed function that shows a fault, and the function itself."""
    from rocm_autopatch.graphs import graphed

    class Shifted(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.zeros(64, device="cuda"))

        def forward(self, x: Any) -> Any:
            return x * 2 + self.shift

    def cleared(x: Any) -> Any:
        total = torch.empty_like(x)
        total.zero_()
        return total.add_(x)

    def many(x: Any) -> Any:
        for _ in range(250):
            x = x + 1
        return x

    model = Shifted()
    functions = {"stale_memset": cleared, "stale_host_copy": model, "stale_pointers": many}
    function: Any = functions.get(fault, many)
    wrapped: Any = graphed(function, verify=False, check=True, guards="none")
    if fault != "stale_host_copy":
        return wrapped, function
    shifts = torch.randn(16, 64).pin_memory()
    number = 0

    def copied(x: Any) -> Any:
        nonlocal number
        number += 1
        model.shift.copy_(shifts[number % 16], non_blocking=True)
        return wrapped(x)

    return copied, model


def run(fault: str, calls: int) -> dict[str, Any]:
    """Call a function that shows a fault so often. Torch was not imported before."""
    planted_graphs._POISONED = 1.0  # Each process is the one of five.
    import torch

    from rocm_autopatch.graphs import record, soundness

    wrapped, function = make_call(fault, torch)
    found: dict[str, Any] = {"fault": fault, "wrong": 0, "later": 0}

    def call_all() -> None:
        with torch.no_grad():
            for _ in range(calls):
                x = torch.randn(64, device="cuda")
                got, wanted = wrapped(x), function(x)
                if not torch.allclose(got, wanted, rtol=1e-4, atol=1e-4):
                    over = soundness.distrusted or record.render_rows()[-1]["refused"]
                    found["later" if over else "wrong"] += 1

    if fault == "truncated":
        # It is the second thread's graphs that lack a part.
        other = make_call(UNHARMED, torch)[0]
        with torch.no_grad():
            for _ in range(4):
                other(torch.randn(64, device="cuda"))
        thread = threading.Thread(target=call_all)
        thread.start()
        thread.join()
    else:
        call_all()
    rows = record.render_rows()
    reasons = [one["reason"] for row in rows for one in row["refused"]]
    replays = [row["replays"] for row in rows]
    return {**found, "replays": replays, "found": [*soundness.distrusted, *reasons][:1]}


def start(fault: str, calls: int) -> dict[str, Any]:
    """A run in a new process."""
    env = {**os.environ, "ROCM_AUTOPATCH": "off"}
    env.pop(planted_graphs.VARIABLE, None)
    if fault != UNHARMED:
        env[planted_graphs.VARIABLE] = fault
    command = [sys.executable, __file__, "--one", fault, "--calls", str(calls)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=_LIMIT_S)
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        found = {"fault": fault, "error": done.stderr[-500:]}
    print(json.dumps(found), flush=True)
    return found


def is_right(row: dict[str, Any]) -> bool:
    if "error" in row:
        return False
    if row["fault"] == UNHARMED:
        return not row["found"] and not row["wrong"]
    return bool(row["found"]) and row["wrong"] <= MOST_WRONG and not row["later"]


def main() -> int:
    parser = argparse.ArgumentParser(description="When the sampled check finds planted faults.")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(run(asked.one, asked.calls)))
        return 0
    import torch

    if not torch.cuda.is_available():
        sys.exit("checked_faults.py: torch finds no GPU here")
    faults = [fault for fault in (*planted_graphs.FAULTS, UNHARMED) for _ in range(asked.runs)]
    with ThreadPoolExecutor(asked.at_once) as pool:
        rows = list(pool.map(lambda fault: start(fault, asked.calls), faults))
    for fault in (*planted_graphs.FAULTS, UNHARMED):
        mine = [row for row in rows if row["fault"] == fault]
        wrong = [row["wrong"] for row in mine if "wrong" in row]
        right, most = sum(map(is_right, mine)), max(wrong, default=0)
        print(f"{fault}: {right} of {len(mine)} as wanted, wrong results at most {most}")
    return 0 if all(map(is_right, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
