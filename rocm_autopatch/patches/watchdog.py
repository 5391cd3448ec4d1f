"""A compile that lasts: who compiles what, where it is stuck, and which setting would stop it.

Two functions are the ways into a compile on every torch from 2.4 to 2.15
(tests/matrix/watchdog_versions.py): ``torch._dynamo.convert_frame._compile`` for a frame, and
``torch._inductor.compile_fx.fx_codegen_and_compile`` for a graph, which is also how a backward
comes in from autograd's thread, and a framework that calls Inductor by itself. The tuning of a
Triton kernel in its first call is a third: ``CachingAutotuner``. Each notes when it began, and
nothing else.

One thread looks at what lasts. It is started by the first compile, sleeps until a compile that it
knows of would be due, and ends when it finds none, so a short compile costs two entries in a dict.
What a compile is at, phases.py sees in the stack of its thread.
"""

import _thread
import functools
import os
import sys
import threading
import time

from rocm_autopatch import _RECORD, _say, _start
from rocm_autopatch.patches import kept, row

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, ModuleType
    from typing import Any, Optional


FIELDS = ("name", "wanted", "layer", "why")
# What a policy with a watchdog leaves unsaid, and what holds where a field is taken out of it.
DEFAULTS = {"warn_after": 120, "dump_stacks": False, "abort_after": None}
OFF = {"warn_after": False, "dump_stacks": False, "abort_after": None}
# How much later than it should the thread may look, in seconds, if nothing stopped the process.
LATE = 1.0

# The settings of the one policy in force, by the name of their field; empty where nothing is
# watched.
settings: "dict[str, Any]" = {}
_rows: "dict[str, dict[str, Any]]" = {}


def apply(
    module: "ModuleType",
    entries: "list[tuple[Any, ...]]",
    keep: "tuple[str, ...]",
    observe: bool,
) -> "list[dict[str, Any]]":
    """Watch the compiles that go through ``torch._dynamo.convert_frame``, as the fields say.

    There is an entry for each field, called ``watchdog.FIELD``. ``uses`` counts, in this process,
    the warnings in the row of ``warn_after``, the exceptions raised in that of ``abort_after``.
    """
    chosen = dict(DEFAULTS)
    rows = []
    for entry in entries:
        done = row(FIELDS, entry, uses=0)
        field = done["name"].partition(".")[2]
        if field not in DEFAULTS:
            raise ValueError("%r is no field of the watchdog" % (field,))
        if kept(done["name"], keep):
            done.update(status="kept", reason="ROCM_AUTOPATCH_KEEP")
            chosen[field] = OFF[field]
        else:
            chosen[field] = done["wanted"]
            done["status"] = "observed" if observe else "applied"
            done["after"] = None if observe else done["wanted"]
        _rows[field] = done
        rows.append(done)
    if chosen["warn_after"] is False and chosen["abort_after"] is None:
        for done in rows:
            if done["status"] != "kept":
                done.update(status="skipped", after=None, reason="the policy turns it off")
        return rows
    settings.update(chosen)
    _watch_frames(module)
    return rows


def count(field: str) -> None:
    """Put one more use of a setting on the record."""
    if field in _rows:
        _rows[field]["uses"] += 1


# The ways in

_GRAPHS = "torch._inductor.compile_fx"
_KERNELS = "torch._inductor.runtime.triton_heuristics"
_TUNERS = ("autotune_to_one_config", "coordinate_descent_tuning")


def _watch_frames(module: "Any") -> None:
    original = getattr(module, "_compile", None)
    if original is None:
        # getattr: while a module is being imported, its own error blames a circular import.
        raise AttributeError("this torch has no _compile in %s" % module.__name__)

    waits = [True]

    @functools.wraps(original)
    def _compile(*args: "Any", **kwargs: "Any") -> "Any":
        # How many frames of Dynamo's own its logs leave out of a stack: this is one more.
        kwargs["skip"] = kwargs.get("skip", 0) + 1
        if waits:
            # Not before the first compile: a program that only imports torch keeps no finder.
            waits.clear()
            hooks: dict[str, Any] = {_GRAPHS: _watch_graphs, _KERNELS: _watch_kernels}
            _start.arm(hooks)
        watch = None
        try:
            watch, depth = _enter("frame", args, kwargs)
            return original(*args, **kwargs)
        finally:
            if watch is not None:
                _leave(watch, depth)

    module._compile = _compile


