"""The one error that ends a command: what the user reads, the exit status, and the page to read."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(Exception):
    """A command can't do what it was asked for. The text says why. Most have one; each is a line.

    ``status`` is the exit status: 1 where something is wrong with what was asked about, 2 for wrong
    usage. ``page`` is the page of docs/ that the error belongs to, and its heading if it has one:
    ``caches.md#commands``; "" for none. ``quoted`` are lines of somebody else's output, which stand
    below the text. Classes of errors set ``usual_status`` and ``usual_page``.
    """

    usual_status = 1
    usual_page = ""

    def __init__(
        self,
        *texts: str,
        status: int | None = None,
        page: str | None = None,
        quoted: Sequence[str] = (),
    ) -> None:
        super().__init__("; ".join(texts))
        self.messages = texts
        self.status = self.usual_status if status is None else status
        self.page = self.usual_page if page is None else page
        self.quoted = tuple(quoted)


def describe_os_error(error: OSError) -> str:
    """What the system said, with the file if the error has one."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = str(error.strerror or error)
    # Of tempfile, which names the directories that it has tried.
    return f"{text}: set TMPDIR to another directory" if text.startswith("No usable temp") else text
