"""Many processes of fuzz.py side by side on one machine: what they find together.

Worker k of n tries the seeds from k on, each n-th. GPUs are dealt in turn. A worker that dies, or
is not over long after its time, is wrong, too: its seed is told, and the next one goes on in a new
process.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

# Seconds after the end for the seeds that are under way, and between sums.
_LATE, _BETWEEN = 180, 60
# A number of deaths in a row of a worker that has finished no seed between them.
_DEATHS = 3
VISIBLE = "HIP_VISIBLE_DEVICES" if "HIP_VISIBLE_DEVICES" in os.environ else "CUDA_VISIBLE_DEVICES"


class Worker:
    """One process at a time, and the seeds that it has."""

    def __init__(self, script: str, number: int, count: int, seed: int, work: Path) -> None:
        self.number, self.seed, self.deaths = number, seed + number, 0
        self._command = [sys.executable, script, "--stride", str(count)]
        self._log = work / f"{number}.log"
        devices = visible()
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(work / f"caches-{number}"),
            "TRITON_CACHE_DIR": str(work / f"caches-{number}" / "triton"),
        }
        # Each compiles by itself: the machine's cores are for the workers.
        threads = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        own = {VISIBLE: devices[number % len(devices)]} if devices else {}
        self._env = {**os.environ, **threads, **caches, **own}
        self.process: Any = None
        # Whether the process has told its own sum, which is the last that it does.
        self._told = False
        self._began = 0.0
        self._before = 0.0

    def start(self, end: float, said: queue.Queue[Any]) -> None:
        """Start a process at the seed that comes next. A thread hands on what it says."""
        left = max(0, end - time.monotonic())
        with self._log.open("w") as stream:
            self.process = subprocess.Popen(
                [*self._command, "--seed", str(self.seed), "--seconds", f"{left:.0f}"],
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                start_new_session=True,
            )
        self._began, self._told = time.monotonic(), False
        threading.Thread(target=self._read, args=(self.process, said), daemon=True).start()

    def _read(self, process: Any, said: queue.Queue[Any]) -> None:
        for line in process.stdout:
            if line.startswith("{"):
                said.put((self, json.loads(line)))
            self._told |= " models, " in line
        process.wait()
        said.put((self, None))

    def seconds(self) -> float:
        """How long its processes have run, together."""
        return self._before + (time.monotonic() - self._began if self._began else 0)

    def over(self) -> str:
        """Why its process has failed, if it has. Its seed is then the one that was under way."""
        self._before, self._began = self.seconds(), 0.0
        if self._told:
            return ""
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"its process ended with status {self.process.returncode}: {''.join(last)[:300]}"

    def kill(self) -> None:
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


def visible() -> list[str]:
    """The GPUs that a worker can be given."""
    import torch

    asked = os.environ.get(VISIBLE)
    return asked.split(",") if asked else list(map(str, range(torch.cuda.device_count())))


def run(script: str, count: int, seconds: float, seed: int) -> int:
    """Run so many workers for so many seconds; the exit status."""
    end = time.monotonic() + seconds
    said: queue.Queue[Any] = queue.Queue()
    totals = Counter({"models": 0, "calls": 0, "replays": 0, "differences": 0})
    told: list[Any] = []
    running: list[Worker] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        everyone = [Worker(script, number, count, seed, Path(directory)) for number in range(count)]

        def tell(worker: Worker, why: str) -> None:
            totals["differences"] += 1
            told.append(worker.seed)
            print(json.dumps({"seed": worker.seed, "wrong": why}), flush=True)

        def total() -> str:
            words = [f"{much} {name}" for name, much in totals.items()]
            spent = sum(worker.seconds() for worker in everyone)
            return ", ".join([*words, f"{spent:.0f} seconds of {count} processes together"])

        next_sum = time.monotonic() + _BETWEEN
        try:
            for worker in everyone:
                worker.start(end, said)
                running.append(worker)
            while running and time.monotonic() < end + _LATE:
                if time.monotonic() > next_sum:
                    next_sum += _BETWEEN
                    print(f"so far: {total()}", flush=True)
                try:
                    worker, found = said.get(timeout=1)
                except queue.Empty:
                    continue
                if found is not None:
                    totals.update({name: found.get(name, 0) for name in ("calls", "replays")})
                    totals["models"] += 1
                    worker.seed, worker.deaths = found["seed"] + count, 0
                    if "wrong" in found:
                        totals["differences"] += 1
                        told.append(found["seed"])
                        print(json.dumps(found), flush=True)
                    continue
                running.remove(worker)
                why = worker.over()
                if why:
                    tell(worker, why)
                    worker.seed, worker.deaths = worker.seed + count, worker.deaths + 1
                    if time.monotonic() < end and worker.deaths < _DEATHS:
                        worker.start(end, said)
                        running.append(worker)
            for worker in running:
                tell(worker, f"not over {_LATE} s after the end")
        except KeyboardInterrupt:
            # What was under way is not known, and what is known is told.
            pass
        finally:
            for worker in everyone:
                worker.kill()
        if told:
            print(f"wrong: {' '.join(map(str, told))} (--one SEED runs one of them)", flush=True)
        print(total(), flush=True)
    return 1 if told else 0