def _watch_graphs(module: "Any") -> None:
    _wrap(module, "fx_codegen_and_compile", "graph")


def _watch_kernels(module: "Any") -> None:
    for name in _TUNERS:
        _wrap(getattr(module, "CachingAutotuner", None), name, "kernel")


def _wrap(owner: "Any", name: str, kind: str) -> None:
    """Have a function of a module or class note when it is called. Never raises."""
    original = getattr(owner, name, None)
    if original is None:
        version = getattr(sys.modules.get("torch"), "__version__", "")
        _RECORD["notes"].append("the watchdog does not see %s: not in torch %s" % (name, version))
        return

    @functools.wraps(original)
    def watched(*args: "Any", **kwargs: "Any") -> "Any":
        watch = None
        try:
            watch, depth = _enter(kind, args, kwargs)
            return original(*args, **kwargs)
        finally:
            if watch is not None:
                _leave(watch, depth)

    setattr(owner, name, watched)


class Watch:
    """A compile under way: the outermost of one thread, and in ``levels`` what is within it."""

    __slots__ = (
        "began",
        "delivered",
        "done",
        "due",
        "frame",
        "ident",
        "levels",
        "next_abort",
        "raised",
        "seen",
        "step",
        "stopped",
    )

    def __init__(self, frame: "Optional[FrameType]") -> None:
        self.began = self.seen = time.monotonic()
        self.frame = frame
        self.ident = _thread.get_ident()
        # (kind, args, kwargs, Dynamo's id of the compile) of each call.
        self.levels: list[tuple[Any, ...]] = []
        self.due: Optional[float] = None
        self.step = 0.0
        # For how long nobody looked, as the whole process was stopped (docker pause): that does
        # not count against it.
        self.stopped = 0.0
        self.next_abort: Optional[float] = None
        # Exceptions sent to the thread, and how many of them it has met.
        self.raised = self.delivered = 0
        self.done = False

    def lasts(self) -> bool:
        """Whether its thread is in it still. What an interrupt has left behind is in no stack."""
        frame = sys._current_frames().get(self.ident)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None and not self.done


# By thread, the compiles under way. A signal may come while the lock is held, and compile.
running: "dict[int, Watch]" = {}
lock = threading.RLock()
_here = threading.local()
# By Dynamo's id of the compile, the frames compiled lately: for the backward that comes later.
frames: "dict[Any, tuple[str, str, int]]" = {}
_FRAMES = 1000


