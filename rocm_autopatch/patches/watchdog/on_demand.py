"""The stacks of this process while it hangs, for ``rocm-autopatch stacks``.

At the first compile, a signal gets a handler of Python's ``faulthandler``: it is C code, so it
answers also while C code holds the interpreter's lock or no Python runs. It writes into a file in
memory, because a full pipe would block the process. The command finds that file beneath /proc, and
sends the signal only to a process that has it: of this signal, any other process would end.

The signal is a real-time one, counted from the end, which is the same in glibc and musl. SIGUSR1
and SIGUSR2 are taken by programs: Slurm, Lightning and many servers have meanings of their own. If
the program or a library has a handler for ours, it keeps it.

If a compile is under way, the watchdog's thread then adds what is compiled, and writes all of it to
stderr.
"""

import os
import signal
import time

from rocm_autopatch import _RECORD, failure
from rocm_autopatch.patches.watchdog import underway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

SIGNAL = signal.SIGRTMAX - 11
# The name of the file in memory. /proc shows it as /memfd:NAME (deleted).
NAME = "rocm_autopatch_stacks"
# How often the watchdog's thread looks, in seconds.
LOOK = 1.0
# How the line begins with which the thread ends its answer.
ANSWER = b"rocm_autopatch: "

# The file's descriptor, None if nothing is offered; what it is, because the program may have closed
# it; and how much of it was looked at.
_memory: "Optional[int]" = None
_identity = (0, 0)
_seen = 0


def offer_stacks() -> None:
    """Have the signal write stacks, unless it has a handler. Raises only what is the program's."""
    global _memory, _identity
    if _memory is not None or _RECORD["observe"]:
        return
    try:
        if is_taken(os.getpid()):
            _RECORD["notes"].append(
                "signal %d has a handler of the program's, so rocm-autopatch stacks can't ask this "
                "process" % SIGNAL
            )
            return
        memory = os.memfd_create(NAME)
        try:
            import faulthandler  # Torch does not import it.

            faulthandler.register(SIGNAL, file=memory, all_threads=True, chain=False)
        except BaseException:
            os.close(memory)
            raise
        _identity, _memory = _identity_of(memory), memory
    except Exception as error:
        if failure.programs_own(error):
            raise
        # No /proc, no memory, or no descriptor is left.
        _RECORD["notes"].append("no stacks on demand: " + failure.describe(error))


def is_taken(pid: int) -> bool:
    """Whether a process has a handler for the signal, or ignores it. Raises OSError."""
    with open("/proc/%d/status" % pid, "rb") as stream:
        lines = [line.split() for line in stream if line.startswith((b"SigCgt:", b"SigIgn:"))]
    return any(int(mask, 16) >> (SIGNAL - 1) & 1 for _, mask in lines)


def answer_requests() -> None:
    """If stacks were asked for, say what is compiled, and write all to stderr.

    The watchdog's thread calls it while compiles are under way.
    """
    global _memory
    try:
        if _memory is not None and _identity_of(_memory) == _identity:
            _answer_request(_memory)
    except Exception as error:
        if failure.programs_own(error):
            raise
        # Compiles are watched all the same.
        _memory = None
        _RECORD["notes"].append("no stacks on demand: " + failure.describe(error))


def _answer_request(memory: int) -> None:
    global _seen
    size = os.fstat(memory).st_size
    if size == _seen:
        return
    before = -1
    while before != size:
        # The handler may still be writing.
        time.sleep(0.05)
        before, size = size, os.fstat(memory).st_size
    from rocm_autopatch.patches.watchdog import description
    from rocm_autopatch.support.text import duration

    stacks = os.pread(memory, size - _seen, _seen)
    lines = [
        "a compile has lasted %s: %s"
        % (duration(time.monotonic() - watch.began), description.describe_compile(watch))
        for watch in list(underway.running.values())
    ]
    text = "".join("rocm_autopatch: %s\n" % line for line in lines)
    os.write(memory, text.encode("utf-8", "replace"))
    _seen = os.fstat(memory).st_size
    underway.put(stacks)
    for line in lines:
        underway.write(line)


def in_child() -> None:
    """A fork's child gets a file of its own, beneath the same descriptor."""
    global _memory, _identity, _seen
    if _memory is None or _identity_of(_memory) != _identity:
        return
    try:
        memory = os.memfd_create(NAME)
        os.dup2(memory, _memory, inheritable=False)
        os.close(memory)
        _identity, _seen = _identity_of(_memory), 0
    except OSError:
        # It must not write into its parent's.
        import faulthandler

        faulthandler.unregister(SIGNAL)
        _memory = None


def _identity_of(descriptor: int) -> "tuple[int, int]":
    try:
        found = os.fstat(descriptor)
    except OSError:
        return (-1, -1)
    return found.st_dev, found.st_ino
