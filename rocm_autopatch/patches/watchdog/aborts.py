"""``abort_after``: a compile that lasts too long is ended, by an exception in its own thread.

The program can catch the exception like any error of a compile. It arrives with the next line of
Python that the thread runs. A thread in C code, which waits for a compiler or a GPU, runs no
Python. It gets some more time. If it is still in the compile then, and no other thread is
compiling, the process is ended by SIGABRT, with the stacks of all threads on stderr.
"""

import os
import sys
import threading
import time

from rocm_autopatch import _RECORD
from rocm_autopatch.patches.watchdog import description, underway
from rocm_autopatch.support.text import duration

# A thread gets a tenth of abort_after to receive the exception, within these limits in seconds.
SHORTEST, LONGEST = 1.0, 60.0
# How often the exception is sent. A compile may swallow it, as the search for a kernel does with a
# candidate's errors.
ATTEMPTS = 3
# So long a thread that starts another one is waited for, and so often it is looked at, in seconds.
_STARTS, _LOOKS = 60.0, 0.001
_messages: "dict[int, str]" = {}


class CompileTimeout(TimeoutError):
    """A compile lasted longer than the policy's ``watchdog.abort_after``."""

    def __init__(self, *args: object) -> None:
        # The interpreter creates it without arguments, in the thread that receives it.
        ident = threading.get_ident()
        watch = underway.running.get(ident)
        if not args and watch is not None:
            watch.delivered = watch.raised
            args = (_messages.get(ident, ""),)
        super().__init__(*args)


def end(watch: "underway.Watch", now: float) -> float:
    """End a compile that is overdue, or the process if that fails.

    Returns in how many seconds to look again.
    """
    after: float = underway.settings["abort_after"]
    grace = min(max(after / 10, SHORTEST), LONGEST)
    lasted = "a compile has lasted " + duration(now - watch.began)
    if watch.raised and watch.raised == watch.delivered and watch.raised < ATTEMPTS:
        _raise_in_thread(watch, _messages.get(watch.ident, ""))
        return grace
    if not watch.raised:
        underway.count("abort_after")
        if _RECORD["observe"]:
            return float("inf")
        what = description.describe_compile(watch)
        lasted += " (abort_after: %s)" % duration(after)
        if _raise_in_thread(watch, "%s: %s (rocm_autopatch, watchdog)" % (lasted, what)):
            underway.write(
                "%s, so its thread gets the exception CompileTimeout: %s" % (lasted, what)
            )
            underway.stacks()
            watch.told(now)
        return grace
    others = [other for other in list(underway.running.values()) if other is not watch]
    if any(not other.raised and other.lasts() for other in others):
        # SIGABRT would end that compile, too.
        return grace
    with underway.lock:
        if watch.done or not watch.lasts():
            return grace
        underway.write(
            "%s and the exception did not end it (its thread runs no Python, or caught it), so the "
            "process is ended by SIGABRT (abort_after): %s"
            % (lasted, description.describe_compile(watch))
        )
        underway.stacks()
        os.abort()


def _raise_in_thread(watch: "underway.Watch", text: str) -> bool:
    """Send the exception to the thread, if it is still in the compile."""
    import ctypes  # noqa: F401  Before the lock is held.

    end = time.monotonic() + _STARTS
    while sys.version_info < (3, 12) and _starts_another(watch.ident) and time.monotonic() < end:
        time.sleep(_LOOKS)
    with underway.lock:
        # A compile ends under this lock. So nothing is sent to a compile that has ended.
        if watch.done or not watch.lasts():
            return False
        _messages[watch.ident] = text
        watch.raised += 1
        _send_exception(watch.ident, CompileTimeout)
    return True


def _starts_another(ident: int) -> bool:
    """Whether a thread is starting another one, which has the same ident for a moment.

    Until Python 3.11 the exception would come to the new one. That would end before it has begun,
    and who starts it would wait for it without end. A moment later it would be a KeyError.
    """
    top = frame = sys._current_frames().get(ident)
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code is threading.Thread.start.__code__:
            # The new one sets it as soon as it runs.
            return frame is top or frame.f_locals["self"].ident is None
        frame = frame.f_back
    return False


def take_back(watch: "underway.Watch") -> None:
    """Take back, in the thread itself, an exception that has not arrived: its compile has ended."""
    _send_exception(watch.ident, None)


def _send_exception(ident: int, kind: "type[BaseException] | None") -> None:
    import ctypes

    given = ctypes.py_object(kind) if kind else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), given)
