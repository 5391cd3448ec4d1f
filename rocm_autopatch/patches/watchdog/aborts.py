"""``abort_after``: a compile that lasts too long is ended, by an exception in its own thread.

The program can catch it as it can any error of a compile. The exception arrives with the next line
of Python that the thread runs. A thread that is in C code, waiting for a compiler or a GPU, runs
none: it is given time to, and only if it does not come back, and no other thread is compiling, the
process is ended by SIGABRT, with the stacks of all threads on stderr.
"""

import os
import threading

from rocm_autopatch import _RECORD
from rocm_autopatch.patches.watchdog import phases, underway

# The tenth of abort_after that a thread is given to meet the exception, within these, in seconds.
SHORTEST, LONGEST = 1.0, 60.0
# A compile may swallow it, as the search for a kernel does with a candidate's errors.
ATTEMPTS = 3
_messages: "dict[int, str]" = {}


class CompileTimeout(TimeoutError):
    """A compile lasted longer than the policy's ``watchdog.abort_after``."""

    def __init__(self, *args: object) -> None:
        # The interpreter makes it, without arguments, in the thread that it is for.
        ident = threading.get_ident()
        watch = underway.running.get(ident)
        if not args and watch is not None:
            watch.delivered = watch.raised
            args = (_messages.get(ident, ""),)
        super().__init__(*args)


def end(watch: "underway.Watch", now: float) -> float:
    """End a compile that is overdue, or the process where that fails; when to look again, in
    seconds."""
    after: float = underway.settings["abort_after"]
    grace = min(max(after / 10, SHORTEST), LONGEST)
    lasted = phases.seconds(now - watch.began)
    if watch.raised and watch.raised == watch.delivered and watch.raised < ATTEMPTS:
        _raise(watch, _messages.get(watch.ident, ""))
        return grace
    if not watch.raised:
        underway.count("abort_after")
        if _RECORD["observe"]:
            return float("inf")
        what = phases.describe(watch)
        text = "a compile has lasted %s, abort_after is %s: %s" % (
            lasted,
            phases.seconds(after),
            what,
        )
        if _raise(watch, text + " (rocm_autopatch, watchdog)"):
            underway.write(text + "; its thread is sent a CompileTimeout")
            underway.stacks()
        return grace
    others = [other for other in list(underway.running.values()) if other is not watch]
    if any(not other.raised and other.lasts() for other in others):
        # It would be killed for this one.
        return grace
    with underway.lock:
        if watch.done or not watch.lasts():
            return grace
        underway.write(
            "a compile has lasted %s and does not end by an exception, as its thread runs no "
            "Python or catches it: the process is ended by SIGABRT (abort_after): %s"
            % (lasted, phases.describe(watch))
        )
        underway.stacks()
        os.abort()


def _raise(watch: "underway.Watch", text: str) -> bool:
    """Send the exception to the thread, if it is in the compile still."""
    import ctypes  # noqa: F401  Not with the lock held.

    with underway.lock:
        # A compile ends under this lock, so that it is not sent after that.
        if watch.done or not watch.lasts():
            return False
        _messages[watch.ident] = text
        watch.raised += 1
        _send(watch.ident, CompileTimeout)
    return True


def take_back(watch: "underway.Watch") -> None:
    """Undo, in the thread itself, what it has been sent and not met: its compile has ended."""
    _send(watch.ident, None)


def _send(ident: int, kind: "type[BaseException] | None") -> None:
    import ctypes

    given = ctypes.py_object(kind) if kind else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), given)
