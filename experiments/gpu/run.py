"""On a machine with a GPU: all that is measured there, in one command.

    python experiments/gpu/run.py WORK [--seconds 1700] [--only graphs training prove proven ...]

For an interpreter that has torch for that GPU, transformers, timm, diffusers and our wheel, as
root: the tests of graphs (they need pytest), the battery of ``prove``, and then the scripts beside
this file. ``proven`` needs evidence, of that battery or of an earlier one.
WORK has what each of them said and found, as it comes; each ends at its own limit, or when the
seconds are over. A second call does what is missing: ``prove`` goes on from its file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from rocm_autopatch.evidence import file

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
_PLAIN = ("-p", "no:cacheprovider", "-c", "/dev/null", "--noconftest")
# They turn our graphs on themselves.
_OFF = ("graphs", "training", "fuzz")
# By name: the most seconds, and the command. WORK stands for a directory of its own.
STEPS = {
    # Without the checkout's own settings, which need more than that machine may have.
    "graphs": (420, ["-m", "pytest", "-q", *_PLAIN, str(ROOT / "tests" / "graphs")]),
    "prove": (1230, ["-m", "rocm_autopatch", "prove"]),
    "proven": (480, [str(HERE / "proven.py"), "WORK", "--seconds", "420"]),
    "warmed": (300, [str(HERE / "warmed.py"), "WORK", "--seconds", "280"]),
    "warmed_without_gpu": (260, [str(HERE / "warmed_without_gpu.py"), "WORK"]),
    "training": (
        420,
        [str(ROOT / "benchmarks" / "training.py"), "--rounds", "1", "--json", "JSON"],
    ),
    "fuzz": (620, [str(ROOT / "tests" / "graphs" / "fuzz.py"), "--seconds", "600"]),
    "faults": (160, [str(HERE / "faults.py")]),
    "alarms": (600, [str(HERE / "alarms.py"), "WORK"]),
}


def step(name: str, work: Path, seconds: float) -> str:
    """Run a step for so many seconds at most, and return how it ended."""
    own = work / name
    own.mkdir(exist_ok=True)
    places = {"WORK": str(own), "JSON": str(work / f"{name}.json")}
    command = [sys.executable, *(places.get(word, word) for word in STEPS[name][1])]
    began = time.monotonic()
    with (work / f"{name}.log").open("a") as stream:
        env = {**os.environ, **({"ROCM_AUTOPATCH": "off"} if name in _OFF else {})}
        process = subprocess.Popen(command, cwd="/", env=env, stdout=stream, stderr=stream)
        try:
            status = f"status {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            # It keeps what is known.
            process.send_signal(signal.SIGINT)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            status = "out of time"
    return f"{name}: {status}, {time.monotonic() - began:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description="All that is measured on a GPU.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=1700, help="for all of it (1700)")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS))
    asked = parser.parse_args()
    work = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.seconds
    for name in asked.only:
        left = end - time.monotonic()
        said = f"{name}: no time left"
        if left > 30:
            said = step(name, work, min(STEPS[name][0], left))
        for path in file.site_paths():
            shutil.copy(path, work)
        with (work / "steps.log").open("a") as stream:
            stream.write(said + "\n")
        print(said, flush=True)


if __name__ == "__main__":
    main()
