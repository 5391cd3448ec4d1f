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
from itertools import product
from pathlib import Path
from typing import Any

from rocm_autopatch.ab import Refused
from rocm_autopatch.ab.runner import ENDED

_FILE = "runs.jsonl"
VERSION = 1
# The number of a kept run, in the order in which they were made; it is not in the file.
_PLACE = "place"
# What may change when a search goes on.
_FREE = ("seed", "budget_s")


class Journal:
    """The runs in *directory* of the search that *about* describes.

    ``about`` is what the search began with: its ``seed`` is kept. ``spent_s`` are the seconds of
    the budget that the kept runs took. Raises Refused if the directory
    has another search, and OSError.
    """

    def __init__(self, directory: Path, about: Mapping[str, Any], again: bool) -> None:
        self.directory = directory
        self.about: dict[str, Any] = {"version": VERSION, **about}
        self.kept: dict[tuple[str, str], deque[dict[str, Any]]] = {}
        self.count = 0
        self.spent_s = 0.0
        file = directory / _FILE
        if again and file.exists():
            shutil.rmtree(directory)
        try:
            directory.mkdir(exist_ok=True)
        except OSError as error:
            raise Refused(f"{directory} can't be made: {error.strerror}") from None
        rows = _rows(file)
        if rows:
            self._check(rows[0])
            self.about = rows[0]
            for row in rows[1:]:
                self.kept.setdefault((row["trial"], row["kind"]), deque()).append(row)
                self.count += 1
                self.spent_s = max(self.spent_s, row["spent_s"])
        # The cut-off line goes, too.
        text = "".join(json.dumps(row) + "\n" for row in rows or [self.about])
        file.write_text(text, encoding="utf-8")
        for number, row in enumerate(rows[1:]):
            row[_PLACE] = number
        self._stream = file.open("a", encoding="utf-8")

    def _check(self, there: Mapping[str, Any]) -> None:
        for key, value in self.about.items():
            if key not in _FREE and there.get(key) != value:
                raise Refused(
                    f"{self.directory} has runs of another search: {key} is {there.get(key)!r} "
                    f"there and {value!r} here; give --again to drop them, or another --out"
                )

    def take(self, trial: str, kind: str) -> dict[str, Any] | None:
        """The next kept run of a trial, None if there is none any more."""
        queue = self.kept.get((trial, kind))
        return queue.popleft() if queue else None

    def take_before(self, kept: Mapping[str, Any], kind: str) -> Iterator[dict[str, Any]]:
        """The next kept runs of the same trial that were made before *kept*, a kept run."""
        queue = self.kept.get((kept["trial"], kind))
        while queue and queue[0][_PLACE] < kept[_PLACE]:
            yield queue.popleft()

    def peek(self, trial: str, kind: str) -> dict[str, Any] | None:
        """As :meth:`take`, and it stays the next one."""
        queue = self.kept.get((trial, kind))
        return queue[0] if queue else None

    def failed(self, trials: Iterable[str], kinds: Iterable[str]) -> dict[str, Any] | None:
        """A kept run of one of these trials, of one of these kinds, that did not end well."""
        every = (self.kept.get(key, ()) for key in product(trials, kinds))
        return next((row for rows in every for row in rows if row["status"] != ENDED), None)

    def add(self, row: Mapping[str, Any]) -> None:
        """Keep a run, also if the machine goes down at once."""
        self._stream.write(json.dumps(row) + "\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def drop(self) -> None:
        """Remove the runs."""
        shutil.rmtree(self.directory)

    def close(self) -> None:
        """Close the file; the runs stay."""
        self._stream.close()


def _rows(file: Path) -> list[dict[str, Any]]:
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
