"""What commands print: harmless to a terminal in any encoding, whatever the text came from.

Images, policies, variables and traces may hold what controls a terminal, reorders text or can't be
encoded. All that a command prints goes through :class:`HarmlessWriter`, which stands for stdout
and stderr while the command runs: it lets printable characters, newlines and tabs through, and
writes all else as an escape, ``\\x1b``. :func:`print_lines` and :func:`print_error` print one line
for each text, so they write newlines as escapes, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.support import progress
from rocm_autopatch.support.text import printable

# Data can't forge a colour of ours, because it does not know the mark of this process.
_MARK = os.urandom(16).hex()
_COLOUR = re.compile(rf"<{_MARK}:([0-9]+)>")
_LEFT_AS_THEY_ARE = re.compile(r"([\n\t])")


def colour(code: str, text: str) -> str:
    """*text* in the colour of an SGR *code*, as :class:`HarmlessWriter` writes it."""
    return f"<{_MARK}:{code}>{text}<{_MARK}:0>"


def plain(text: str) -> str:
    """*text* without colours of ours."""
    return _COLOUR.sub("", text)


class NotWritten(Exception):
    """stdout is a full disk or a pipe without a reader. It is no OSError, which argparse hides."""


class HarmlessWriter(io.TextIOBase):
    """Writes to *stream* what can do no harm there. None is a stream that is closed.

    :meth:`write` and :meth:`flush` raise NotWritten from the OSError of the stream.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self.stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        if self.stream is not None:
            with self._told_errors(), progress.line_erased():
                self.stream.write(self.harmless(text))
        return len(text)

    @contextlib.contextmanager
    def _told_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise NotWritten from error

    def harmless(self, text: str) -> str:
        """*text* as it is written."""
        parts = _COLOUR.split(text)
        # Text and colours alternate.
        parts[::2] = [self._encodable_text(_escaped_text(part)) for part in parts[::2]]
        parts[1::2] = [f"\x1b[{code}m" for code in parts[1::2]]
        return "".join(parts)

    def _encodable_text(self, text: str) -> str:
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        if self.stream is not None:
            with self._told_errors():
                self.stream.flush()

    def isatty(self) -> bool:
        return self.stream is not None and self.stream.isatty()

    def fileno(self) -> int:
        if self.stream is None:
            raise io.UnsupportedOperation("fileno")
        return self.stream.fileno()


class HarmlessErrorWriter(HarmlessWriter):
    """stderr: that something can't be written there changes nothing else."""

    has_failed = False

    @contextlib.contextmanager
    def _told_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.has_failed = True


def _escaped_text(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        part if part in "\n\t" else printable(part) for part in _LEFT_AS_THEY_ARE.split(text)
    )


@contextlib.contextmanager
def harmless_text() -> Iterator[None]:
    """Have stdout and stderr be harmless."""
    streams = sys.stdout, sys.stderr
    errors = HarmlessErrorWriter(streams[1])
    sys.stdout, sys.stderr = HarmlessWriter(streams[0]), errors
    try:
        yield
    finally:
        errors.flush()
        sys.stdout, sys.stderr = streams
        if errors.has_failed:
            # Not before: a command that is run writes there, too.
            give_up(sys.stderr)


def print_lines(texts: Iterable[str], stream: TextIO | None = None) -> None:
    """Print each of *texts* as one line, to stdout unless given."""
    stream = sys.stdout if stream is None else stream
    for text in texts:
        parts = _COLOUR.split(text)
        parts[::2] = map(printable, parts[::2])
        parts[1::2] = [f"<{_MARK}:{code}>" for code in parts[1::2]]
        stream.write("".join(parts) + "\n")


def print_error(text: object) -> None:
    """Print *text* to stderr as one line."""
    print_lines([str(text)], sys.stderr)
    sys.stderr.flush()


def print_data(found: Any) -> None:
    """Print plain data as JSON, its secrets masked."""
    text = json.dumps(fresh_interpreter.secrets().data(found), indent=2)
    # JSON's own escapes leave one control character as it is.
    sys.stdout.write(text.replace("\x7f", "\\u007f") + "\n")


def give_up(stream: TextIO | None) -> None:
    """Keep a stream that can't be written from failing again when the interpreter ends."""
    with contextlib.suppress(Exception):
        if stream is not None:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
