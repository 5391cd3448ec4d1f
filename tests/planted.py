"""A trial of ``prove`` with a fault: tests/test_prove.py and experiments/gpu/faults.py copy it into
an environment, under the name of each fault. The fault acts where the subject's config key is on,
and nowhere else. "imports_slowly" and "dies_at_import" act while their module is imported."""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rocm_autopatch.measure.prove.bench import TrialBench

ABOUT = ("freezing", "memory_planning", "aggressive_fusion")
# Tests put a module of this name beside the package.
NEEDS = tuple({__name__.rpartition(".")[2]} & {"imports_slowly", "dies_at_import"})
FAULTS = (
    *(
        "good",
        "wrong",
        "nan",
        "raises",
        "grows",
        "grows_once",
        "slow",
        "aborts",
        "quits",
        "second_start",
    ),
    *("first_time", "stubborn", "stubborn_later", "at_exit", "imports_slowly", "dies_at_import"),
)
_CALL_S = 0.001
_IGNORES = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(600)\n"
_grown: list[Any] = []


def make_program(bench: TrialBench) -> Callable[[int], Any]:
    import torch._inductor.config as config

    name = __name__.rpartition(".")[2]
    fault = name if bench.compiled and config.freezing else ""
    # Each call of it lasts, and five times as long where memory is planned.
    lasts = _CALL_S if name == "slow" else 0.0
    if bench.compiled and config.memory_planning:
        lasts *= 5

    def double(x: Any) -> Any:
        return x * 2

    compiled = bench.compile(double, backend="eager")
    inputs = bench.inputs(4, 4)
    if name == "at_exit" and bench.compiled and config.aggressive_fusion:
        atexit.register(os._exit, 3)
    if fault == "at_exit":
        atexit.register(time.sleep, 600)

    def call(number: int) -> Any:
        if lasts:
            time.sleep(lasts)
        found = compiled(inputs(number))
        if number == 0:
            _first(fault)
        if fault == "wrong" and number == 57:
            found[1, 1] += 1
        if fault == "nan" and number == 3:
            found[1, 1] = float("nan")
        if fault == "raises" and number == 2:
            raise RuntimeError("HIP error: invalid device function")
        if fault == "grows" and bench.gpu:
            _grown.append(bench.torch.zeros(2 << 20, dtype=bench.torch.uint8, device="cuda"))
        elif fault == "grows" or (fault == "grows_once" and number == 80):
            _grown.append(b"x" * ((2 if fault == "grows" else 100) << 20))
        if fault == "queue" and number == 4:
            bench.torch.cuda._sleep(1 << 62)
        if fault == "asserts" and number == 4:
            found = found[found.long() + 1000]
        return found

    return call


def _first(fault: str) -> None:
    """What happens in the first call."""
    caches = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    caches.mkdir(exist_ok=True)
    before = caches / f"{fault}-was-here"
    is_new = not before.exists()
    before.touch()
    if fault == "first_time" and is_new:
        raise RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB.")
    if fault == "aborts" or (fault == "second_start" and not is_new):
        print("about to abort", file=sys.stderr, flush=True)
        os.abort()
    if fault == "quits":
        os._exit(0)
    if fault == "stubborn" or (
        fault == "stubborn_later" and not is_new and "PLANTED_PID" in os.environ
    ):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # In a group of its own, as Inductor's compile workers are.
        subprocess.Popen([sys.executable, "-c", _IGNORES], start_new_session=True)
        if "PLANTED_PID" in os.environ:
            Path(os.environ["PLANTED_PID"]).write_text(str(os.getpid()), encoding="ascii")
        while True:
            time.sleep(600)
