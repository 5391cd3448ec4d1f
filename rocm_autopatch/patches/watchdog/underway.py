"""The compiles under way, how the watchdog is set, and what it writes to stderr."""

import _thread
import os
import sys
import threading
import time

from rocm_autopatch import _RECORD, startup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Optional

# The settings of the one policy in force, by the name of their field; empty where nothing is
# watched.
settings: "dict[str, Any]" = {}
# The rows of the record, by the same names.
rows: "dict[str, dict[str, Any]]" = {}
# By thread, the compiles under way. A signal may come while the lock is held, and compile.
running: "dict[int, Watch]" = {}
lock = threading.RLock()
# What this thread has under way, as its attribute watch.
here = threading.local()
# By Dynamo's id of the compile, the frames compiled lately: for the backward that comes later.
frames: "dict[Any, tuple[str, str, int]]" = {}
MOST_FRAMES = 1000


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


def count(field: str) -> None:
    """Put one more use of a setting on the record."""
    if field in rows:
        rows[field]["uses"] += 1


def forget() -> None:
    """In a child of a fork: it has no compile under way but, seldom, that which forked."""
    global lock, here
    lock = threading.RLock()
    here = threading.local()
    running.clear()


def write(text: str) -> None:
    """Write a line to stderr, unless nothing is to be said. Never raises."""
    if not _RECORD["observe"] and os.environ.get("ROCM_AUTOPATCH_LOG") != "quiet":
        # Torch's own directory says nothing. Several paths and a hint need more than other lines.
        torch = os.path.dirname(getattr(sys.modules.get("torch"), "__file__", None) or "/torch")
        startup.write(text.replace(torch + os.sep, "torch/"), 2 * startup.LONGEST_LINE)


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
                startup.put(data)
        finally:
            os.close(memory)
    except Exception:
        pass  # No memory, or an old kernel.
