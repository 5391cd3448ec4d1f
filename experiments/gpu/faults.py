"""On a machine with a GPU: faults planted into programs, and what ``prove`` says of each.

    python experiments/gpu/faults.py [--device cpu]

For an interpreter that has torch and our wheel, whose site-packages this process may write. The
faults are those of tests/planted.py. Each is in a battery of its own, beside the others: it acts
where the key ``freezing`` is on, and the base must stay sound. The exit status is 1 if a fault was
told as something else.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.measure.prove import CRASHED, ENDED, HUNG, LEAKS, WARM, WRONG, trials
from rocm_autopatch.measure.prove.battery import BatteryThoroughness, TrialBattery
from rocm_autopatch.measure.prove.supervisor import StartSupervisor

PLANTED = Path(__file__).resolve().parents[2] / "tests" / "planted.py"
SUBJECT = "freezing"
# What each fault must be called, and whether it acts in the second start only.
WANTED = {
    "good": (ENDED, ENDED),
    "wrong": (WRONG, ""),
    "nan": (WRONG, ""),
    "grows": (LEAKS, ""),
    "raises": (CRASHED, ""),
    "aborts": (CRASHED, ""),
    "quits": (CRASHED, ""),
    "second_start": (ENDED, CRASHED),
    "stubborn": (HUNG, ""),
    "at_exit": (HUNG, ""),
    # In the GPU's queue: work that does not end, and an assertion in a kernel.
    "queue": (HUNG, ""),
    "asserts": (CRASHED, ""),
}
ON_A_GPU = ("queue", "asserts")


def told(name: str, device: str, limit: float) -> tuple[tuple[str, str], bool, list[str]]:
    """The statuses of a fault's cold and warm start, the base's verdict, and the reasons."""
    how = BatteryThoroughness(
        name="full",
        seconds=500,
        calls=100,
        check=20,
        time=0.1,
        warm=1,
        settle=1,
        limit=limit,
        slower=1,
        subjects=("default", SUBJECT),
        trials=(name,),
    )
    supervisor = StartSupervisor(fresh_interpreter.environment(), device, assume=True)
    work = TrialBattery(supervisor, how, (), (), lambda: None, lambda row: None)
    work.run()
    base = [row for row in work.rows if row.subject == "default"]
    own = sorted((row for row in work.rows if row.subject == SUBJECT), key=lambda row: row.start)
    warm = next((row.status for row in own if row.start == WARM), "")
    reasons = [row.reason for row in own if row.reason]
    sound = bool(base) and all(row.status == ENDED for row in base)
    return (own[0].status if own else "", warm), sound, reasons


def main() -> int:
    parser = argparse.ArgumentParser(description="Planted faults, and what prove says of them.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--at-once", type=int, default=6, help="batteries beside each other (6)")
    parser.add_argument("--limit", type=float, default=20, help="seconds that a trial may take")
    asked = parser.parse_args()
    names = [name for name in WANTED if asked.device == "cuda" or name not in ON_A_GPU]
    (directory,) = trials.__path__
    made = [Path(directory, f"{name}.py") for name in names]
    began, failed = time.monotonic(), 0
    try:
        for path in made:
            shutil.copy(PLANTED, path)
        with ThreadPoolExecutor(asked.at_once) as pool:
            found = pool.map(lambda name: told(name, asked.device, asked.limit), names)
            for name, (statuses, sound, reasons) in zip(names, found):
                right = sound and statuses == WANTED[name]
                failed += not right
                said = ", ".join(filter(None, statuses)) + ("" if sound else "; the base failed")
                mark = "" if right else f"  <-- expected {', '.join(filter(None, WANTED[name]))}"
                print(f"{name}: {said}: {'; '.join(reasons)}{mark}", flush=True)
    finally:
        for path in made:
            path.unlink(missing_ok=True)
    seconds = time.monotonic() - began
    print(f"{len(names) - failed} of {len(names)} told right, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
