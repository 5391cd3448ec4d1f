"""What a search has measured, kept run by run, so that it goes on after Ctrl-C or a crash.

A directory has ``runs.jsonl``, and copies of the base's files. The first line of ``runs.jsonl``
says what the search is about, each further line is a run. A search goes on by the same steps: what
is there is not measured again. A last line that a crash has cut off is dropped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from rocm_autopatch.measure.ab import RequestRefused
from rocm_autopatch.measure.ab.runner import ENDED

_FILE = "runs.jsonl"
VERSION = 1
# What may change when a search goes on.
_FREE = ("seed", "budget_s")


@dataclass(frozen=True)
class KeptRun:
    """A run of a set that is called *trial*, with caches of a *kind*, as a line of the file has it.

    ``status`` is how it ended, ``reason`` why not well, with the last ``lines`` of its output.
    ``value`` is its number, of a ``unit``; None if it has none. ``code`` is a digest of the code
    that torch generated, "" if it is not known; ``modes`` are those in which it compiled, None if
    they are not known. ``spent_s`` are the seconds of the budget after it. ``numbers`` and
    ``files`` are what later runs are compared with: by name the base's number, and the name of the
    copy of its file. ``order`` is its number among the kept runs, which the file does not have.
    """

    trial: str
    kind: str
    status: str
    reason: str
    lines: tuple[str, ...]
    seconds: float
    value: float | None
    unit: str
    code: str
    modes: frozenset[str] | None
    spent_s: float
    numbers: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    order: int = 0

    @classmethod
    def read(cls, row: Mapping[str, Any], order: int = 0) -> KeptRun:
        """The run in a line of the file."""
        modes = row.get("modes")
        return cls(
            row["trial"],
            row["kind"],
            row["status"],
            row["reason"],
            tuple(row["lines"]),
            row["seconds"],
            row["value"],
            row["unit"],
            str(row.get("code", "")),
            None if modes is None else frozenset(modes),
            row["spent_s"],
            row["same"]["numbers"],
            row["same"]["files"],
            order,
        )

    def line(self) -> str:
        """The line of the file."""
        same = {"numbers": dict(self.numbers), "files": dict(self.files)}
        row = {
            "trial": self.trial,
            "kind": self.kind,
            "status": self.status,
            "reason": self.reason,
            "lines": self.lines,
            "seconds": self.seconds,
            "value": self.value,
            "unit": self.unit,
            "code": self.code,
            "modes": None if self.modes is None else sorted(self.modes),
            "spent_s": self.spent_s,
            "same": same,
        }
        return json.dumps(row) + "\n"


class RunJournal:
    """The runs in *directory* of the search that *about* describes.

    ``about`` is what the search began with: its ``seed`` is kept. ``spent_s`` are the seconds of
    the budget that the kept runs took. Raises Refused if the directory
    has another search, and OSError.
    """

    def __init__(self, directory: Path, about: Mapping[str, object], again: bool) -> None:
        self.directory = directory
        self.about: Mapping[str, object] = {"version": VERSION, **about}
        self.kept: dict[tuple[str, str], deque[KeptRun]] = {}
        self.count = 0
        self.spent_s = 0.0
        file = directory / _FILE
        if again and file.exists():
            shutil.rmtree(directory)
        try:
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise RequestRefused(f"{directory} can't be made: {error.strerror}") from None
        rows = _kept_rows(file)
        if rows:
            self._check_search(rows[0])
            self.about = rows[0]
            for number, row in enumerate(rows[1:]):
                kept = KeptRun.read(row, number)
                self.kept.setdefault((kept.trial, kept.kind), deque()).append(kept)
                self.count += 1
                self.spent_s = max(self.spent_s, kept.spent_s)
        # The cut-off line goes, too.
        text = "".join(json.dumps(row) + "\n" for row in rows or [self.about])
        file.write_text(text, encoding="utf-8")
        self._stream = file.open("a", encoding="utf-8")

    @property
    def seed(self) -> int:
        """The seed with which the search began."""
        return int(str(self.about["seed"]))

    def _check_search(self, there: Mapping[str, object]) -> None:
        for key, value in self.about.items():
            if key not in _FREE and there.get(key) != value:
                raise RequestRefused(
                    f"{self.directory} has runs of another search: {key} is {there.get(key)!r} "
                    f"there and {value!r} here; give --again to drop them, or another --out"
                )

    def take(self, trial: str, kind: str) -> KeptRun | None:
        """The next kept run of a trial, None if there is none any more."""
        queue = self.kept.get((trial, kind))
        return queue.popleft() if queue else None

    def take_before(self, kept: KeptRun, kind: str) -> Iterator[KeptRun]:
        """The next kept runs of the same trial that were made before *kept*."""
        queue = self.kept.get((kept.trial, kind))
        while queue and queue[0].order < kept.order:
            yield queue.popleft()

    def peek(self, trial: str, kind: str) -> KeptRun | None:
        """As :meth:`take`, and it stays the next one."""
        queue = self.kept.get((trial, kind))
        return queue[0] if queue else None

    def failed(self, trials: Iterable[str], kinds: Iterable[str]) -> KeptRun | None:
        """A kept run of one of these trials, of one of these kinds, that did not end well."""
        every = (self.kept.get(key, ()) for key in product(trials, kinds))
        return next((row for rows in every for row in rows if row.status != ENDED), None)

    def add(self, run: KeptRun) -> None:
        """Keep a run, also if the machine goes down at once."""
        self._stream.write(run.line())
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def drop(self) -> None:
        """Remove the runs."""
        shutil.rmtree(self.directory)

    def close(self) -> None:
        """Close the file; the runs stay."""
        self._stream.close()


def _kept_rows(file: Path) -> list[dict[str, Any]]:
    rows = []
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict):
            break
        rows.append(row)
    return rows
