"""Turns of programs that share a GPU: only one of them times its calls at a time.

TUNED_TURNS names the file that they lock. Without it nobody waits.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator


@contextlib.contextmanager
def mine() -> Iterator[None]:
    """Wait for this program's turn, and keep it for the block."""
    name = os.environ.get("TUNED_TURNS")
    if not name:
        yield
        return
    with open(name, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
