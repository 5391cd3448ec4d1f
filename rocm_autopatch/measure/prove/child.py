"""One start of a subject: several trials, one after the other, in a process of its own.

It writes lines of JSON to a file, so that whoever started it knows how far it came: for each trial
``{"trial": NAME, "phase": NAME}`` at each step, and one line with a ``status`` at its end.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import gc
import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

from rocm_autopatch.measure.prove import (
    COMPILED,
    CRASHED,
    ENDED,
    IMPORTING,
    LEAKS,
    NOT_HERE,
    WAITING,
    WRONG,
    trials,
)
from rocm_autopatch.measure.prove.rows import TrialOutcome

if TYPE_CHECKING:
    from rocm_autopatch.measure.prove.bench import Program, Result, TrialBench

# What a GPU says that only compiles: the stand-in of compiling_gpu.
_COMPILES_ONLY = "compiles and does not run"
# What may be allocated more in the second half of the calls than in the first one, in bytes.
_LEAK_GPU, _LEAK_CPU = 4 << 20, 48 << 20
# A sample of the time of calls lasts at least so long.
_SAMPLE_S = 0.01
_SAMPLES = 30
# So many turns of a trial's calls are made before its memory may not grow any more.
_TURNS = 6
# The locks that this process holds to its end.
_held: dict[str, TextIO] = {}


def run_child() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trials", nargs="+")
    parser.add_argument("--report", required=True, help="the file for the lines")
    parser.add_argument("--mode", default="")
    parser.add_argument("--device", required=True)
    parser.add_argument("--key", action="append", default=[], help="a key that must be applied")
    parser.add_argument("--calls", type=int, required=True, help="compared with eager mode")
    parser.add_argument("--seconds", type=float, required=True, help="for these calls, at most")
    parser.add_argument("--time", type=float, default=0.0, help="seconds for timed calls")
    parser.add_argument("--alone", default="", help="a lock: only one process is on the device")
    asked = parser.parse_args()
    began = time.monotonic()
    with open(asked.report, "a", encoding="utf-8", buffering=1) as stream:

        def say(trial: str, **what: object) -> None:
            at = round(time.monotonic() - began, 3)
            stream.write(json.dumps({**what, "trial": trial, "at": at}) + "\n")

        for trial in asked.trials:
            say(trial, phase=IMPORTING)
            # What can't be imported fails once more in its trial, and counts there.
            with contextlib.suppress(Exception):
                _import_of_trial(trials.load_trial(trial))
        for trial in asked.trials:
            try:
                found = _run_trial(trial, asked, functools.partial(say, trial))
            except Exception as error:
                found = _failure_outcome(error)
            say(trial, **found.document())
            if found.status == CRASHED:
                return  # What comes next would be in doubt: it gets a process of its own.
            _clean_up()


def _import_of_trial(trial: ModuleType) -> None:
    """Import what a trial uses. Another process may be on the device meanwhile."""
    for module in ("torch", "torch._inductor.compile_fx", *getattr(trial, "NEEDS", ())):
        importlib.import_module(module)


def _clean_up() -> None:
    """Forget what a trial has compiled and allocated."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.compiler.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _failure_outcome(error: BaseException) -> TrialOutcome:
    text = f"{type(error).__name__}: {error}".strip()
    if _COMPILES_ONLY in text or _COMPILES_ONLY in str(error.__cause__ or ""):
        return TrialOutcome(status=COMPILED)
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    last = "".join(lines).strip().splitlines()[-12:]
    reason = text.splitlines()[0][:300]
    return TrialOutcome(status=CRASHED, reason=reason, last_lines=tuple(last))


def _run_trial(name: str, asked: argparse.Namespace, say: Callable[..., None]) -> TrialOutcome:
    say(phase=IMPORTING)
    trial = trials.load_trial(name)
    for module in getattr(trial, "NEEDS", ()):
        package = module.partition(".")[0]
        if importlib.util.find_spec(package) is None:
            return TrialOutcome(status=NOT_HERE, reason=f"{package} is not installed")
    import torch
    import torch._dynamo
    import torch._inductor.config

    from rocm_autopatch.measure.prove import bench

    missing = _not_applied(asked.key)
    if missing:
        return TrialOutcome(status=NOT_HERE, reason=missing)
    if asked.alone and asked.alone not in _held:
        say(phase=WAITING)
        _held[asked.alone] = open(asked.alone, "w", encoding="ascii")  # noqa: SIM115
        fcntl.flock(_held[asked.alone], fcntl.LOCK_EX)
    say(phase="making the program")
    with contextlib.ExitStack() as stack:
        if not getattr(trial, "TRAINING", False):
            stack.enter_context(torch.no_grad())
        sides = []
        for compiled in (False, True):
            torch.manual_seed(0)
            side = bench.TrialBench(torch, asked.device, asked.mode or None, compiled)
            sides.append((side, trial.make_program(side)))
        (_, eager), (side, call) = sides
        del sides
        return _measure_trial(torch, asked, say, trial, side, eager, call)


