"""The thread that looks at long compiles: it warns about them, and ends them."""

import _thread
import os
import time

from rocm_autopatch import failure, startup
from rocm_autopatch.patches.watchdog import on_demand, underway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# If the thread looks more than this many seconds too late, the whole process was stopped.
LATE = 1.0
# A warning is left out if an abort is due within this many seconds: the abort writes its own line.
SOON = 0.25

# The one thread; None if no compile is under way.
current: "Any" = None
_registered = False


class _WatchThread:
    """The thread: it sleeps until something is due.

    It is not a threading.Thread, so that it is not among the threads that a program can list.
    """

    def __init__(self) -> None:
        self.alarm = _thread.allocate_lock()
        self.ended = _thread.allocate_lock()
        self.alarm.acquire()
        self.ended.acquire()
        self.dismissed = False

    def run(self) -> None:
        global current
        try:
            while True:
                with underway.lock:
                    if self.dismissed or not underway.running:
                        if current is self:
                            current = None
                        return
                    watches = list(underway.running.values())
                on_demand.answer_requests()
                wake = time.monotonic() + _sleep_interval()
                for watch in watches:
                    wake = min(wake, _attend_to(watch))
                self.alarm.acquire(timeout=min(max(wake - time.monotonic(), 0.001), on_demand.LOOK))
        except BaseException as error:
            _give_up(self, error)
        finally:
            self.ended.release()


def _sleep_interval() -> float:
    """How long the thread may sleep, in seconds. No compile is due earlier after its beginning."""
    warn_after, abort_after = underway.settings["warn_after"], underway.settings["abort_after"]
    # A tenth, so that almost all of the time in which the process was stopped is noticed.
    return min(warn_after or float("inf"), abort_after / 10 if abort_after else float("inf"))


def wake_up() -> None:
    """Start the thread, if there is none. The caller holds the lock. Never raises.

    A thread that sleeps is not woken: a compile that begins now is due after a whole interval at
    the earliest, and the thread never sleeps longer than that.
    """
    global current, _registered
    if current is not None:
        return
    try:
        if not _registered:
            _registered = True
            os.register_at_fork(
                before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child
            )
        sleeper = _WatchThread()
        _thread.start_new_thread(sleeper.run, ())
        current = sleeper
    except Exception as error:
        if failure.programs_own(error):
            raise
        # No thread can be started, or the interpreter is ending. So nothing is watched.


def _give_up(sleeper: _WatchThread, error: BaseException) -> None:
    """The thread has failed. Nothing is watched from now on, and the program goes on."""
    try:
        # It stays the current sleeper, so that no other is started, which would fail as well.
        startup.fail("watchdog", "the watchdog has stopped: " + failure.describe(error))
    except BaseException:
        pass  # The interpreter is ending.


def _before_fork() -> None:
    # End our thread, because Python 3.12 warns about a fork while there are threads. Take the lock,
    # so that no other thread holds it during the fork.
    global current
    sleeper = current
    if sleeper is not None:
        sleeper.dismissed = True
        if sleeper.alarm.locked():
            sleeper.alarm.release()
        if sleeper.ended.acquire(timeout=1.0):
            sleeper.ended.release()
        current = None
    underway.lock.acquire()


def _after_fork() -> None:
    if underway.running:
        wake_up()
    underway.lock.release()


def _in_child() -> None:
    global current
    underway.forget()
    on_demand.in_child()
    current = None


def _attend_to(watch: "underway.Watch") -> float:
    """Warn about a compile, or end it, if that is due. Returns when to look again."""
    warn_after, abort_after = underway.settings["warn_after"], underway.settings["abort_after"]
    if watch.due is None:
        watch.step = float(warn_after or 0.0)
        watch.due = watch.began + watch.step if warn_after else float("inf")
        watch.next_abort = watch.began + abort_after if abort_after else float("inf")
    now = time.monotonic()
    if now - watch.seen > _sleep_interval() + LATE:
        watch.stopped += now - watch.seen
    watch.seen = now
    abort = (watch.next_abort or 0.0) + watch.stopped
    if now < min(watch.due, abort):
        return min(watch.due, abort)
    if not watch.lasts():
        with underway.lock:
            if underway.running.get(watch.ident) is watch:
                del underway.running[watch.ident]
        return float("inf")
    if now >= abort:
        from rocm_autopatch.patches.watchdog import aborts

        watch.next_abort = now - watch.stopped + aborts.end(watch, now)
    elif now >= watch.due:
        if abort - now < SOON:
            return abort
        from rocm_autopatch.patches.watchdog import description
        from rocm_autopatch.support.text import duration

        watch.told(now)
        underway.write(
            "a compile has lasted %s: %s; next message at %s"
            % (
                duration(now - watch.began),
                description.describe_compile(watch),
                duration(watch.due - watch.began),
            )
        )
        # Not before: who reads the count looks for the line.
        underway.count("warn_after")
        if underway.settings["dump_stacks"]:
            underway.stacks()
    return min(watch.due, (watch.next_abort or 0.0) + watch.stopped)
