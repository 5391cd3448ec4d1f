"""Which locks of graphs are taken while others are held; research/graphs-inside.md has the order.

``watch(monkeypatch)`` puts locks that note it in the place of ours, for one test. Locks of objects
are those that are made after that.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rocm_autopatch.graphs import capture, guards, memory, passes, record, soundness, training

PAGE = Path(__file__).resolve().parents[2] / "research" / "graphs-inside.md"
# By the name in the table: the module and its variable, or where an object gets its lock.
MODULES: dict[str, tuple[Any, str]] = {
    "guards._configuring": (guards, "_configuring"),
    "capture._one": (capture, "_one"),
    "capture._working": (capture, "_working"),
    "memory._lock": (memory, "_lock"),
    "passes._lock": (passes, "_lock"),
    "record._lock": (record, "_lock"),
    "soundness._lock": (soundness, "_lock"),
    "training._installing": (training, "_installing"),
}
OBJECTS = {"GuardedGraphs._lock": guards, "CapturePools.lock": capture}


class Noted:
    """What was seen: the pairs of a lock that was held, and one that was taken then."""

    def __init__(self) -> None:
        self.pairs: set[tuple[str, str]] = set()
        self._local = threading.local()

    def held(self) -> list[str]:
        found: list[str] = self._local.__dict__.setdefault("held", [])
        return found


class NotingLock:
    """A lock that may be taken again by its thread, as all of ours may be but for two."""

    def __init__(self, name: str, noted: Noted) -> None:
        self._name, self._noted, self._lock = name, noted, threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        held = self._noted.held()
        # One that is not waited for can't be part of a deadlock.
        if blocking and self._name not in held:
            self._noted.pairs.update((other, self._name) for other in held)
        taken = self._lock.acquire(blocking)
        if taken:
            held.append(self._name)
        return taken

    def release(self) -> None:
        self._noted.held().remove(self._name)
        self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    noted = Noted()
    with monkeypatch.context() as patched:
        for name, (module, variable) in MODULES.items():
            patched.setattr(module, variable, NotingLock(name, noted))
        for name, module in OBJECTS.items():
            made = SimpleNamespace(
                RLock=lambda name=name: NotingLock(name, noted),
                Lock=threading.Lock,
                local=threading.local,
                get_ident=threading.get_ident,
            )
            patched.setattr(module, "threading", made)
        yield noted


def documented() -> list[str]:
    """The locks in the order of the page's table."""
    names = re.findall(r"^\| \d+ \| `([^`]+)`", PAGE.read_text(encoding="utf-8"), re.M)
    assert {*names} == {*MODULES, *OBJECTS}
    return names


def against_the_order(noted: Noted) -> list[tuple[str, str]]:
    """The pairs of locks that were taken in another order than that of the page."""
    order = documented()
    return sorted(pair for pair in noted.pairs if order.index(pair[0]) > order.index(pair[1]))