def _measure_trial(
    torch: ModuleType,
    asked: argparse.Namespace,
    say: Callable[..., None],
    trial: ModuleType,
    side: TrialBench,
    eager: Program,
    call: Program,
) -> TrialOutcome:
    from rocm_autopatch.measure.prove import bench

    rows_before = len(_graph_rows())
    say(phase="calling in eager mode")
    # A copy, because the program may change what it returned.
    expected = _copy_result(eager(0))
    side.wait()
    say(phase="first call")
    began = time.perf_counter()
    found = call(0)
    side.wait()
    first = time.perf_counter() - began
    apart = [bench.difference_to_eager(torch, expected, found)]
    say(phase="comparing calls", first=first)
    began, half, turn = time.perf_counter(), 0, getattr(trial, "TURN", 1)
    memory = 0
    for number in range(1, asked.calls):
        expected = _copy_result(eager(number))
        apart.append(bench.difference_to_eager(torch, expected, call(number)))
        spent = time.perf_counter() - began
        # By then each kind of call was made often enough to have all that it will ever have.
        enough = number >= _TURNS * turn
        if not half and enough and (number >= asked.calls // 2 or spent > asked.seconds / 2):
            half, memory = number, _allocated_bytes(torch, side)
        if half and spent > asked.seconds and number >= 2 * half:
            break
    leaked = 0
    if half:
        further = range(len(apart), 2 * len(apart) - half)
        leaked = _leaked_bytes(torch, side, memory, lambda: [call(number) for number in further])
    figures = [float(one) for one in apart]
    outcome = TrialOutcome(status=ENDED, first=first, calls=len(figures))
    # NaN compares with nothing.
    wrong = [number for number, one in enumerate(figures) if not one <= 1]
    if wrong:
        reason = f"{len(wrong)} of {len(figures)} calls differ from eager mode, the first is call "
        worst = max((figures[number] for number in wrong), key=lambda one: (one != one, one))
        reason += f"{wrong[0] + 1}; the largest difference is {worst:.3g} times what is allowed"
        return replace(outcome, status=WRONG, reason=reason)
    refused = _wrong_graph(rows_before)
    if refused:
        return replace(outcome, status=WRONG, reason=refused)
    if leaked:
        reason = f"{leaked / 2**20:.0f} MiB more are in use {len(figures) - 1 - half} calls later"
        return replace(outcome, status=LEAKS, reason=reason)
    if asked.time and getattr(trial, "TIMED", True):
        say(phase="timing calls")
        del eager, apart, expected, found
        gc.collect()
        samples, peak = _timed_samples(torch, side, call, asked.time, turn * len(figures), turn)
        outcome = replace(outcome, samples=samples, peak=peak)
    say(phase="ending")
    return outcome


def _graph_rows() -> list[dict[str, Any]]:
    import rocm_autopatch

    report: dict[str, Any] = rocm_autopatch.status()
    return list(report["graphs"])


def _wrong_graph(rows_before: int) -> str | None:
    """What our graphs found wrong with themselves in a trial, which then ran without them, or
    None."""
    soundness = sys.modules.get("rocm_autopatch.graphs.soundness")
    if soundness is not None and soundness.distrusted:
        return str(soundness.distrusted[0])
    reasons = (one["reason"] for row in _graph_rows()[rows_before:] for one in row["refused"])
    return next((one for one in reasons if _says_wrong(one)), None)


def _says_wrong(reason: str) -> bool:
    """Whether a graph was refused because its replay was wrong."""
    return reason.startswith("a replay differs from a plain call")


def _leaked_bytes(
    torch: ModuleType, side: TrialBench, before: int, again: Callable[[], object]
) -> int:
    """The bytes that are more in use than *before*, 0 if the program does not leak.

    *again* makes as many calls as there were since then. A leak goes on in these; what a program
    allocates once may come late, such as a graph for a path that is rarely taken.
    """
    limit = _LEAK_GPU if side.gpu else _LEAK_CPU
    now = _allocated_bytes(torch, side)
    if now - before <= limit:
        return 0
    again()
    goes_on = _allocated_bytes(torch, side) - now > limit
    return now - before if goes_on else 0


def _copy_result(found: Result) -> Result:
    if not isinstance(found, Sequence):
        return found.clone()
    return [one.clone() for one in found]


def _allocated_bytes(torch: ModuleType, side: TrialBench) -> int:
    """Bytes that are in use: the GPU's, or this process's."""
    side.wait()
    gc.collect()
    if side.gpu:
        return int(torch.cuda.memory_allocated())
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _timed_samples(
    torch: ModuleType,
    side: TrialBench,
    call: Program,
    seconds: float,
    number: int,
    turn: int,
) -> tuple[tuple[float, ...], int]:
    """Samples of the seconds of a call, and the most memory that was reserved, in bytes."""
    if side.gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    samples: list[float] = []
    calls = turn
    end = time.perf_counter() + seconds
    while len(samples) < 3 or (len(samples) < _SAMPLES and time.perf_counter() < end):
        began = time.perf_counter()
        for _ in range(calls):
            call(number)
            number += 1
        side.wait()
        lasted = time.perf_counter() - began
        if lasted < _SAMPLE_S and not samples:
            # These calls only tell how many a sample needs: whole turns of them.
            needed = 1.2 * calls * _SAMPLE_S / max(lasted, 1e-6)
            calls = max(2 * calls, -(-int(needed) // turn) * turn)
            continue
        samples.append(lasted / calls)
    peak = torch.cuda.max_memory_reserved() if side.gpu else 0
    return tuple(samples), int(peak)


def _not_applied(keys: list[str]) -> str | None:
    """Why the subject's policy or one of its config keys is not in force, None if all are."""
    import rocm_autopatch

    report: dict[str, Any] = rocm_autopatch.status()
    # Without the policy, a mode is torch's own: its graphs would be taken for ours.
    if report["observe"] or not report["active"]:
        return f"the subject's policy is not applied: {report['reason'] or 'only observed'}"
    if report["errors"]:
        return str(report["errors"][0])
    rows = {row["name"]: row for row in report["config"]}
    for key in keys:
        row = rows.get(key)
        if row is None or row["status"] != "applied":
            return f"{key}: {row['reason'] or row['status'] if row else 'no such entry'}"
    return None


if __name__ == "__main__":
    run_child()
