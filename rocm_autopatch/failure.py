"""When our code fails: whose exception it is, and the last ways to write a line.

It imports nothing of ours but the package itself, because ``startup`` may be what failed.
"""

import os
import sys

from rocm_autopatch import _RECORD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Optional


def programs_own(error: BaseException) -> bool:
    """Whether *error* is the program's, and came while code of ours ran.

    Such an exception is for the program: KeyboardInterrupt, what a signal handler raises, and what
    another thread sends (``PyThreadState_SetAsyncExc``). A function is a signal handler if it is
    set as one, or if one of its arguments is the frame that it interrupts. An exception was sent
    if our code raised it and its class is neither built in nor torch's nor ours.
    """
    handlers = _handlers()
    trace = error.__traceback__
    frame: Optional[FrameType] = None
    while trace is not None:
        interrupted, frame = frame, trace.tb_frame
        trace = trace.tb_next
        if interrupted is None:
            continue
        if id(frame.f_code) in handlers:
            return True
        for value in frame.f_locals.values():
            # In a tuple: def handler(*args)
            among = value if type(value) is tuple else (value,)
            if id(interrupted) in map(id, among):
                return True
    origin = type(error).__module__.partition(".")[0]
    # io.UnsupportedOperation and torch's errors come out of C, which has no frame.
    if frame is not None and origin not in ("builtins", "io", "torch", "rocm_autopatch"):
        return str(frame.f_globals.get("__name__")).partition(".")[0] == "rocm_autopatch"
    return isinstance(error, KeyboardInterrupt)


def _handlers() -> "list[int]":
    """The identities of the code of the signal handlers that are set."""
    signals: Any = sys.modules.get("_signal")
    found = [signals.getsignal(number) for number in range(1, signals.NSIG)] if signals else []
    functions = [getattr(handler, "__func__", handler) for handler in found]
    return [id(one.__code__) for one in functions if hasattr(one, "__code__")]


def describe(error: BaseException) -> str:
    """An exception as text: its class and its message."""
    text = str(error)
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


def judge_error(error: BaseException) -> "tuple[bool, str]":
    """Whether *error* is the program's own, and its text."""
    return programs_own(error), describe(error)


def give_up(error: BaseException) -> bool:
    """Undo what a start that failed has done. Returns whether *error* is the program's own."""
    _RECORD["reason"] = "the start-up hook failed"
    for rule, before, status in reversed(_RECORD["env"]):
        name, *_ = rule
        if status != "applied":
            continue
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
    said = os.environ.get("ROCM_AUTOPATCH_SAID", "")
    if "=" in said:
        # The variables are as they were, so a child's start may change them.
        kinds = [word for word in said.split(",") if not word.startswith("=")]
        os.environ["ROCM_AUTOPATCH_SAID"] = ",".join(kinds)
    _RECORD["env"].clear()
    _RECORD["plan"] = None
    _RECORD["evidence"] = ""
    if programs_own(error):
        return True
    startup: Any = sys.modules.get("rocm_autopatch.startup")
    what = "the start-up hook failed and was undone: "
    if isinstance(error, ImportError) and (error.name or "").startswith("rocm_autopatch"):
        # An installer has written or removed one part of the package, and not yet the other.
        what += "the package is not whole: it is being installed, or install it again: "
    what += describe(error)
    try:
        startup.waiting.clear()
        fail = startup.fail
    except BaseException:
        # startup itself is broken.
        put(("rocm_autopatch: %.400s\n" % printable(what)).encode("utf-8", "backslashreplace"))
    else:
        fail("start", what)
    return False


def without_passwords(text: str) -> str:
    """*text* without what addresses have before their host: ``https://user:password@host``.

    masking knows more secrets, but needs ``re``, and the program's path may have another one.
    """
    words = []
    for word in text.split(" "):
        head, scheme, rest = word.partition("://")
        _, at, path = rest.rpartition("@")
        words.append(head + scheme + (at and "***@") + path if scheme else word)
    return " ".join(words)


def printable(text: str) -> str:
    """*text* as one line, with escapes for what controls a terminal or reorders text."""
    return "".join([c if c.isprintable() else repr(c)[1:-1] for c in text.replace("\n", " ")])


def put(data: bytes) -> None:
    """Write to a stderr that can't be opened anew, if the write would not wait."""
    try:
        if _is_in_memory(sys.stderr):
            sys.stderr.write(data.decode("utf-8", "replace"))
            return
        # Imported only here, because it is a shared library.
        import select

        number = sys.stderr.fileno()
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        # If nobody reads the pipe, there is POLLERR too.
        if poll.poll(0) == [(number, select.POLLOUT)]:
            os.write(number, data)
    except Exception as error:
        # stderr is closed or full, so this can be told to nobody.
        if programs_own(error):
            raise


def _is_in_memory(stream: object) -> bool:
    """Whether a write to the stream can't wait: a notebook's, or one that keeps what it is given.

    ipykernel's stream (Jupyter, Colab) hands the text to a thread. pytest's capsys and a StringIO
    keep it. A stream of another kind may wait for a reader.
    """
    if type(stream).__module__ == "ipykernel.iostream":
        return True
    import io

    return isinstance(stream, io.StringIO) or isinstance(
        getattr(stream, "buffer", None), io.BytesIO
    )
