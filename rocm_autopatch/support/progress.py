"""What a command does meanwhile: one line on a terminal, rewritten each second, erased at the end.

There is one line for a process, that of the command that runs (:func:`progress_of`). Whatever works
for it says what it does by :func:`tell_step`, at any depth, and need not know whether anybody sees
it. Nobody does where stderr is no terminal, and where stdout is a pipe: who reads it, such as
``less``, may write to the same terminal. A terminal that is TERM=dumb can't erase, so there each
step is a line.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from rocm_autopatch.support.text import duration

_EVERY_S = 1.0
# Steps may be told for each of many files.
_OFTEN_S = 0.1
# Of a terminal that does not say how wide it is.
_WIDTH = 80
_ERASED = "\r\x1b[K"


@dataclass(frozen=True)
class ProgressStep:
    """What is done since *began* (``time.monotonic()``): *what*, and so many *units* of a *total*;
    0 where the number is not known. *left_s* are the seconds that are left, None if unknown; with
    *at_most*, there may be less."""

    what: str
    began: float
    done: int = 0
    total: int = 0
    units: str = ""
    left_s: float | None = None
    at_most: bool = False

    def as_text(self, now: float) -> str:
        """The step in words."""
        parts = []
        if self.total:
            parts.append(f"{self.done:,} of {self.total:,} {self.units}".rstrip())
        elif self.done:
            parts.append(f"{self.done:,} {self.units}".rstrip())
        if self.left_s is not None:
            seconds = round(max(0.0, self.left_s - now + self.began))
            left = f"{seconds} s" if seconds < 60 else duration(seconds)
            parts.append(f"{'at most' if self.at_most else 'about'} {left} left")
        told = f"{', '.join(parts)}: " if parts else ""
        return f"{told}{self.what}, {round(now - self.began)} s"


class ProgressLine:
    """The line of *command* on the terminal behind the file descriptor *terminal*."""

    def __init__(self, command: str, terminal: int, dumb: bool) -> None:
        self.command = command
        self.terminal = terminal
        self.dumb = dumb
        self.step: ProgressStep | None = None
        self._shown = False
        self._drawn = 0.0
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, step: ProgressStep) -> None:
        """Show another step. The clock of one with the same words goes on."""
        with self._lock:
            before = self.step
            if before is not None and before.what == step.what and step.left_s is None:
                step = replace(step, began=before.began)
            self.step = step
            if self.dumb and (before is None or before.what != step.what):
                self._write(f"{self.command}: {step.as_text(step.began)}\n".replace(", 0 s", ""))
            elif not self.dumb:
                if not self._shown or time.monotonic() - self._drawn > _OFTEN_S:
                    self._draw()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._redraw, daemon=True)
                    self._thread.start()

    @contextlib.contextmanager
    def erased(self) -> Iterator[None]:
        """In it, the line is away, and is not drawn again."""
        with self._lock:
            if self._shown:
                self._write(_ERASED)
                self._shown = False
            yield

    def pause(self) -> None:
        """Take the line away until the next step: another program has the terminal."""
        with self.erased():
            self.step = None

    def end(self) -> None:
        """Leave the terminal as it was."""
        self._ended.set()
        self.pause()

    def _redraw(self) -> None:
        while not self._ended.wait(_EVERY_S):
            with self._lock:
                if not self._ended.is_set():
                    self._draw()

    def _draw(self) -> None:
        if self.step is None:
            return
        width = _WIDTH
        with contextlib.suppress(OSError):
            width = os.get_terminal_size(self.terminal).columns or _WIDTH
        # ASCII works in every encoding, and each character has one column.
        text = ascii(f"{self.command}: {self.step.as_text(time.monotonic())}")[1:-1]
        # In the last column, some terminals begin a new line.
        self._write(_ERASED + (text if len(text) < width else f"{text[: max(0, width - 4)]}..."))
        self._shown, self._drawn = True, time.monotonic()

    def _write(self, text: str) -> None:
        # Past all buffers: what was printed before is flushed by who printed it.
        with contextlib.suppress(OSError):
            os.write(self.terminal, text.encode("ascii", "backslashreplace"))


_line: ProgressLine | None = None


@contextlib.contextmanager
def progress_of(command: str) -> Iterator[None]:
    """In it, steps are shown as those of *command*, if there is a terminal for them."""
    global _line
    before, terminal = _line, _terminal()
    if terminal is not None:
        _line = ProgressLine(command, terminal, os.environ.get("TERM", "dumb") == "dumb")
    try:
        yield
    finally:
        if _line is not None and _line is not before:
            _line.end()
        _line = before


def _terminal() -> int | None:
    """The descriptor of the terminal that is to have the line, None if none is."""
    try:
        stderr = sys.__stderr__.fileno() if sys.__stderr__ else -1
        if not os.isatty(stderr):
            return None
        stdout = sys.__stdout__.fileno() if sys.__stdout__ else -1
        return stderr if stdout < 0 or not stat.S_ISFIFO(os.fstat(stdout).st_mode) else None
    except (OSError, ValueError):
        return None


def tell_step(
    what: str,
    done: int = 0,
    total: int = 0,
    units: str = "",
    left_s: float | None = None,
    at_most: bool = False,
) -> None:
    """Say what is done from now on, as :class:`ProgressStep` has it."""
    if _line is not None:
        _line.tell(ProgressStep(what, time.monotonic(), done, total, units, left_s, at_most))


def line_erased() -> AbstractContextManager[object]:
    """In it, something else is printed: the line is away, and comes again within a second."""
    return _line.erased() if _line is not None else contextlib.nullcontext()


def pause_line() -> None:
    """Take the line away until the next step, because another program has the terminal."""
    if _line is not None:
        _line.pause()
