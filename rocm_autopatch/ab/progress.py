"""How far a measurement is: a bar on a terminal, else one line a run, on stderr."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from rocm_autopatch.text import printable

try:
    # ROCm's images have it; it is no dependency of ours.
    tqdm: Any = importlib.import_module("tqdm").tqdm
except Exception:
    # It is not there, or it is broken.
    tqdm = None


def duration(seconds: float) -> str:
    """Seconds in words: ``0.8 s``, ``42 s``, ``3 min 12 s``, ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Progress:
    """Tells of *total* runs as they end."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.bar: Any = None
        # A bar moves the cursor, which our own stream for stderr lets nobody do.
        stream: Any = getattr(sys.stderr, "stream", sys.stderr)
        if tqdm is not None and stream is not None and stream.isatty():
            # Terminals of containers may say that they have no columns: a bar would be hidden.
            size = os.get_terminal_size(stream.fileno())
            shape = {"ncols": size.columns or 80, "nrows": size.lines or 24}
            self.bar = tqdm(total=total, unit="run", file=stream, **shape)

    def begins(self, what: str) -> None:
        """The next run is *what*."""
        if self.bar is not None:
            # In whatever encoding.
            self.bar.set_description(ascii(what)[1:-1])

    def ended(self, what: str, runs: int, elapsed: float) -> None:
        """*runs* more are behind us, the last of them *what*, *elapsed* seconds after the start."""
        self.done += runs
        if self.bar is not None:
            self.bar.update(runs)
            return
        left = elapsed / self.done * (self.total - self.done) if self.done else 0.0
        remaining = f", about {duration(left)} left" if self.done < self.total else ""
        line = f"{self.done}/{self.total} {what}; {duration(elapsed)} gone{remaining}"
        sys.stderr.write(printable(line) + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.bar is not None:
            self.bar.close()
