"""Fresh processes of a GPU, one after the other: whether graphs work in each of them.

Some processes of one machine have broken graphs from their start on, and all others have none:
ROCm/clr#279. Such a fault is seen by many starts only. So one process imports torch, which takes
the longest, and forks before it touches the GPU: each child initializes the GPU, looks at its
graphs, and ends as any program does. For each child there is one line of JSON.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from rocm_autopatch.measure.prove import CRASHED, ENDED, FRESH_STARTS, HUNG, WRONG
from rocm_autopatch.measure.prove.rows import TrialOutcome
from rocm_autopatch.support import processes

if TYPE_CHECKING:
    from torch import device as Device

# More than two are not waited for: one is enough.
_HANGS = 2
# What a process may take to end after SIGKILL. One that is stuck in a driver never does.
_KILLED_S = 5.0
_LOOK_S = 0.01
# What a pipe takes at once, in bytes, and what of a fault is said.
_PIPE, _SAID = 1 << 16, 300
# How often the small program is replayed.
_REPLAYS = 8


def run_forks() -> None:
    """Make as many starts as the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--report", required=True, help="the file for the lines")
    parser.add_argument("--device", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--limit", type=float, required=True, help="seconds for each")
    asked = parser.parse_args()
    import torch

    import rocm_autopatch.graphs.self_test  # noqa: F401

    if torch.cuda.is_initialized():
        raise RuntimeError("the GPU is in use already, so no process could initialize it anew")
    with open(asked.report, "a", encoding="utf-8", buffering=1) as stream:
        fork_starts(
            functools.partial(find_faults, asked.device),
            asked.count,
            asked.limit,
            lambda outcome: print(json.dumps(outcome.document()), file=stream),
        )


def fork_starts(
    find: Callable[[], list[str]],
    count: int,
    limit: float,
    tell: Callable[[TrialOutcome], object],
    leave: Callable[[int], NoReturn] = sys.exit,
) -> None:
    """Call *find* in *count* forks, one after the other, and *tell* how each has ended.

    *find* returns faults. A fork ends by *leave*.
    """
    hangs = 0
    for _ in range(count):
        outcome = _fork_start(find, limit, leave)
        tell(outcome)
        hangs += outcome.status == HUNG
        if hangs >= _HANGS:
            break


def _fork_start(
    find: Callable[[], list[str]], limit: float, leave: Callable[[int], NoReturn]
) -> TrialOutcome:
    began = time.monotonic()
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reads)
        _write_answer(find, writes)
        # The exit is part of it: a GPU's runtime may crash there, too.
        leave(0)
    os.close(writes)
    try:
        status = _wait_for(pid, began + limit)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            killed = _wait_for(pid, time.monotonic() + _KILLED_S) is not None
            end = "was killed" if killed else "no signal ends it: the GPU may be stuck"
            reason = f"did not end within {limit:.0f} s, and {end}"
            return TrialOutcome(FRESH_STARTS, HUNG, reason)
        outcome = _fork_outcome(_read_answer(reads), status)
    finally:
        os.close(reads)
    return replace(outcome, seconds=round(time.monotonic() - began, 3))


def _write_answer(find: Callable[[], list[str]], pipe: int) -> None:
    """Write what is found, in a fork."""
    try:
        answer = {"faults": find()}
    except Exception as error:
        first, _, _ = str(error).partition("\n")
        answer = {"faults": [f"{type(error).__name__}: {first}"]}
    answer["faults"] = [one[:_SAID] for one in answer["faults"]]
    os.write(pipe, json.dumps(answer).encode()[:_PIPE])
    os.close(pipe)


def _wait_for(pid: int, until: float) -> int | None:
    """The exit status of a fork, negative for a signal; None if it has not ended until then."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            return None
        time.sleep(_LOOK_S)


def _read_answer(pipe: int) -> list[str] | None:
    """The faults that a fork has found, None if it has said nothing."""
    # Something that it has started may still have its end of the pipe, so nobody waits for more.
    if not select.select([pipe], [], [], 0)[0]:
        return None
    try:
        faults: list[str] = json.loads(os.read(pipe, _PIPE))["faults"]
    except ValueError:
        return None
    return faults


def _fork_outcome(faults: list[str] | None, status: int) -> TrialOutcome:
    if faults:
        return TrialOutcome(FRESH_STARTS, WRONG, "; ".join(faults))
    if status or faults is None:
        return TrialOutcome(FRESH_STARTS, CRASHED, processes.how_it_ended(status))
    return TrialOutcome(FRESH_STARTS, ENDED)


def find_faults(device: str) -> list[str]:
    """What is wrong with the graphs of this process: our own small ones, and those of a program."""
    import torch

    from rocm_autopatch.graphs import self_test

    where = torch.device(device)
    return self_test.find_faults(where) + compare_replays(where)


def compare_replays(device: Device) -> list[str]:
    """What is wrong with a small program as a graph, beside eager mode.

    It is not compiled: that would take longer than all else. Its replays follow each other without
    a wait.
    """
    import torch

    from rocm_autopatch.graphs import graphed
    from rocm_autopatch.measure.prove.bench import difference_to_eager

    torch.manual_seed(0)
    layers = [torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, 64), torch.nn.Softmax(-1)).to(device)
    # A graph that is wrong must not be hidden by a plain call in its place.
    fast = graphed(model, verify=False, guards="none")
    with torch.no_grad():
        inputs = [torch.randn(32, 64).to(device) for _ in range(_REPLAYS)]
        wanted = [model(one) for one in inputs]
        apart = [difference_to_eager(torch, one, fast(x)) for one, x in zip(wanted, inputs)]
    wrong = sum(not float(one) <= 1 for one in apart)
    found = [f"program: {wrong} of {_REPLAYS} calls differ from eager mode"] if wrong else []
    if not fast.row["replays"]:
        found.append(f"program: it was not replayed: {'; '.join(fast.row['refused'])}")
    return found


if __name__ == "__main__":
    run_forks()
