"""The progress of a measurement, on stderr: the command's line on a terminal, else a line for each
run."""

from __future__ import annotations

import sys

from rocm_autopatch.support.progress import tell_step
from rocm_autopatch.support.text import duration, printable


class RunProgress:
    """Shows how many of *total* runs have ended."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.left_s: float | None = None

    def begins(self, what: str) -> None:
        """The next run is *what*."""
        tell_step(what, self.done, self.total, "runs", self.left_s)

    def ended(self, what: str, runs: int, elapsed: float) -> None:
        """*runs* more have ended, *elapsed* seconds after the start. *what* is the last of them."""
        self.done += runs
        self.left_s = elapsed / self.done * (self.total - self.done)
        if sys.stderr.isatty():
            return
        remaining = f", about {duration(self.left_s)} left" if self.done < self.total else ""
        line = f"{self.done}/{self.total} {what}; {duration(elapsed)} elapsed{remaining}"
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()
