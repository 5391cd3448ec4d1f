# mypy: disable-error-code="import-not-found"
"""On a machine with a GPU: does it take the caches that a machine without one has filled?

    python experiments/gpu/taken.py FILLED WORK [--starts 5] [--seconds 500] [--only MODEL ...]

FILLED has a directory of caches for each model of experiments/live/programs/filled_models.py, as
experiments/live/filled.py fills them on a stand-in. Each model starts so many times from a copy of
them (``filled``), and so many times from caches that a start on this GPU has made (``warm``), by
turns. A row has the hits and misses of torch's caches, the Triton kernels that were not there
before, the seconds of the program, and how many kernels' configs it measured in how many of them.
torch keeps the best configs where the caches were filled (research/caches-torch.md), so what is
there is removed before each start from a copy: it is the first one of its machine.
WORK/taken.jsonl keeps rows as they come.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

PROGRAM = Path(__file__).parents[1] / "live" / "programs" / "filled_models.py"


def run_program(model: str) -> None:
    """Run a program in this process; print what torch's caches had and how long it took."""
    import torch
    from torch._dynamo.utils import counters

    torch.zeros(1, device="cuda")
    measured = time_measurements()
    began = time.perf_counter()
    sys.argv = [str(PROGRAM), model]
    runpy.run_path(str(PROGRAM), run_name="__main__")
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    found = {
        f"{part} {name}": count
        for part in ("inductor", "aot_autograd")
        for name, count in counters[part].items()
        if "cache" in name
    }
    told = {"measured": len(measured), "measuring": round(sum(measured), 2)}
    print(json.dumps({"seconds": round(seconds, 2), **told, "caches": found}))


def time_measurements() -> list[float]:
    """A list to which the seconds are added that each measurement of a kernel's configs takes."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    seconds: list[float] = []
    measure = CachingAutotuner.autotune_to_one_config

    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return measure(self, *args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - began)

    CachingAutotuner.autotune_to_one_config = timed
    return seconds


def kernels(caches: Path) -> set[str]:
    """The binaries of Triton's cache, by their directories."""
    return {path.parent.name for path in caches.rglob("*.cubin")}


def place_of_fill(source: Path) -> Path | None:
    """Where caches were filled, by the paths in a file of Triton's; None if they did not move."""
    for file in source.rglob("__grp__*.json"):
        paths = json.loads(file.read_text())["child_paths"].values()
        filled = Path(next(iter(paths)).partition("/triton/")[0])
        return None if filled == source.absolute() else filled
    return None


def start(model: str, kind: str, source: Path | None, own: Path) -> dict[str, Any]:
    """Start a program with a copy of *source*, or with the caches that are in *own*."""
    if source is not None:
        shutil.rmtree(own, ignore_errors=True)
        left = place_of_fill(source)
        if left is not None:
            shutil.rmtree(left, ignore_errors=True)
        shutil.copytree(source, own)
    before = kernels(own) if own.exists() else set()
    done = subprocess.run(
        [sys.executable, __file__, "--one", model],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(own), "ROCM_AUTOPATCH": "off"},
        capture_output=True,
        text=True,
    )
    row: dict[str, Any] = {"model": model, "kind": kind}
    if done.returncode:
        return {**row, "error": done.stderr.strip().splitlines()[-3:]}
    return {**row, **json.loads(done.stdout.splitlines()[-1]), "new": len(kernels(own) - before)}


def all_starts(model: str, asked: argparse.Namespace, end: float) -> list[dict[str, Any]]:
    own, warm = asked.work / f"{model}-filled", asked.work / f"{model}-warm"
    rows: list[dict[str, Any]] = []

    def add(kind: str, source: Path | None, own: Path) -> None:
        rows.append(start(model, kind, source, own))
        with (asked.work / "taken.jsonl").open("a") as stream:
            stream.write(json.dumps(rows[-1]) + "\n")

    add("cold", None, warm)
    for _ in range(asked.starts):
        if time.monotonic() < end:
            add("filled", asked.filled / model, own)
            add("warm", None, warm)
    for row in rows[:2]:
        print(json.dumps(row), flush=True)
    kinds = {
        kind: [row["seconds"] for row in rows if row["kind"] == kind and "seconds" in row]
        for kind in ("filled", "warm")
    }
    if all(kinds.values()):
        print(f"{model}: filled {median(kinds['filled'])} s, warm {median(kinds['warm'])} s")
    return rows


def main() -> None:
    """Start each model, and print a summary."""
    parser = argparse.ArgumentParser(description="Whether this GPU takes filled caches.")
    parser.add_argument("filled", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", nargs="+")
    asked = parser.parse_args()
    if not asked.filled.is_dir():
        parser.error(f"{asked.filled} is no directory: experiments/live/filled.py makes one")
    asked.work.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.seconds
    models = asked.only or sorted(path.name for path in asked.filled.iterdir() if path.is_dir())
    with ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(lambda model: all_starts(model, asked, end), models))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_program(sys.argv[2])
    else:
        main()
