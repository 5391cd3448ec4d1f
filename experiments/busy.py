"""Whether a test depends on how busy the machine is.

    python -m experiments.busy [--runs 10] [--at-once 10] [--work DIRECTORY] [TEST ...]

All runs start together, each in one process, so that each has the others beside it. Without TEST
they run the files of tests/ whose text has a clock or a sleep in it: time.sleep, time.monotonic,
perf_counter, or a program of a shell that sleeps. A line says how each run ended and how long it
took; a run that failed has its whole output in DIRECTORY. The exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLOCK = re.compile(r"time\.sleep|time\.monotonic|perf_counter|sleep \d")
KEPT = "not ci and not later and not nightly"


def tests_with_a_clock() -> list[str]:
    """The test files that wait, or that look at how long something took, and not tests/graphs:
    tests/test_graphs.py runs these."""
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "graphs" not in path.parts and CLOCK.search(path.read_text(encoding="utf-8"))
    ]
    return [*found, "tests/test_graphs.py"]


def run_tests(number: int, tests: list[str], work: Path) -> bool:
    """One run. True if all tests passed."""
    temporary = tempfile.mkdtemp(prefix="busy-")
    began = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", KEPT),
            # Not below the checkout: what is kept of a run names no path in it.
            *(f"--basetemp={Path(temporary) / 'tests'}", *tests),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    took = time.monotonic() - began
    shutil.rmtree(temporary, ignore_errors=True)
    last = (done.stdout.splitlines() or ["it said nothing"])[-1]
    print(f"run {number}: {last} ({took:.0f} s by the clock)", flush=True)
    if done.returncode:
        place = work / f"run-{number}.txt"
        place.write_text(done.stdout, encoding="utf-8")
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        print("\n".join([*failed, f"all of it: {place}"]), flush=True)
    return not done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", metavar="TEST", help="what pytest takes")
    parser.add_argument("--runs", type=int, default=10, help="how many runs (default: 10)")
    parser.add_argument("--at-once", type=int, default=10, help="of these at once (default: 10)")
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "busy")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    tests = asked.tests or tests_with_a_clock()
    print(f"{asked.runs} runs, {asked.at_once} at once, of {' '.join(tests)}", flush=True)
    with ThreadPoolExecutor(asked.at_once) as pool:
        passed = list(
            pool.map(lambda number: run_tests(number, tests, asked.work), range(1, asked.runs + 1))
        )
    print(f"{sum(passed)} of {asked.runs} runs passed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
