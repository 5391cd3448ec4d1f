"""The words of each group of installed files, found by processes of their own, and kept.

A group's index is a file below the root of the caches. It has no program in it, and is made anew
when a file of the group changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rocm_autopatch.probe.answers import FileMentions, FileWords
from rocm_autopatch.probe.installed import FileGroup
from rocm_autopatch.startup import cache_place, caches
from rocm_autopatch.support import files, progress

_SCAN = Path(__file__).with_name("scan.py")
# The directory in the root of the caches.
_DIRECTORY = "readers"
_FILES_AT_ONCE = 40
_MOST_PROCESSES = 8
# What an index keeps as it is.
_FIELDS = ("words", "strings", "said", "runs", "prefixes", "asking", "code")
_GRACE_S = 1.0


class ScanWorkers:
    """Processes that run scan.py, as many as there are processors, until a deadline.

    ``late`` is whether the deadline has come. ``failed`` has the files that can't be read, and why.
    """

    def __init__(self, limit_s: float) -> None:
        self._deadline = time.monotonic() + limit_s
        self._number = min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)
        self._names: list[str] = []
        self._asked = 0
        self.late = False
        self.failed: dict[str, str] = {}

    def ask(self, job: str, paths: Sequence[str], names: Sequence[str] = ()) -> dict[str, Any]:
        """The answers of scan.py for files, of the type for this job. Those that it can't read are
        missing.

        *names* are those that are looked for in code.
        """
        self._names, self._asked = list(names), len(paths)
        asked: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        size = max(1, min(_FILES_AT_ONCE, len(paths) // (self._number * 4)))
        parts = [list(paths[at : at + size]) for at in range(0, len(paths), size)]
        for part in parts:
            asked.put(part)
        found: dict[str, Any] = {}
        threads = [
            threading.Thread(target=self._serve_scanner, args=(job, asked, found), daemon=True)
            for _ in range(min(self._number, len(parts)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    def _serve_scanner(
        self, job: str, asked: queue.SimpleQueue[list[str]], found: dict[str, Any]
    ) -> None:
        process = None
        with contextlib.suppress(queue.Empty):
            while True:
                part = asked.get_nowait()
                told = "reading installed files"
                progress.tell_step(told, len(found) + len(self.failed), self._asked, "files")
                if time.monotonic() >= self._deadline:
                    self.late = True
                    continue
                process = process or self._start_scanner()
                answers = self._read_answers(process, job, part)
                if answers is None:
                    _end_process(process)
                    process = None
                    if self.late or len(part) == 1:
                        why = "it took too long" if self.late else "reading it ends the interpreter"
                        self.failed.update(dict.fromkeys(part, why))
                        continue
                    # One of them ended the process. The others are read alone.
                    for path in part:
                        asked.put([path])
                    continue
                for path, answer in zip(part, answers):
                    if isinstance(answer, str):
                        self.failed[path] = answer
                    else:
                        found[path] = answer
        if process:
            _end_process(process)

    def _read_answers(
        self, process: subprocess.Popen[bytes], job: str, part: list[str]
    ) -> list[Any] | None:
        assert process.stdin is not None
        assert process.stdout is not None
        left = max(self._deadline - time.monotonic(), 0.0)
        watch = threading.Timer(left, self._stop_scanner, [process])
        watch.daemon = True
        watch.start()
        try:
            asked = {"job": job, "files": part, "names": self._names}
            process.stdin.write(json.dumps(asked).encode() + b"\n")
            process.stdin.flush()
            answers: list[Any] = json.loads(process.stdout.readline())
            return answers
        except (OSError, ValueError):
            return None
        finally:
            watch.cancel()

    def _stop_scanner(self, process: subprocess.Popen[bytes]) -> None:
        self.late = True
        process.kill()

    def _start_scanner(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCAN)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )


def _end_process(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        with contextlib.suppress(OSError):
            if stream:
                stream.close()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class WordIndex:
    """The words of a group: which file has which.

    ``words`` are those of sources, and ``strings`` whole strings of libraries, by name, with the
    numbers of files. ``said`` stand in longer strings of libraries, ``runs`` in those without an
    end, ``prefixes`` are of names that are put together. ``trees`` has what sources do, by number.
    ``asking`` are the libraries that ask for variables, ``code`` those that have a name in their
    instructions. ``skipped`` are sources that could not be looked at. ``whole`` is whether all
    files could be read: only then is the index kept.
    """

    def __init__(self, group: FileGroup) -> None:
        self.group = group
        self.words: dict[str, list[int]] = {}
        self.strings: dict[str, list[int]] = {}
        self.said: dict[str, list[int]] = {}
        self.runs: dict[str, list[int]] = {}
        self.prefixes: dict[str, list[int]] = {}
        self.trees: dict[int, FileMentions] = {}
        self.asking: list[int] = []
        self.code: dict[str, list[int]] = {}
        self.changed = False
        self.whole = True
        self.skipped: set[int] = set()

    def fill(self, answers: Mapping[str, FileWords]) -> None:
        """Take what scan.py has found of the words of each file."""
        self.changed = True
        for number, file in enumerate(self.group.files):
            answer = answers.get(self.group.path(file))
            if answer is None:
                self.whole = False
                continue
            self.add(number, answer)

    def add(self, number: int, answer: FileWords) -> None:
        """Take the words of one file, by its number in the group."""
        library = answer["kind"] == "elf"
        if answer.get("asks"):
            self.asking.append(number)
        for field, words in (
            (self.strings if library else self.words, answer["words"]),
            (self.said, answer.get("said", ())),
            (self.runs, answer.get("runs", ())),
            (self.prefixes, answer.get("prefixes", ())),
        ):
            for word in words:
                field.setdefault(word, []).append(number)

    def data(self) -> dict[str, object]:
        return {
            "key": _group_key(self.group),
            **{name: getattr(self, name) for name in _FIELDS},
            "trees": {str(number): tree for number, tree in self.trees.items()},
        }

    def load(self, data: Mapping[str, Any]) -> bool:
        """Take what was kept. Returns whether it is of these files."""
        if data.get("key") != _group_key(self.group):
            return False
        kept = {name: data[name] for name in _FIELDS}
        self.trees = {int(number): tree for number, tree in data["trees"].items()}
        vars(self).update(kept)
        return True


class IndexStore:
    """Where indexes are kept. ``why`` is the reason where they are not, "" where they are."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.why = ""
        self.directory = ""
        asked = environment.get(caches.VARIABLE, "").strip()
        try:
            if asked == "off":
                raise caches.Unusable(f"{caches.VARIABLE}=off")
            self.directory = f"{caches.where(asked if asked[:1] == '/' else 'on')}/{_DIRECTORY}"
            cache_place.make_root(self.directory, home=asked[:1] != "/")
            if not os.access(self.directory, os.W_OK):
                raise caches.Unusable(f"{self.directory} can't be written")
        except caches.Unusable as error:
            self.why = str(error)
        except OSError as error:
            self.why = f"{error.filename or self.directory}: {error.strerror}"

    def load(self, index: WordIndex) -> bool:
        """Read what is kept of a group. Returns whether there was something of its files."""
        if self.why:
            return False
        try:
            return index.load(json.loads(self._index_path(index.group).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False  # It is damaged, or not there.

    def save(self, index: WordIndex) -> None:
        """Keep the index of a group, if there is something new and nothing was left out."""
        if self.why or not (index.changed and index.whole):
            return
        try:
            files.write(self._index_path(index.group), json.dumps(index.data()).encode(), 0o600)
            index.changed = False
        except OSError as error:
            self.why = f"{self.directory}: {error.strerror}"

    def _index_path(self, group: FileGroup) -> Path:
        told = f"{group.name}\0{group.root}".encode("utf-8", "surrogateescape")
        return Path(self.directory, hashlib.sha256(told).hexdigest()[:24] + ".json")


def _group_key(group: FileGroup) -> str:
    """Of the files, and of who reads them: what Python can parse differs."""
    return f"{group.key} {sys.version_info[:2]} {_scanner_digest()}"


def _scanner_digest() -> str:
    if not _digest:
        _digest.append(hashlib.sha256(_SCAN.read_bytes()).hexdigest()[:16])
    return _digest[0]


_digest: list[str] = []


def make_indexes(
    groups: Iterable[FileGroup], kept: IndexStore, workers: ScanWorkers
) -> list[WordIndex]:
    """The index of each group: what is kept, and what has to be read now."""
    indexes = [WordIndex(group) for group in groups]
    new = [index for index in indexes if not kept.load(index)]
    paths = [index.group.path(file) for index in new for file in index.group.files]
    # The longest first, so that no process ends long after the others.
    paths.sort(key=lambda path: (".so" not in path, path))
    answers: dict[str, FileWords] = workers.ask("words", list(dict.fromkeys(paths)))
    for index in new:
        index.fill(answers)
        kept.save(index)
    return indexes
