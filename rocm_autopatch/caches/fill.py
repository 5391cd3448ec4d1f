"""Fill a place for a GPU that is not here: a command runs on a stand-in that compiles.

The place is the one that a start on a machine with that GPU makes: ROCM_AUTOPATCH_GPU stands for
the files of its driver, and all else is this environment's own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from rocm_autopatch import compiling_gpu
from rocm_autopatch.caches import FACTS, CacheRefused, places
from rocm_autopatch.caches.fill_targets import FillTarget
from rocm_autopatch.startup import caches, kfd

# Beside the default root: what is built of the stand-in, for each torch.
_BESIDE_ROOT = "-stand-in"
# Names the directory where each process of the stand-in writes what it compiled, when it ends.
PROCESSES = "COMPILING_GPU_PROCESSES"
# Set where the stand-in need not say what it is: we have.
_SAID = "COMPILING_GPU_SAID"
# What Triton's compilers write for a GPU.
_BINARIES = (".hsaco", ".cubin")
# The directory of Inductor's graphs: below it, XX/KEY.
_GRAPHS = "fxgraph"
# How long a command may take to end after each signal, in seconds.
_GRACE_S = 15.0
_LOOK_S = 0.1


@dataclass(frozen=True)
class CompiledParts:
    """What a place has: graphs of Inductor by their keys, kernels by their names in Triton."""

    graphs: frozenset[str]
    kernels: frozenset[str]

    def __sub__(self, other: CompiledParts) -> CompiledParts:
        return CompiledParts(self.graphs - other.graphs, self.kernels - other.kernels)


@dataclass
class FillProcesses:
    """What the processes of a command tell when they end."""

    graphs: int = 0  # that they compiled, or found
    value_reads: int = 0  # of values that are zero here, and may be others with real data
    value_guards: dict[str, None] = field(default_factory=dict)  # each once, in order
    not_captured: dict[str, None] = field(default_factory=dict)  # sentences


def compiled_parts(place: Path) -> CompiledParts:
    """What is compiled in a place, wherever frameworks put it."""
    graphs, kernels = set(), set()
    for directory, _, names in os.walk(place):
        above = directory.split(os.sep)
        if above[-3:-2] == [_GRAPHS]:
            graphs.add(above[-1])
        for name in names:
            if name.endswith(_BINARIES):
                kernels.add(f"{above[-1]}/{name}")
    return CompiledParts(frozenset(graphs), frozenset(kernels))


def prepare_place(target: FillTarget, environ: dict[str, str]) -> places.StartPlace:
    """Make the place for a target's GPU, as a start there does. *environ* is put right for that.

    Raises CacheRefused where this machine has a GPU, which no start overrules, NoReport and
    OSError.
    """
    environ.pop(kfd.DESCRIBED.decode(), None)
    if target.driver_words:
        environ[kfd.DESCRIBED.decode()] = target.driver_words
    here = places.start_place(environ)
    # Also if it is the same GPU, which measures where a stand-in takes the first candidate.
    if target.driver_words and os.path.isdir(f"/{kfd.NODES}"):
        raise CacheRefused(
            f"the AMD driver of this machine says {here.fields['gpu']}: run cache fill where there "
            "is no such driver, or cache warm for the GPU that is here"
        )
    places.judge_directory(here.place)
    return here


def mark_place(target: FillTarget, here: places.StartPlace) -> None:
    """Say in a place for which GPU it is filled. Raises OSError."""
    (here.place / FACTS).write_text(target.as_json(), encoding="utf-8")


def add_stand_in(target: FillTarget, environ: dict[str, str]) -> None:
    """Put into *environ* what a command needs to run on the stand-in.

    Raises UserError and OSError.
    """
    try:
        directory = Path(caches.where("on") + _BESIDE_ROOT)
    except caches.Unusable as error:
        raise CacheRefused(str(error)) from None
    # What is built there is run.
    places.make_root(directory)
    environ.update(compiling_gpu.prepare_stand_in(Path(sys.executable), target.facts, directory))
    environ[_SAID] = "1"


def read_processes(directory: Path) -> FillProcesses:
    """What the processes of a command have told: a file each, but for those that were killed."""
    found = FillProcesses()
    for path in sorted(directory.glob("*.json")):
        # One may have been killed while it wrote.
        with contextlib.suppress(OSError, ValueError):
            row = json.loads(path.read_bytes())
            found.graphs += row["graphs"]
            found.value_reads += row["value_reads"]
            found.value_guards.update(dict.fromkeys(row["value_guards"]))
            found.not_captured.update(dict.fromkeys(row["not_captured"]))
    return found


class FillLimits:
    """Ends a command that has run for long enough: as Ctrl-C does, later as an init does.

    ``ended`` says which limit it was, "" if none was reached. *seconds* and *graphs* are None where
    there is no limit.
    """

    def __init__(
        self, place: Path, before: CompiledParts, seconds: float | None, graphs: int | None
    ) -> None:
        self._place, self._before = place, before
        self._seconds, self._graphs = seconds, graphs
        self._began = time.monotonic()
        self._signals = iter((signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
        self._next = 0.0
        # Started by the command, when it was told to end: process ids, and when each began.
        self._tree: dict[int, str] = {}
        self.ended = ""

    def end_when_reached(self, child: subprocess.Popen[bytes]) -> None:
        """End the command if a limit is reached. ``session.run_command`` calls it."""
        self.ended = self.ended or self._reached()
        now = time.monotonic()
        if self.ended and now >= self._next:
            self._next = now + _GRACE_S
            number = next(self._signals, None)
            if number is not None:
                # A shell does not hand a signal on to what it runs.
                self._tree.update(_processes_below(child.pid))
                child.send_signal(number)
                _signal_processes(self._tree, number)

    def end_rest(self) -> None:
        """End what a command that a limit ended has left running: it would fill on."""
        for number in self._signals if self.ended else ():
            if not _signal_processes(self._tree, number):
                return
            deadline = time.monotonic() + _GRACE_S
            while _signal_processes(self._tree, 0) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)

    def _reached(self) -> str:
        seconds = time.monotonic() - self._began
        if self._seconds is not None and seconds >= self._seconds:
            return f"--seconds {self._seconds:g}"
        if self._graphs is not None:
            added = len((compiled_parts(self._place) - self._before).graphs)
            return f"--graphs {self._graphs}" if added >= self._graphs else ""
        return ""


def _running_processes() -> dict[int, tuple[int, str]]:
    """The parent of each process, and when it began: process ids are used again."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # It may have ended.
        with contextlib.suppress(OSError):
            state, parent, *rest = path.read_text(errors="replace").rpartition(")")[2].split()
            if state != "Z":
                found[int(path.parent.name)] = int(parent), rest[17]
    return found


def _processes_below(process: int) -> dict[int, str]:
    """What a process has started, and what that has, each with its begin."""
    running = _running_processes()
    below: dict[int, str] = {}
    above = {process}
    while above:
        above = {one for one, (parent, _) in running.items() if parent in above} - {*below}
        below.update((one, running[one][1]) for one in above)
    return below


def _signal_processes(processes: dict[int, str], number: int) -> bool:
    """Signal those that still run; 0 only looks. Returns whether there are any."""
    running = _running_processes()
    left = [one for one, began in processes.items() if running.get(one, (0, ""))[1] == began]
    for one in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one, number)
    return bool(left)
