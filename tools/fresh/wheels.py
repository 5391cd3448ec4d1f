"""The newest wheels of an index or of a directory, and the parts of them that are looked at.

Of a wheel on an index, the list at its end and the wanted members are read by HTTP ranges. Python
files are kept unpacked. A library is unpacked, its words are noted, and it is removed again.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import ssl
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from rocm_autopatch.probe import scan

INDEX = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
# What is asked for at once, and how far ahead what follows is asked for too.
_CHUNK = 4 << 20
_TIMEOUT_S = 60
_SOURCES = (".py", ".pyx", ".pth", ".sh", ".txt", "METADATA", "RECORD")
# A library that unpacks to more would take the disk.
_LARGEST_LIBRARY = 2 << 30
_LIBRARY = re.compile(r"\.so(\.[0-9.]+)?$")
_WORDS = "words-of-libraries.json"


class NotThere(Exception):
    """An index, a project or a wheel that can't be read, in a sentence."""


@dataclass(frozen=True)
class Candidate:
    """A wheel that is offered, and its address or path."""

    project: str
    version: Version
    file: str
    address: str


@dataclass(frozen=True)
class Unpacked:
    """A wheel's files below ``root``, and the words of its libraries by their paths there."""

    project: str
    version: str
    file: str
    root: Path
    libraries: dict[str, Any]

    def read(self, path: str) -> str:
        """The text of a file, "" if the wheel has none there."""
        file = self.root / path
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def sources(self, suffix: str = ".py") -> Iterator[str]:
        """The paths of its sources."""
        for file in sorted(self.root.rglob(f"*{suffix}")):
            yield file.relative_to(self.root).as_posix()


class Wheels:
    """Wheels of *index*, or of *directory* if one is given; what is read is kept in *cache*."""

    def __init__(self, index: str, directory: Path | None, cache: Path) -> None:
        self._index = index.rstrip("/")
        self._directory = directory
        self._cache = cache
        self._offered: dict[str, list[Candidate]] = {}

    def newest(self, project: str) -> Candidate | None:
        """A wheel of the newest release: one for Linux on x86, else any. None if the directory has
        none. Raises NotThere if the index has none."""
        offered = self._candidates(project)
        final = [one for one in offered if not one.version.is_prerelease] or offered
        if not final:
            if self._directory:
                return None
            raise NotThere(f"{self._index} has no wheel of {project}")
        newest = max(one.version for one in final)
        best = [one for one in final if one.version == newest]
        return min(
            best, key=lambda one: ("x86_64" not in one.file, "any" not in one.file, one.file)
        )

    def unpack(self, candidate: Candidate) -> Unpacked:
        """The wheel's sources, and the words of its libraries. Raises NotThere."""
        root = self._cache / candidate.file[: -len(".whl")]
        if not (root / _WORDS).is_file():
            self._cache.mkdir(parents=True, exist_ok=True)
            for old in self._cache.glob(f"{candidate.file.partition('-')[0]}-*"):
                shutil.rmtree(old)
            with tempfile.TemporaryDirectory(dir=self._cache) as scratch:
                try:
                    with self._open(candidate) as stream, zipfile.ZipFile(stream) as wheel:
                        _unpack(wheel, Path(scratch, "wheel"))
                except (OSError, zipfile.BadZipFile) as error:
                    raise NotThere(f"{candidate.file}: {error}") from None
                Path(scratch, "wheel").rename(root)
        words = json.loads((root / _WORDS).read_text(encoding="utf-8"))
        return Unpacked(candidate.project, str(candidate.version), candidate.file, root, words)

    def _candidates(self, project: str) -> list[Candidate]:
        if project not in self._offered:
            found = self._in_directory() if self._directory else self._on_index(project)
            rows = []
            for file, address in found:
                try:
                    name, version, _, _ = parse_wheel_filename(file)
                except (InvalidWheelFilename, ValueError):
                    continue
                if name == canonicalize_name(project):
                    rows.append(Candidate(project, version, file, address))
            self._offered[project] = rows
        return self._offered[project]

    def _in_directory(self) -> Iterator[tuple[str, str]]:
        assert self._directory
        for file in sorted(self._directory.glob("*.whl")):
            yield file.name, str(file)

    def _on_index(self, project: str) -> Iterator[tuple[str, str]]:
        address = f"{self._index}/{canonicalize_name(project)}/"
        try:
            with _ask(address, {"Accept": f"{_JSON}, text/html;q=0.5"}) as answer:
                text = answer.read().decode("utf-8", "replace")
                kind, address = answer.headers.get_content_type(), answer.geturl()
        except (OSError, ValueError) as error:
            raise NotThere(f"{address}: {error}") from None
        if kind.endswith("+json"):
            for row in json.loads(text)["files"]:
                if not row.get("yanked"):
                    yield row["filename"], urljoin(address, row["url"])
            return
        links = _Links()
        links.feed(text)
        for link in links.found:
            full = urljoin(address, link)
            yield unquote(urlsplit(full).path.rpartition("/")[2]), full.partition("#")[0]

    def _open(self, candidate: Candidate) -> Any:
        if self._directory or urlsplit(candidate.address).scheme == "file":
            path = unquote(urlsplit(candidate.address).path)
            return open(candidate.address if self._directory else path, "rb")
        return _Remote(candidate.address, self._cache)


