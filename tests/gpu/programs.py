"""On a machine with a GPU: two frameworks' programs under each policy, in two starts.

    python tests/gpu/programs.py WORK [--at-once N] [--seconds S]

For an interpreter that has torch for that GPU, transformers, timm and our wheel. The programs are
those of entries.py: transformers' ``generate`` with a static cache, which transformers itself
compiles with ``reduce-overhead``, and a convolution net of timm in the same mode. Each runs with
TORCHINDUCTOR_MAX_AUTOTUNE=1, as in SGLang's ROCm images, without us and under built-in policies, in
two processes that share one cache of compiled code in WORK. A run is right if it computes for three
inputs what eager computes. WORK/programs.jsonl keeps the results as they come. On a GPU that is not
AMD's, the fact that opens our gate is assumed: this shows what Inductor does, and nothing of HIP.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PROGRAMS = ("decoder", "convolution")
POLICIES = ("off", "safe", "performance", "capture-guard", "sglang-compile")


def start(work: Path, policy: str, program: str, number: int, seconds: float) -> dict[str, Any]:
    """Run a program once, and say what came of it."""
    place = work / f"{policy}-{program}"
    place.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "TRITON_CACHE_DIR": str(place / "triton"),
        "HF_HUB_OFFLINE": "1",
        "ROCM_AUTOPATCH_LOG": "quiet",
        "ROCM_AUTOPATCH_ASSUME": "accelerator=rocm",
        "ROCM_AUTOPATCH_POLICY": policy,
    }
    if policy in ("eager", "off"):
        del environment["ROCM_AUTOPATCH_POLICY"]
        environment["ROCM_AUTOPATCH"] = "off"
    if policy == "eager":
        environment["EAGER"] = "1"
    script = Path(__file__).with_name("entries.py")
    command = [sys.executable, str(script), "--one", program, str(work / f"{program}.pt")]
    row: dict[str, Any] = {"policy": policy, "program": program, "start": number}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return {**row, "died": f"not done after {seconds:.0f} s"}
    said = {line[:200] for line in done.stderr.splitlines() if re.search("warn|error", line, re.I)}
    row["warnings"] = sorted(said)[:8]
    row["benchmarked"] = len(re.findall("^AUTOTUNE ", done.stderr, re.M))
    if done.returncode:
        return {**row, "died": done.stderr[-300:], "status": done.returncode}
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


def cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not run"
    if "died" in row:
        return "died"
    right = "right" if row["right"] else "WRONG"
    return f"{right}, {row['first']:.1f} s, {row['call_ms']} ms, {row['benchmarked']} searches"


def main() -> None:
    parser = argparse.ArgumentParser(description="Frameworks' programs under each policy.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=400, help="to begin runs in")
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + asked.seconds
    found = {}

    def run(what: tuple[str, str, int]) -> None:
        if time.monotonic() > ends:
            return
        row = start(work, *what, seconds=200)
        found[what] = row
        with (work / "programs.jsonl").open("a") as stream:
            print(json.dumps(row), file=stream)
        print(json.dumps(row), flush=True)

    with ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(run, [("eager", program, 0) for program in PROGRAMS]))
        for number in (1, 2):
            list(
                pool.map(run, [(one, program, number) for program in PROGRAMS for one in POLICIES])
            )
    for policy in POLICIES:
        cells = [cell(found.get((policy, name, n))) for name in PROGRAMS for n in (1, 2)]
        print(" | ".join([f"{policy:14}", *cells]))


if __name__ == "__main__":
    main()
