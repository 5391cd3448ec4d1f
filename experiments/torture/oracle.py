"""What a start is, how it is run, and what is wrong with what it did.

A start with us is compared with the same start with ``ROCM_AUTOPATCH=off``:

- It ends before ``PATIENCE`` seconds, and uses at most ``CPU`` seconds of CPU more.
- Its exit status and what its program sees are the same. Only variables differ that the record says
  were changed, and they have the value that it says.
- If the record says that nothing was done, nothing was done.
- On stderr it adds only our lines, at most ``Start.lines`` of them. A line has at most ``LONGEST``
  characters, and only characters that a terminal prints.
"""

from __future__ import annotations

import ast
import os
import re
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# Seconds of CPU, seconds, and characters of a line.
CPU = 5.0
PATIENCE = 20.0
LONGEST = 500

PREFIX = "rocm_autopatch: "
# Variables that we may write, if something asks for it.
_OURS = ("ROCM_AUTOPATCH_SAID", "ROCM_AUTOPATCH_REPORT", "ROCM_AUTOPATCH_PROFILE", "TORCH_TRACE")


@dataclass(frozen=True)
class Outcome:
    """How a process ended: ``status`` as subprocess has it, None if it had to be killed."""

    status: int | None
    stdout: bytes
    stderr: bytes
    cpu: float = 0.0

    def __str__(self) -> str:
        return (
            f"status {self.status}, {self.cpu:.2f} CPU seconds\n"
            f"--- stdout\n{self.stdout.decode('utf-8', 'backslashreplace')}\n"
            f"--- stderr\n{self.stderr.decode('utf-8', 'backslashreplace')}\n"
        )

    def view(self) -> dict[str, Any] | None:
        """What watch.py saw; None if it did not get so far, or if something else printed."""
        try:
            seen = ast.literal_eval(self.stdout.decode("ascii"))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        return seen if isinstance(seen, dict) else None


@dataclass(frozen=True)
class Start:
    """A process to start. ``lines`` is how many lines we may write in it.

    ``interpreters`` is how many interpreters it has: each may write the same line once. ``setup``
    is called in the child before it executes the program, ``prepare`` here before the child is
    made. If the variable ``TORTURE_OUT`` names a file, the program writes there and not to stdout.
    """

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    directory: str = "/"
    lines: int = 1
    interpreters: int = 1
    setup: Callable[[], None] | None = None
    prepare: Callable[[], None] | None = None
    cpu: float = CPU

    def off(self) -> Start:
        """The same without us."""
        return replace(self, env={**self.env, "ROCM_AUTOPATCH": "off"})


def run(start: Start, patience: float = PATIENCE) -> Outcome:
    """Run a process to its end, or kill it and its children after *patience* seconds."""
    if start.prepare is not None:
        start.prepare()
    shown = start.env.get("TORTURE_OUT", "")
    if shown and os.path.exists(shown):
        os.unlink(shown)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        start.command,
        # Bytes, because a variable may hold any.
        env={os.fsencode(k): os.fsencode(v) for k, v in start.env.items()},
        stdin=subprocess.PIPE if start.stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=start.directory,
        start_new_session=True,
        preexec_fn=start.setup,
        # What setup opens stays open.
        close_fds=False,
    )
    status: int | None
    try:
        out, err = process.communicate(start.stdin or None, timeout=patience)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        status = None
    if shown and os.path.exists(shown):
        with open(shown, "rb") as stream:
            out = stream.read()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Outcome(status, out, err, cpu)


# What site prints each time it runs a .pth line whose package is not found or can't be read. No
# code of ours can prevent this (docs/security.md).
_ABSENT = re.compile(
    r"Error processing line 1 of \S*rocm_autopatch\.pth:\n\n(?:  .*\n)*?"
    r"  (?:ModuleNotFoundError|PermissionError|FileNotFoundError|OSError): .*\n\n"
    r"Remainder of file ignored\n"
)


