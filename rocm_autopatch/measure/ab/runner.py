"""Run a command many times: in which order, with which caches, and how each run ended."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from rocm_autopatch.compile_report import gather
from rocm_autopatch.measure.ab import generated, imports, numbers
from rocm_autopatch.support import processes

COLD, WARM = "cold", "warm"
# The variables that tell torch and Triton where their compiled code is kept.
CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
ENDED, FAILED, HUNG = "ended", "failed", "hung"
_LONGEST_OUTPUT = 1 << 22
_LAST_LINES = 5
_POLL_S = 0.05


@dataclass(frozen=True)
class PlannedRun:
    """A planned run: its arm, and whether its caches are cold or warm. Round 0 is not measured."""

    round: int
    arm: int
    caches: str


@dataclass(frozen=True)
class MeasuredRun:
    """A run: its wall time in seconds, and how it ended: ENDED, FAILED or HUNG.

    If it failed or hung, ``reason`` says why, and ``last_lines`` are the last lines of its output.
    ``imports_s`` is what its imports took, 0 if it was not asked. ``code`` is a digest of the code
    that torch generated, "" if it was not asked or is not known; ``modes`` are those that it asked
    torch.compile for, None if they are not known.
    """

    round: int
    arm: int
    caches: str
    seconds: float
    status: str
    reason: str = ""
    last_lines: tuple[str, ...] = ()
    numbers: Mapping[numbers.NumberLabel, float] = field(default_factory=dict)
    imports_s: float = 0.0
    code: str = ""
    modes: set[str] | None = None


@dataclass(frozen=True)
class CommandEnd:
    """How a command ended: its wall time in seconds, and ENDED, FAILED or HUNG with the reason.

    ``numbers`` are further ones than those that it printed. ``last_lines`` are those to show
    instead of the command's own.
    """

    seconds: float
    status: str
    reason: str = ""
    numbers: Mapping[numbers.NumberLabel, float] = field(default_factory=dict)
    last_lines: tuple[str, ...] = ()


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))


def own_caches(directory: Path, kernels: Path | None = None) -> dict[str, str]:
    """Variables for a run that has its caches in a directory, whatever a policy says of them.

    If *kernels* is given, Triton keeps its kernels there.
    """
    own = {name: str(directory / part) for name, part in CACHES.items()}
    own |= {} if kernels is None else {"TRITON_CACHE_DIR": str(kernels)}
    return {**own, "ROCM_AUTOPATCH_CACHE": "off"}


def schedule_runs(
    arms: int, caches: Sequence[str], repeat: int, warmup: int, seed: int
) -> list[PlannedRun]:
    """All runs in their order: *warmup* unmeasured ones of each arm, then *repeat* rounds.

    A round has each arm once with each kind of caches, in random order. The next round has them in
    the reverse order, so that a drift over time affects all of them equally. Cold runs come before
    warm ones, which use what they have compiled.
    """
    chance = random.Random(seed)
    cells = [PlannedRun(0, arm, WARM) for _ in range(warmup) for arm in range(arms)]
    order = list(range(arms))
    for number in range(1, repeat + 1):
        if number % 2:
            chance.shuffle(order)
        else:
            order.reverse()
        kinds = [kind for kind in (COLD, WARM) if kind in caches]
        cells += [PlannedRun(number, arm, kind) for kind in kinds for arm in order]
    return cells


class ArmRunner:
    """Runs *program* in the *environments* of the arms, with caches in a temporary directory.

    A run that takes longer than *limit_s* seconds is reported as hanging. At the end of the context
    the directory is removed.

    Warm runs of an arm have the caches of its last cold run; without one, those of its first run.
    Torch times kernels when it compiles them, and takes the one that was faster then. That is
    partly luck, and stays in the caches. So runs with the same caches depend on each other.

    The arms in ``sharing`` have one warm cache of Triton's: it finds a kernel by its code and its
    options, so a first run compiles only those that no other of these arms had. Their variables
    have to be the same, because Triton does not look at each that it obeys.

    With ``tells_code``, runs that are not measured tell the code that torch generated, and modes.
    """

    def __init__(
        self,
        program: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        limit_s: float,
        patterns: Sequence[numbers.NumberPattern],
    ) -> None:
        self.program = program
        self.environments = environments
        self.limit_s = limit_s
        self.patterns = patterns
        self.warm: dict[int, Path] = {}
        self.sharing: set[int] = set()
        self.tells_code = False
        self._threads = 0
        self.directory = Path(tempfile.mkdtemp(prefix="rocm-autopatch-ab-"))

    def __enter__(self) -> ArmRunner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, cell: PlannedRun, program: Sequence[str] = ()) -> MeasuredRun:
        """Run a cell to its end. A KeyboardInterrupt ends the command first.

        *program* stands for the command where that has to tell its imports.
        """
        caches = self.warm.get(cell.arm) if cell.caches == WARM else None
        if caches is None:
            caches = Path(tempfile.mkdtemp(dir=self.directory, prefix="caches-"))
        run = self._run_program(cell, caches, program or self.program)
        unused: Path | None = caches
        if run.status == ENDED:
            unused, self.warm[cell.arm] = self.warm.get(cell.arm), caches
        if unused is not None and unused != self.warm.get(cell.arm):
            shutil.rmtree(unused, ignore_errors=True)
        return run

    def forget(self) -> None:
        """Remove the warm caches of all arms."""
        while self.warm:
            shutil.rmtree(self.warm.popitem()[1], ignore_errors=True)

    def run_beside(
        self,
        cells: Sequence[PlannedRun],
        count: int,
        ended: Callable[[PlannedRun, MeasuredRun], None],
    ) -> None:
        """Run cells, *count* at the same time, and call *ended* when one has ended.

        Only for runs whose times do not matter. Their processes that compile share the cores, where
        the user says nothing else. A KeyboardInterrupt ends all commands first.
        """
        self._threads = max(1, usable_cores() // count)
        with ThreadPoolExecutor(count) as pool:
            runs = {pool.submit(self.run, cell): cell for cell in cells}
            try:
                for run in as_completed(runs):
                    ended(runs[run], run.result())
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                # A thread may be about to start its command, so once is not enough.
                while not all(run.done() for run in runs):
                    processes.end_left_over(str(self.directory), 0)
                    time.sleep(_POLL_S)
                raise
            finally:
                self._threads = 0

    def _run_program(self, cell: PlannedRun, caches: Path, program: Sequence[str]) -> MeasuredRun:
        environment = dict(self.environments[cell.arm])
        shares = cell.arm in self.sharing and cell.caches == WARM
        environment.update(own_caches(caches, self.directory / "kernels" if shares else None))
        if self._threads:
            environment.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(self._threads))
        # Runs may be beside each other.
        with tempfile.TemporaryDirectory(dir=self.directory, prefix="output-") as output:
            streams = (Path(output, "stdout"), Path(output, "stderr"))
            told = Path(output, "compiled")
            if self.tells_code and not cell.round:
                environment.update(generated.code_variables(environment, told))
            ended = self.execute(program, environment, streams, str(caches))
            printed, complained = map(read_tail, streams)
            code, modes = generated.code_digest(told, caches), gather.asked_modes(told)
        imports_s = 0.0
        if program is not self.program:
            imports_s, complained = imports.read_import_times(complained)
        run = MeasuredRun(
            *(cell.round, cell.arm, cell.caches, ended.seconds, ended.status),
            imports_s=imports_s,
            code=code,
            modes=modes,
        )
        if ended.status == ENDED:
            found = numbers.find_numbers(printed, complained, self.patterns)
            return replace(run, numbers={**found, **ended.numbers})
        said = ended.last_lines or last_lines(complained) or last_lines(printed)
        return replace(run, reason=ended.reason, last_lines=said)

    def execute(
        self,
        program: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[Path, Path],
        mark: str,
    ) -> CommandEnd:
        """Run *program* with its output in *streams*; *mark* is in the environment of all that it
        starts, so that what it leaves behind can be ended."""
        with streams[0].open("wb") as stdout, streams[1].open("wb") as stderr:
            try:
                command = processes.start(program, environment, stdout, stderr)
                hung = not command.ends(self.limit_s)
                killed = hung and command.kill()
                # If the command was killed, its children are not given time to end.
                processes.end_left_over(mark, 0 if hung else processes.LEFT_OVER_S)
            except BaseException:
                processes.end_left_over(mark, 0)
                raise
        if hung:
            end = "was killed" if killed else "no signal ends it"
            reason = f"did not end within {self.limit_s:g} s, and {end}"
            return CommandEnd(command.seconds, HUNG, reason)
        if command.status:
            return CommandEnd(command.seconds, FAILED, processes.how_it_ended(command.status))
        return CommandEnd(command.seconds, ENDED)


def read_tail(path: Path) -> str:
    """The last megabytes of a file."""
    with path.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - _LONGEST_OUTPUT))
        return stream.read().decode("utf-8", "replace")


def last_lines(text: str) -> tuple[str, ...]:
    """The last lines of a text that are not empty, each harmless to print."""
    lines = [
        " ".join("".join(c if c.isprintable() else " " for c in line).split())
        for line in text.splitlines()
    ]
    return tuple([line for line in lines if line][-_LAST_LINES:])
