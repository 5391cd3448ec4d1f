"""The progress of a measurement, on stderr: a bar on a terminal, otherwise a line for each run."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from rocm_autopatch.support.text import duration, printable

try:
    # ROCm's images have it, but it is not a dependency of ours.
    tqdm: Any = importlib.import_module("tqdm").tqdm
except Exception:
    # It is missing or broken.
    tqdm = None


class RunProgress:
    """Shows how many of *total* runs have ended."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.bar: Any = None
        # A bar moves the cursor, and our own stream for stderr removes such characters.
        stream: Any = getattr(sys.stderr, "stream", sys.stderr)
        if tqdm is not None and stream is not None and stream.isatty():
            # A container's terminal may report no columns. Then the bar would be hidden.
            size = os.get_terminal_size(stream.fileno())
            shape = {"ncols": size.columns or 80, "nrows": size.lines or 24}
            self.bar = tqdm(total=total, unit="run", file=stream, **shape)

    def begins(self, what: str) -> None:
        """The next run is *what*."""
        if self.bar is not None:
            # ASCII works in every encoding.
            self.bar.set_description(ascii(what)[1:-1])

    def ended(self, what: str, runs: int, elapsed: float) -> None:
        """*runs* more have ended, *elapsed* seconds after the start. *what* is the last of them."""
        self.done += runs
        if self.bar is not None:
            self.bar.update(runs)
            return
        left = elapsed / self.done * (self.total - self.done) if self.done else 0.0
        remaining = f", about {duration(left)} left" if self.done < self.total else ""
        line = f"{self.done}/{self.total} {what}; {duration(elapsed)} elapsed{remaining}"
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.close()
