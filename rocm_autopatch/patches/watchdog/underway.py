"""The compiles under way, how the watchdog is set, and what it writes to stderr."""

import _thread
import os
import sys
import threading
import time

from rocm_autopatch import _RECORD, startup
from rocm_autopatch.patches import callers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Optional

    from rocm_autopatch.record.shapes import WatchdogRow

    # (kind, args, kwargs, Dynamo's id of the compile) of a call of one of torch's functions.
    Level = tuple[str, tuple[Any, ...], dict[str, Any], object]

# The settings of the policy, by the name of their field; empty if nothing is watched.
settings: "dict[str, Any]" = {}
# The rows of the record, by the same names.
rows: "dict[str, WatchdogRow]" = {}
# The compiles under way, by thread. The lock is an RLock: a signal handler may compile while its
# thread holds it.
running: "dict[int, Watch]" = {}
lock = threading.RLock()
# The Watch of this thread is its attribute watch.
here = threading.local()
# The frames compiled recently, by Dynamo's id of the compile. They describe a later backward.
frames: "dict[object, tuple[str, str, int]]" = {}
MOST_FRAMES = 1000


class Watch:
    """A compile under way: the outermost one of a thread. ``levels`` has the ones within it."""

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
        self.levels: list[Level] = []
        self.due: Optional[float] = None
        self.step = 0.0
        # The time in which the whole process was stopped (docker pause). It is not counted.
        self.stopped = 0.0
        self.next_abort: Optional[float] = None
        # How many exceptions were sent to the thread, and how many have arrived.
        self.raised = self.delivered = 0
        self.done = False

    def lasts(self) -> bool:
        """Whether its thread is still in it. If an interrupt has ended it, it is in no stack."""
        frame = sys._current_frames().get(self.ident)
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None and not self.done

    def told(self, now: float) -> None:
        """A line about it was written: the next warning is due after *now*."""
        while self.due is not None and self.due <= now:
            self.due += self.step
            self.step *= 2


def function(args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "tuple[str, str, int]":
    """The name, file and line of what a call of ``convert_frame._compile`` compiles."""
    code, _, values = (*args, *[kwargs.get(name) for name in _FRAME[len(args) :]])[:3]
    return callers.function(code, values or {}), code.co_filename, code.co_firstlineno


# The first parameters of convert_frame._compile, in torch 2.4 to 2.15.
_FRAME = ("code", "globals", "locals")


def count(field: str) -> None:
    """Put one more use of a setting on the record."""
    if field in rows:
        rows[field]["uses"] += 1


def forget() -> None:
    """Forget all compiles, in the child of a fork: none of them goes on there, with one exception.

    A compile that forks goes on in the child, unwatched.
    """
    global lock, here
    lock = threading.RLock()
    here = threading.local()
    running.clear()


def write(text: str) -> None:
    """Write a line to stderr, unless the process is to be quiet. Never raises."""
    if not _RECORD["observe"] and os.environ.get("ROCM_AUTOPATCH_LOG") != "quiet":
        # Torch's own directory is left out, because it says nothing. Still these lines have several
        # paths and a hint, so they may be longer than others.
        torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/torch")
        startup.write(text.replace(torch + os.sep, "torch/"), 2 * startup.LONGEST_LINE)


def put(data: bytes) -> None:
    """Write stacks to stderr, without waiting for it, unless the process is to be quiet."""
    if not _RECORD["observe"] and os.environ.get("ROCM_AUTOPATCH_LOG") != "quiet":
        for start in range(0, len(data), 512):
            startup.put(data[start : start + 512])


def stacks() -> None:
    """Write the stacks of all threads to stderr, without waiting for it. Never raises."""
    if _RECORD["observe"] or os.environ.get("ROCM_AUTOPATCH_LOG") == "quiet":
        return
    try:
        import faulthandler

        # Through a file in memory, because a full pipe would block the whole process.
        memory = os.memfd_create("stacks")
        try:
            faulthandler.dump_traceback(file=memory, all_threads=True)
            os.lseek(memory, 0, os.SEEK_SET)
            while data := os.read(memory, 512):
                startup.put(data)
        finally:
            os.close(memory)
    except Exception:
        pass  # There is no memory, or the kernel is too old.