class _Links(HTMLParser):
    """The addresses of a page of an index, but for yanked files."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href") and "data-yanked" not in given:
            self.found.append(given["href"] or "")


def _ask(address: str, headers: dict[str, str]) -> Any:
    request = urllib.request.Request(address, headers=headers)
    return urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=ssl.create_default_context())


class _Remote(io.RawIOBase):
    """A file on a server that is read by ranges. Where the server sends all of it, all is kept in a
    temporary file."""

    def __init__(self, address: str, cache: Path) -> None:
        self._address = address
        self._at = 0
        self._chunk = b""
        self._chunk_at = 0
        self._whole: Any = None
        with _ask(address, {"Range": "bytes=0-0"}) as answer:
            told = answer.headers.get("Content-Range", "")
            if answer.status == 206 and told.rpartition("/")[2].isdigit():
                self._size = int(told.rpartition("/")[2])
            else:
                self._whole = tempfile.TemporaryFile(dir=cache)  # noqa: SIM115 (close() closes it)
                shutil.copyfileobj(answer, self._whole)
                self._size = self._whole.tell()

    def close(self) -> None:
        if self._whole:
            self._whole.close()
        super().close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            size = self._size - self._at
        if self._whole:
            self._whole.seek(self._at)
            found = bytes(self._whole.read(size))
            self._at += len(found)
            return found
        parts = []
        while size > 0 and self._at < self._size:
            start = self._at - self._chunk_at
            if not 0 <= start < len(self._chunk):
                self._fetch()
                start = 0
            part = self._chunk[start : start + size]
            parts.append(part)
            self._at += len(part)
            size -= len(part)
        return b"".join(parts)

    def _fetch(self) -> None:
        last = min(self._at + _CHUNK, self._size) - 1
        with _ask(self._address, {"Range": f"bytes={self._at}-{last}"}) as answer:
            self._chunk = answer.read()
        self._chunk_at = self._at
        if len(self._chunk) != last + 1 - self._at:
            raise OSError(f"the server sent {len(self._chunk)} bytes of a range, and not all")


def _unpack(wheel: zipfile.ZipFile, root: Path) -> None:
    """Unpack the sources, and note the words of libraries, in the order of the archive."""
    root.mkdir()
    words: dict[str, Any] = {}
    for member in sorted(wheel.infolist(), key=lambda one: one.header_offset):
        name = member.filename
        inside = not name.startswith("/") and ".." not in Path(name).parts
        if not inside or member.is_dir():
            continue
        if name.endswith(_SOURCES):
            wheel.extract(member, root)
        elif _LIBRARY.search(name) and member.file_size <= _LARGEST_LIBRARY:
            wheel.extract(member, root)
            words[name] = scan.name_words(str(root / name))
            (root / name).unlink()
    (root / _WORDS).write_text(json.dumps(words), encoding="utf-8")
