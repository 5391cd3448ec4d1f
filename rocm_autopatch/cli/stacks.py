"""``rocm-autopatch stacks``: where a process is that hangs right now, and what it compiles."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.cli import options, values
from rocm_autopatch.cli.command import Command, CommandResult, position_field
from rocm_autopatch.patches.watchdog import on_demand
from rocm_autopatch.support import masking
from rocm_autopatch.support.user_error import UserError

_PROC = Path("/proc")
# How long the process may take to begin with an answer, in seconds, and its thread to add a line.
_LONGEST, _FOR_THE_LINE = 5.0, 4.0
_NEXT_TIME = (
    "next time: set ROCM_AUTOPATCH_WATCHDOG=10 before the program starts, and a line on stderr "
    "says what a compile is doing when it has lasted 10 s"
)


class _NotAsked(UserError):
    """A process can't be asked. The text says why."""

    usual_page = "watchdog.md#stacks-of-a-process-that-hangs-now"


@dataclass(frozen=True)
class StacksArguments:
    pid: int | None = position_field(
        parse=values.parse_pid, metavar="PID", help="the process to ask", optional=True
    )
    json: bool = options.json_flag()


def show_stacks(arguments: StacksArguments) -> CommandResult:
    pid = arguments.pid
    if pid is None:
        return _list_processes()
    stacks, lines = _ask_for_stacks(pid)
    return CommandResult(
        lambda: _stack_lines(pid, stacks, lines),
        lambda: {"pid": pid, "stacks": stacks, "compiles": lines},
    )


COMMAND = Command(
    StacksArguments,
    show_stacks,
    description=(
        "Ask a running process for the stacks of all its threads, and print them with what it "
        "compiles. Nothing in it is stopped or changed. It must have begun a compile under a "
        "policy with a watchdog, such as safe. Without PID: list the processes that can be "
        "asked."
    ),
    example="docker exec CONTAINER rocm-autopatch stacks",
    statuses={
        0: "the stacks, or without PID the processes",
        1: "the process can't be asked or does not answer, or there is none to ask",
    },
)


def _stack_lines(pid: int, stacks: list[str], lines: list[str]) -> Iterator[str]:
    secrets = fresh_interpreter.secrets()
    yield from (secrets.text(line) for line in [*stacks, "", *lines])
    if not lines:
        yield (
            f"no compile is under way in process {pid}, or C code there holds the "
            "interpreter's lock: the stacks say which"
        )
    yield _NEXT_TIME


def _list_processes() -> CommandResult:
    found = {
        pid: masking.command(_process_command(pid))
        for pid in sorted(int(one.name) for one in _PROC.iterdir() if one.name.isdecimal())
        if _memory_files(pid)
    }
    none = "no process of this user has begun a compile under a policy with a watchdog"
    return CommandResult(
        lambda: (f"{pid}  {' '.join(command)}" for pid, command in found.items()),
        lambda: [{"pid": pid, "command": command} for pid, command in found.items()],
        status=0 if found else 1,
        remarks=() if found else (none,),
    )


def _process_command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return os.fsdecode((_PROC / str(pid) / "cmdline").read_bytes()).rstrip("\0").split("\0")
    return []


def _memory_files(pid: int) -> list[Path]:
    """The files in memory into which a process writes its stacks: one, or none."""
    try:
        return list(_find_memories(pid))
    except OSError:
        return []


def _find_memories(pid: int) -> Iterator[Path]:
    for one in (_PROC / str(pid) / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(one).startswith(f"/memfd:{on_demand.NAME} "):
                yield one


def _ask_for_stacks(pid: int) -> tuple[list[str], list[str]]:
    """The stacks of a process, and the lines on what it compiles. Raises _NotAsked."""
    try:
        memory = next(_find_memories(pid), None)
        if memory is None or not on_demand.is_taken(pid):
            # Whatever has no handler would end by the signal.
            raise _NotAsked(
                f"process {pid} can't be asked: it has begun no compile under a policy with a "
                'watchdog. "rocm-autopatch stacks" lists those that can'
            )
        before = memory.stat().st_size
        os.kill(pid, on_demand.SIGNAL)
        text = _wait_for_answer(memory, before)
    except (FileNotFoundError, ProcessLookupError):
        raise _NotAsked(f"there is no process {pid}") from None
    except PermissionError:
        raise _NotAsked(
            f"process {pid} may not be looked into from here: run this command as its user, or as "
            "root where it runs (docker exec, kubectl exec)"
        ) from None
    if not text:
        raise _NotAsked(f"process {pid} does not answer: it is stopped, or waits in the kernel")
    lines = text.decode("utf-8", "replace").splitlines()
    start = on_demand.ANSWER.decode()
    return (
        [line for line in lines if not line.startswith(start)],
        [line for line in lines if line.startswith(start)],
    )


def _wait_for_answer(memory: Path, before: int) -> bytes:
    """What the process has written: its stacks, and then the line of its thread if one comes."""
    with open(memory, "rb") as stream:
        began = time.monotonic()
        first, text = 0.0, b""
        while True:
            time.sleep(0.05)
            stream.seek(before)
            now, more = time.monotonic(), stream.read()
            grown, text = more != text, more
            first = first or (now if text else 0.0)
            if not text and now - began > _LONGEST:
                return b""
            answered = text.startswith(on_demand.ANSWER) or b"\n" + on_demand.ANSWER in text
            if text and not grown and (answered or now - first > _FOR_THE_LINE):
                return text