def _enter(kind: str, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "tuple[Watch, int]":
    """Note that a call begins; what is to be given to _leave."""
    caller = sys._getframe(1)
    watch: Any = getattr(_here, "watch", None)
    if watch is not None:
        frame: Any = caller
        while frame is not None and frame is not watch.frame:
            frame = frame.f_back
        if frame is None:
            watch = None  # An interrupt came between a try and its finally.
    if watch is None:
        watch = _here.watch = Watch(caller)
    depth = len(watch.levels)
    if kind == "frame":
        compile_id = kwargs.get("compile_id")
        code = args[0] if args else kwargs["code"]
        if compile_id is not None:
            frames[compile_id] = (code.co_name, code.co_filename, code.co_firstlineno)
            if len(frames) > _FRAMES:
                frames.pop(next(iter(frames)), None)
    else:
        compile_id = _compile_id()
    watch.levels.append((kind, args, kwargs, compile_id))
    if depth == 0:
        with lock:
            running[watch.ident] = watch
            _wake_up()
    return watch, depth


def _leave(watch: Watch, depth: int) -> None:
    del watch.levels[depth:]
    if depth:
        return
    with lock:
        watch.done = True
        if running.get(watch.ident) is watch:
            del running[watch.ident]
    watch.frame = None
    _here.watch = None
    if watch.raised > watch.delivered:
        from rocm_autopatch.patches import aborts

        aborts.take_back(watch)


def _compile_id() -> "Any":
    guards: Any = sys.modules.get("torch._guards")
    try:
        return guards.CompileContext.current_compile_id()
    except Exception as error:
        if _say.programs_own(error):
            raise
        return None


# The thread

_sleeper: "Any" = None
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
        global _sleeper
        try:
            while True:
                with lock:
                    if self.dismissed or not running:
                        if _sleeper is self:
                            _sleeper = None
                        return
                    watches = list(running.values())
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
    warn_after, abort_after = settings["warn_after"], settings["abort_after"]
    # By tenths, so that little of the time in which the process was stopped goes unnoticed.
    return min(warn_after or float("inf"), abort_after / 10 if abort_after else float("inf"))


def _wake_up() -> None:
    """See to it that somebody looks at what lasts. With the lock held. Never raises.

    Nobody is woken: what begins now is due no earlier than a whole interval from now, and the
    thread never sleeps for longer.
    """
    global _sleeper, _registered
    if _sleeper is not None:
        return
    try:
        if not _registered:
            _registered = True
            os.register_at_fork(
                before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child
            )
        sleeper = _Sleeper()
        _thread.start_new_thread(sleeper.run, ())
        _sleeper = sleeper
    except Exception as error:
        if _say.programs_own(error):
            raise
        # No thread can be had, or the interpreter is ending: nothing is watched.


def _give_up(sleeper: _Sleeper, error: BaseException) -> None:
    """The thread fails: nothing more is watched, and the program goes on."""
    try:
        # It stays on as the sleeper: the next one would fail the same way.
        _say.fail("watchdog", "the watchdog has stopped: " + _say.describe(error))
    except BaseException:
        pass  # The interpreter is ending.


def _before_fork() -> None:
    # Without a thread of ours, as Python 3.12 warns of a fork that finds any, and with the lock,
    # which no other thread then holds.
    global _sleeper
    sleeper = _sleeper
    if sleeper is not None:
        sleeper.dismissed = True
        if sleeper.alarm.locked():
            sleeper.alarm.release()
        if sleeper.ended.acquire(timeout=1.0):
            sleeper.ended.release()
        _sleeper = None
    lock.acquire()


def _after_fork() -> None:
    if running:
        _wake_up()
    lock.release()


def _in_child() -> None:
    """A child of a fork has no compile under way but, seldom, that which forked."""
    global lock, _sleeper, _here
    lock = threading.RLock()
    _sleeper = None
    _here = threading.local()
    running.clear()


# What is due


def _attend(watch: Watch) -> float:
    """Warn of a compile, or end it, if that is due; when it is due again."""
    warn_after, abort_after = settings["warn_after"], settings["abort_after"]
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
        with lock:
            if running.get(watch.ident) is watch:
                del running[watch.ident]
        return float("inf")
    if now >= abort:
        from rocm_autopatch.patches import aborts

        watch.next_abort = now - watch.stopped + aborts.end(watch, now)
    elif now >= watch.due:
        from rocm_autopatch.patches import phases

        while watch.due <= now:
            watch.due += watch.step
            watch.step *= 2
        count("warn_after")
        write(
            "a compile has lasted %s: %s; said again at %s"
            % (
                phases.seconds(now - watch.began),
                phases.describe(watch),
                phases.seconds(watch.due - watch.began),
            )
        )
        if settings["dump_stacks"]:
            stacks()
    return min(watch.due, (watch.next_abort or 0.0) + watch.stopped)


def write(text: str) -> None:
    """Write a line to stderr, unless nothing is to be said. Never raises."""
    if not _RECORD["observe"] and os.environ.get("ROCM_AUTOPATCH_LOG") != "quiet":
        # Torch's own directory says nothing. Several paths and a hint need more than other lines.
        torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/torch")
        _start.write(text.replace(torch + os.sep, "torch/"), 2 * _start.LONGEST_LINE)


def stacks() -> None:
    """Write the stacks of all threads to stderr, if that doesn't wait. Never raises."""
    if _RECORD["observe"] or os.environ.get("ROCM_AUTOPATCH_LOG") == "quiet":
        return
    try:
        import faulthandler

        # By way of memory: a full pipe would hold the whole process up.
        memory = os.memfd_create("stacks")
        try:
            faulthandler.dump_traceback(file=memory, all_threads=True)
            os.lseek(memory, 0, os.SEEK_SET)
            while data := os.read(memory, 512):
                _start.put(data)
        finally:
            os.close(memory)
    except Exception:
        pass  # No memory, or an old kernel.
