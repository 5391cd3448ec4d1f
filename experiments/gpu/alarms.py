"""On an unharmed torch: ``prove --quick``, many times, and each fault that it tells is a false one.

    python experiments/gpu/alarms.py WORK [--runs 20] [--at-once 4] [--device cpu]

For an interpreter that has torch and our wheel. The batteries run beside each other, so their times
mean nothing, and what they call hung or crashed may be the others' doing: that, too, is what a user
of a busy machine would see. WORK/alarms.jsonl keeps what was found as it comes. The exit status is
1 if there was a fault, or a battery that did not end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def battery(work: Path, device: str, number: int) -> dict[str, Any]:
    """What a battery found: how many starts of trials, and their faults."""
    out, began = work / f"evidence-{number}.json", time.monotonic()
    command = [sys.executable, "-m", "rocm_autopatch", "prove", "--quick", "--again", "--json"]
    done = subprocess.run(
        [*command, "--device", device, "--out", str(out)], capture_output=True, text=True
    )
    if done.returncode:
        return {"number": number, "status": done.returncode, "stderr": done.stderr[-2000:]}
    found = json.loads(done.stdout)
    rows = found["trials"]
    return {
        "number": number,
        "status": 0,
        "seconds": round(time.monotonic() - began),
        "battery": found["battery"],
        "starts": len(rows),
        "calls": sum(row.get("calls", 0) for row in rows),
        "faults": [row for row in rows if row["status"] not in ("ended", "not here")],
        "repeated": [row for row in rows if "beside_others" in row],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Many quick batteries on an unharmed torch.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    found = []
    with ThreadPoolExecutor(asked.at_once) as pool:
        runs = pool.map(lambda number: battery(asked.work, asked.device, number), range(asked.runs))
        for one in runs:
            found.append(one)
            with (asked.work / "alarms.jsonl").open("a") as stream:
                stream.write(json.dumps(one) + "\n")
            print({key: one[key] for key in one if key != "stderr"}, flush=True)
    bad = [one for one in found if one["status"] or one["faults"]]
    starts, calls = (sum(one.get(key, 0) for one in found) for key in ("starts", "calls"))
    print(f"{len(found)} batteries, {starts} starts, {calls} calls: {len(bad)} with a fault")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
