"""The thread that looks at the compiles that last: it warns of them, and ends them."""

import _thread
import os
import time

from rocm_autopatch import failure, startup
from rocm_autopatch.patches.watchdog import underway

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# How much later than it should the thread may look, in seconds, if nothing stopped the process.
LATE = 1.0

# The one thread, None where no compile is under way.
current: "Any" = None
_registered = False


class _Sleeper:
    """The thread: it sleeps until something is due. Not a threading.Thread, which would show up
    where a program counts its own."""

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
                wake = time.monotonic() + _interval()
                for watch in watches:
                    wake = min(wake, _attend(watch))
                self.alarm.acquire(timeout=min(max(wake - time.monotonic(), 0.001), 3600.0))
        except BaseException as error:
            _give_up(self, error)
        finally:
            self.ended.release()


def _interval() -> float:
    """How long the thread may sleep, in seconds: no compile is due sooner after its beginning."""
    warn_after, abort_after = underway.settings["warn_after"], underway.settings["abort_after"]
    # By tenths, so that little of the time in which the process was stopped goes unnoticed.
    return min(warn_after or float("inf"), abort_after / 10 if abort_after else float("inf"))


def wake_up() -> None:
    """See to it that somebody looks at what lasts. With the lock held. Never raises.

    Nobody is woken: what begins now is due no earlier than a whole interval from now, and the
    thread never sleeps for longer.
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
        sleeper = _Sleeper()
        _thread.start_new_thread(sleeper.run, ())
        current = sleeper
    except Exception as error:
        if failure.programs_own(error):
            raise
        # No thread can be had, or the interpreter is ending: nothing is watched.


def _give_up(sleeper: _Sleeper, error: BaseException) -> None:
    """The thread fails: nothing more is watched, and the program goes on."""
    try:
        # It stays on as the sleeper: the next one would fail the same way.
        startup.fail("watchdog", "the watchdog has stopped: " + failure.describe(error))
    except BaseException:
        pass  # The interpreter is ending.


def _before_fork() -> None:
    # Without a thread of ours, as Python 3.12 warns of a fork that finds any, and with the lock,
    # which no other thread then holds.
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
    current = None


def _attend(watch: "underway.Watch") -> float:
    """Warn of a compile, or end it, if that is due; when it is due again."""
    warn_after, abort_after = underway.settings["warn_after"], underway.settings["abort_after"]
    if watch.due is None:
        watch.step = float(warn_after or 0.0)
        watch.due = watch.began + watch.step if warn_after else float("inf")
        watch.next_abort = watch.began + abort_after if abort_after else float("inf")
    now = time.monotonic()
    if now - watch.seen > _interval() + LATE:
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
        from rocm_autopatch.patches.watchdog import phases

        while watch.due <= now:
            watch.due += watch.step
            watch.step *= 2
        underway.count("warn_after")
        underway.write(
            "a compile has lasted %s: %s; said again at %s"
            % (
                phases.seconds(now - watch.began),
                phases.describe(watch),
                phases.seconds(watch.due - watch.began),
            )
        )
        if underway.settings["dump_stacks"]:
            underway.stacks()
    return min(watch.due, (watch.next_abort or 0.0) + watch.stopped)
