"""Starts trials in a process of their own, and tells how that ended, whatever they do.

A start may crash, hang in a compile or in the GPU's queue, be killed for its memory, or leave
processes behind. It runs in a process group of its own, with caches of its own, and is the first
that Linux ends if memory runs out.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rocm_autopatch import _ASSUME, fresh_interpreter
from rocm_autopatch.measure.ab.runner import own_caches
from rocm_autopatch.measure.prove import CRASHED, FRESH_STARTS, HUNG, IMPORTING, STARTING, WAITING
from rocm_autopatch.measure.prove.rows import TrialOutcome
from rocm_autopatch.support import processes, safe_path

_CHILD = "from rocm_autopatch.measure.prove import child\nchild.run_child()\n"
_FORKS = "from rocm_autopatch.measure.prove import fresh_starts\nfresh_starts.run_forks()\n"
_LAST_LINES = 12
_LONGEST = 1 << 16
# How often a start is looked at, in seconds.
_LOOK_S = 0.25


class OutOfTime(Exception):
    """The time of the battery is over. What is known is kept."""


@dataclass(frozen=True)
class TrialStart:
    """What to start: trials under a policy file, in a mode, with the caches in a directory.

    ``calls`` of each are compared with eager mode in ``seconds``; ``time`` seconds of calls are
    timed. ``keys`` must be applied. ``limit`` is how many seconds each trial may take, ``imports``
    how many the imports for each may take, and ``end`` when the start is ended in any case, by
    ``time.monotonic``. ``threads`` compile. ``alone`` names a lock, which only one start holds
    while it is on the device.
    """

    trials: Sequence[str]
    policy: Path
    mode: str | None
    caches: Path
    calls: int
    seconds: float
    time: float
    imports: float
    limit: Mapping[str, float]
    end: float
    threads: int
    alone: str = ""
    keys: Sequence[str] = ()


@dataclass(frozen=True)
class FreshStarts:
    """So many fresh processes to look at graphs in, under a policy, with caches in a directory.

    ``limit`` is how many seconds each may take, ``imports`` how many the imports before them, and
    ``end`` when all are ended in any case, by ``time.monotonic``.
    """

    count: int
    policy: Path
    caches: Path
    limit: float
    imports: float
    end: float


class StartSupervisor:
    """Starts trials on *device*, "cuda" or "cpu", in *environ*; *assume* says that this is ROCm."""

    def __init__(self, environ: Mapping[str, str], device: str, assume: bool) -> None:
        # With them another thing than the policy would be tried.
        of_user = ("ROCM_AUTOPATCH", "ROCM_AUTOPATCH_KEEP", "ROCM_AUTOPATCH_REPORT")
        self.environ = {name: value for name, value in environ.items() if name not in of_user}
        self.device = device
        # If it is set, starts are ended, and run() raises KeyboardInterrupt.
        self.stop = threading.Event()
        # What was proven before may change what safe says, but not what is tried.
        given = [self.environ.get(_ASSUME, ""), "proven=", "gains="]
        given += ["accelerator=rocm"] if assume else []
        self.environ[_ASSUME] = ",".join(filter(None, given))

    def run(self, start: TrialStart) -> list[TrialOutcome]:
        """Run a start to its end: an outcome of each trial that it came to, in their order.

        A trial that crashes or hangs is the last one. A KeyboardInterrupt ends the process first.
        Raises OutOfTime.
        """
        with tempfile.TemporaryDirectory(prefix="start-", dir=start.caches) as directory:
            report = Path(directory, "report")
            report.touch()
            with Path(directory, "output").open("wb") as output:
                try:
                    command = processes.start(
                        self._start_command(start, report),
                        self._start_environment(start.policy, start.caches, start.threads),
                        output,
                        output,
                        Path(directory),
                    )
                    _kill_first(command.process.pid)
                    hung = self._exceeded_limit(command, report, start)
                    killed = bool(hung) and command.kill()
                    # Inductor's workers end a while after the program.
                    processes.end_left_over(str(start.caches), 0)
                except BaseException:
                    processes.end_left_over(str(start.caches), 0)
                    raise
            found, now = _reported_outcomes(report, start.trials)
            lines = _last_lines(Path(directory, "output"))
        # The exit is part of the last trial.
        last = now.trial if len(found) < len(start.trials) else start.trials[-1]
        others = [one for one in found if one.trial != last]
        if hung:
            end = "was killed" if killed else "no signal ends it: the GPU may be stuck"
            reason = f"{now.phase}: did not end within {hung:.0f} s, and {end}"
            return [*others, TrialOutcome(last, HUNG, reason, lines)]
        crashed = bool(found) and found[-1].status == CRASHED
        # A program may end its process, and with status 0, too.
        if command.status or not (crashed or len(found) == len(start.trials)):
            reason = f"{now.phase}: {processes.how_it_ended(command.status)}"
            return [*others, TrialOutcome(last, CRASHED, reason, lines)]
        return found

    def run_fresh_starts(self, asked: FreshStarts) -> list[TrialOutcome]:
        """Make fresh starts: an outcome of each that has ended, in time.

        One that is left out was not made. A KeyboardInterrupt ends them first.
        """
        with tempfile.TemporaryDirectory(prefix="fresh-", dir=asked.caches) as directory:
            report = Path(directory, "report")
            report.touch()
            arguments = ["--report", str(report), "--device", self.device]
            arguments += ["--count", str(asked.count), "--limit", str(asked.limit)]
            with Path(directory, "output").open("wb") as output:
                try:
                    command = processes.start(
                        fresh_interpreter.command(_FORKS, *arguments),
                        self._start_environment(asked.policy, asked.caches, 1),
                        output,
                        output,
                        Path(directory),
                    )
                    _kill_first(command.process.pid)
                    late = self._is_late(command, report, asked)
                    if late:
                        command.kill()
                finally:
                    processes.end_left_over(str(asked.caches), 0)
            found = _finished_outcomes(report)
            out_of_time = late and time.monotonic() > asked.end
            if out_of_time or len(found) == asked.count or any(one.reason for one in found):
                return found
            ended = "did not end" if late else processes.how_it_ended(command.status)
            reason = f"the process that forks them: {ended}"
            lines = _last_lines(Path(directory, "output"))
            return [*found, TrialOutcome(FRESH_STARTS, HUNG if late else CRASHED, reason, lines)]

    def _is_late(self, command: processes.RunningCommand, report: Path, asked: FreshStarts) -> bool:
        """Wait for fresh starts; whether they have not ended in the time that there is."""
        until = time.monotonic() + asked.imports + asked.count * asked.limit
        while not command.ends(_LOOK_S):
            if self.stop.is_set():
                command.kill()
                raise KeyboardInterrupt
            if time.monotonic() > min(until, asked.end):
                return True
        return False

    def _exceeded_limit(
        self, command: processes.RunningCommand, report: Path, start: TrialStart
    ) -> float:
        """The limit that a trial has exceeded, in seconds; 0 if all ended."""
        step, began = ("", True), time.monotonic()
        while not command.ends(_LOOK_S):
            now = time.monotonic()
            if self.stop.is_set():
                raise KeyboardInterrupt
            if now > start.end:
                raise OutOfTime
            _, said = _reported_outcomes(report, start.trials)
            importing = said.phase in (STARTING, IMPORTING)
            if (said.trial, importing) != step or said.phase == WAITING:
                step, began = (said.trial, importing), now
            limit = start.imports if importing else start.limit[said.trial]
            if now - began > limit:
                return limit
        return 0.0

    def _start_command(self, start: TrialStart, report: Path) -> list[str]:
        arguments = [*start.trials, "--report", str(report), "--device", self.device]
        arguments += ["--mode", start.mode or "", "--alone", start.alone]
        arguments += ["--calls", str(start.calls), "--seconds", str(start.seconds)]
        arguments += ["--time", str(start.time), *(f"--key={key}" for key in start.keys)]
        return fresh_interpreter.command(_CHILD, *arguments)

    def _start_environment(self, policy: Path, caches: Path, threads: int) -> dict[str, str]:
        environ = safe_path.absolute(self.environ)
        environ["ROCM_AUTOPATCH_POLICY"] = str(policy)
        environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
        environ.update(own_caches(caches))
        return environ


def _kill_first(pid: int) -> None:
    """Have Linux end this process, and not us, if memory runs out."""
    # It may have ended, or this is not allowed here.
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="ascii")


@dataclass(frozen=True)
class _StartStep:
    """The trial and the phase in which a start is; ``first`` as in an outcome."""

    trial: str
    phase: str
    first: float | None = None


def _reported_outcomes(
    report: Path, trials: Sequence[str]
) -> tuple[list[TrialOutcome], _StartStep]:
    """The outcomes of a start so far, and the step in which it is."""
    found: list[TrialOutcome] = []
    now, began = _StartStep(trials[0], STARTING), 0.0
    for line in report.read_text(encoding="utf-8").splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            continue  # It ended while it wrote.
        if "status" not in said:
            if said["trial"] != now.trial:
                began = said["at"]
            now = _StartStep(said["trial"], said["phase"], said.get("first"))
            continue
        one: TrialOutcome = TrialOutcome.read(said)
        reason = f"{now.phase}: {one.reason}" if one.status == CRASHED else one.reason
        first = now.first if one.first is None else one.first
        seconds = round(said["at"] - began, 3)
        found.append(replace(one, reason=reason, first=first, seconds=seconds))
        now = _StartStep(one.trial, "ending")
    return found, now


def _finished_outcomes(report: Path) -> list[TrialOutcome]:
    """The lines of fresh starts, without one that was not written to its end."""
    found = []
    for line in report.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            found.append(TrialOutcome.read(json.loads(line)))
    return found


def _last_lines(output: Path) -> tuple[str, ...]:
    with output.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _LONGEST))
        text = stream.read().decode("utf-8", "replace")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return tuple([line for line in lines if line][-_LAST_LINES:])