def judge(start: Start, ours: Outcome, off: Outcome) -> list[str]:
    """What is wrong with *ours*, compared with the same start without us; [] if nothing is."""
    wrong = ended(start, ours, off)
    if not wrong:
        mine, theirs = ours.view(), off.view()
        if mine is not None and theirs is not None:
            wrong += _seen(start, mine, theirs)
        elif ours.stdout != off.stdout:
            wrong.append("stdout differs")
    return wrong + lines(start, ours, off)


def ended(start: Start, ours: Outcome, off: Outcome) -> list[str]:
    """How the end differs from the end without us."""
    if ours.status is None:
        return ["hangs"] if off.status is not None else []
    wrong = []
    if ours.status != off.status:
        wrong.append(f"status {ours.status}, not {off.status}")
    if ours.cpu > max(start.cpu, off.cpu + start.cpu):
        wrong.append(f"{ours.cpu:.1f} CPU seconds")
    return wrong


def lines(start: Start, ours: Outcome, off: Outcome) -> list[str]:
    """What is wrong with what was written to stderr."""
    try:
        text = ours.stderr.decode("utf-8")
    except UnicodeDecodeError:
        text = ours.stderr.decode("utf-8", "backslashreplace")
        if start.env.get("PYTHONIOENCODING", "utf-8").startswith("utf-8"):
            return ["stderr is not UTF-8"]
    theirs = off.stderr.decode("utf-8", "backslashreplace").split("\n")
    text = _ABSENT.sub("", text)
    more = [line for line in text.split("\n")[:-1] if line not in theirs]
    if not text.endswith("\n") and text and text.split("\n")[-1] not in theirs:
        more.append(text.split("\n")[-1])
    wrong = []
    if any("Traceback" in line for line in more):
        wrong.append("traceback")
    elif any(not line.startswith(PREFIX) for line in more):
        wrong.append("a line on stderr that is not ours")
    # debug asks for a line for each change, and writes the one line each time.
    if start.env.get("ROCM_AUTOPATCH_LOG") != "debug":
        if len(more) > start.lines:
            wrong.append(f"{len(more)} lines, not {start.lines}")
        if any(more.count(line) > start.interpreters for line in more):
            wrong.append("a line twice")
    if any(len(line) > LONGEST for line in more):
        wrong.append(f"a line of {max(map(len, more))} characters")
    if any(not line.isprintable() for line in more):
        wrong.append("control characters on stderr")
    return wrong


def _seen(start: Start, mine: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """What the program sees differently than without us, and not as the record says."""
    wrong = []
    for key, value in theirs.items():
        if key in ("environ", "modules", "record", "torch"):
            continue
        if mine.get(key) != value:
            wrong.append(f"{key} is {mine.get(key)!r}, not {value!r}")
    missing = sorted(set(theirs["modules"]) - set(mine["modules"]))
    if missing:
        wrong.append(f"modules that are not loaded: {missing}")
    if theirs["torch"] is not None and not set(theirs["torch"]) <= set(mine["torch"] or ()):
        wrong.append("torch lacks names")
    record = mine["record"]
    if record is None:
        return wrong
    promised = record["applied"]
    if not record["active"] and promised:
        wrong.append("variables are changed, and the record says it is not active")
    given = {ascii(name): ascii(value) for name, value in start.env.items()}
    # The variables that both were given, as the program decodes them.
    before = {**given, **theirs["environ"]}
    for name in sorted({*before, *mine["environ"]}):
        if name.strip("'") in (*_OURS, "ROCM_AUTOPATCH") or name.startswith("'TORTURE_"):
            continue
        was, now = before.get(name), mine["environ"].get(name)
        want = promised.get(name, was)
        if now != want:
            wrong.append(f"{name} is {now}, was {was}, the record says {want}")
    return wrong


def interrupted(outcome: Outcome, names: tuple[str, ...] = ("KeyboardInterrupt",)) -> bool:
    """Whether an exception of these names got out of the program, or a signal ended it."""
    if outcome.status is None or outcome.status == 0:
        return False
    return outcome.status < 0 or any(name.encode() in outcome.stderr for name in names)
