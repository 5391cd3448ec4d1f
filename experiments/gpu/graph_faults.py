"""On a machine with a GPU: faults planted behind its graphs, and whether ``prove`` finds each.

    python experiments/gpu/graph_faults.py WORK [--seconds S] [--runs 1] [--unharmed 20]
        [--at-once 4] [--gpus 0 1 2 3]

For an interpreter that has torch 2.11 or later and our wheel, whose site-packages this process may
write. The faults are those of experiments/gpu/planted_graphs.py: what HIP graphs are known to
do, on any GPU. Each run is a battery of the subject ``graphs``: 21 fresh processes, and the trials
that must find the fault, with empty caches. Then as many runs of an unharmed torch, with all
trials about graphs: a fault there is a false alarm. WORK/graph_faults.jsonl keeps the results as
they come; a second call goes on from there. The exit status is 1 if a fault was not found, or if
there was an alarm.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

from planted_graphs import FAULTS, VARIABLE

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.measure.prove import FAULTS as STATUSES
from rocm_autopatch.measure.prove import verdicts
from rocm_autopatch.measure.prove.battery import FULL, BatteryThoroughness, TrialBattery
from rocm_autopatch.measure.prove.supervisor import StartSupervisor

PLANTED = Path(__file__).resolve().parent / "planted_graphs.py"
UNHARMED = "none"
TRIALS = ("host_copy", "memset", "many_nodes", "topk", "capturing_threads")
# What must find each fault; others may find it, too. The truncated graph is a second thread's.
FOUND_BY = {
    "stale_memset": {"fresh_starts", "memset"},
    "stale_host_copy": {"fresh_starts", "host_copy"},
    "truncated": {"capturing_threads"},
    "stale_pointers": {"fresh_starts", "many_nodes"},
    "second_replay": {"fresh_starts"},
    "poisoned": {"fresh_starts"},
}
# One run has so many seconds. It needs one to two minutes.
_LIMIT_S = 400


def trials_of(fault: str) -> tuple[str, ...]:
    """The trials that must find a fault; all where none does, and where there is no fault."""
    return tuple(one for one in TRIALS if one in FOUND_BY.get(fault, ())) or TRIALS


def run_battery(fault: str, number: int, gpu: str) -> dict[str, Any]:
    """What a battery on a GPU says of the graphs of processes with a fault."""
    tried = trials_of(fault)
    how = BatteryThoroughness(
        name="full",
        seconds=_LIMIT_S,
        calls=60,
        check=2,
        time=0,
        warm=0,
        settle=0,
        limit=120,
        slower=10,
        subjects=("default", "graphs"),
        trials=tried,
        fresh=FULL.fresh,
    )
    planted = {VARIABLE: "" if fault == UNHARMED else fault, "CUDA_VISIBLE_DEVICES": gpu}
    environ = {**fresh_interpreter.environment(), **planted}
    work = TrialBattery(
        StartSupervisor(environ, "cuda", assume=True), how, (), (), lambda: None, lambda row: None
    )
    began = time.monotonic()
    work.run()
    said = verdicts.subject_verdicts(work.rows, work.units(), {"graphs": how.fresh})
    bad = [row for row in work.rows if row.status in STATUSES]
    return {
        "fault": fault,
        "run": number,
        "seconds": round(time.monotonic() - began, 1),
        "is_found": said["graphs"].sound is False,
        "base_failed": bool(said["default"].faults),
        "by": sorted({row.trial for row in bad if row.subject == "graphs"}),
        # None of them is left out because there was no time.
        "rows": len(work.rows),
        "fresh_starts": verdicts.count_fresh_starts(work.rows, "graphs"),
        "right": verdicts.count_fresh(work.rows, "graphs"),
        "reasons": [f"{row.subject} in {row.trial}: {row.reason}" for row in bad],
        "last_lines": [row.last_lines for row in bad],
    }


def is_right(row: dict[str, Any]) -> bool:
    """Whether a fault was found where it is, and nothing else was called one."""
    rows = 2 * len(trials_of(row["fault"])) + 1
    # A run of an earlier call may have had all trials.
    if row["fresh_starts"] != FULL.fresh or row["rows"] < rows or row["base_failed"]:
        return False
    if row["fault"] == UNHARMED:
        return not row["is_found"]
    return bool(row["is_found"] and FOUND_BY[row["fault"]] & {*row["by"]})


@contextmanager
def planted() -> Iterator[None]:
    """The module of faults in this interpreter's site-packages. The variable turns one on."""
    site = Path(sysconfig.get_paths()["purelib"])
    module, starts = site / PLANTED.name, site / f"{PLANTED.stem}.pth"
    try:
        shutil.copy(PLANTED, module)
        starts.write_text(
            f"import os; os.environ.get({VARIABLE!r}) and __import__({PLANTED.stem!r})\n"
        )
        yield
    finally:
        module.unlink(missing_ok=True)
        starts.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults behind graphs, and whether each is found.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=1500, help="to begin runs in (1500)")
    parser.add_argument("--runs", type=int, default=1, help="of each fault (1)")
    parser.add_argument("--unharmed", type=int, default=20, help="runs without a fault (20)")
    parser.add_argument(
        "--at-once", type=int, default=4, help="runs beside each other on a GPU (4)"
    )
    parser.add_argument("--gpus", nargs="+", default=["0"], help="numbers of the GPUs to use (0)")
    parser.add_argument("--only", nargs="+", choices=(*FAULTS, UNHARMED), default=())
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    kept, end = asked.work / "graph_faults.jsonl", time.monotonic() + asked.seconds
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["fault"], row["run"]) for row in rows}
    jobs = [(fault, number) for number in range(asked.runs) for fault in FAULTS]
    jobs += [(UNHARMED, number) for number in range(asked.unharmed)]
    chosen = asked.only or (*FAULTS, UNHARMED)
    left = [job for job in jobs if job not in done and job[0] in chosen]

    free: Queue[str] = Queue()
    for gpu in asked.gpus * asked.at_once:
        free.put(gpu)

    def run(job: tuple[str, int]) -> None:
        if time.monotonic() < end:
            gpu = free.get()
            row = run_battery(*job, gpu)
            free.put(gpu)
            rows.append(row)
            with kept.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            print(f"{'' if is_right(row) else 'WRONG: '}{json.dumps(row)}", flush=True)

    with planted(), ThreadPoolExecutor(free.qsize()) as pool:
        list(pool.map(run, left))
    for fault in (*FAULTS, UNHARMED):
        own = [row for row in rows if row["fault"] == fault]
        found = sum(is_right(row) == (fault != UNHARMED) for row in own)
        by = sorted({trial for row in own for trial in row["by"]})
        print(f"{fault}: found in {found} of {len(own)} runs, by {', '.join(by) or 'none'}")
    missing = len(jobs) - len({(row["fault"], row["run"]) for row in rows} & {*jobs})
    print(f"{missing} of {len(jobs)} runs are not made yet" if missing else "all runs are made")
    return 0 if all(map(is_right, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
