"""A place as an archive: packed the same each time, and unpacked only if all of it is as listed.

An archive is a ``.tar.gz``. Its first member, ``manifest.json``, says for which place it is, from
which root, and has the size and the SHA-256 of each file. Nothing in it is a link, and nothing is
read as a pickle. But most of it is code, for which nobody vouches but its owner: so only an archive
that nobody else can write is unpacked (``trust``), and its checksum can be asked for.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import pwd
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Callable

from rocm_autopatch import trust
from rocm_autopatch.caches import (
    FACTS,
    OWN_FILES,
    UNFINISHED,
    CacheRefused,
    contents,
    places,
    users,
)
from rocm_autopatch.startup import cache_place, caches, layer
from rocm_autopatch.support.progress import tell_step

FORMAT = 1
MANIFEST = "manifest.json"
# How it is told how far it is: bytes done, and all bytes.
Tell = Callable[[int, int], None]
TellOne = Callable[[int], None]
_LONGEST_MANIFEST = 1 << 26
# The directories of a place's parts.
_DIRECTORIES = {part.partition("/")[0] for _, part, _, _ in caches.PARTS} | {caches.KEYS}
# What tarfile, gzip and json raise at what somebody has made up: headers that follow one another
# without end and JSON that is too deep end in RecursionError, a size of 1e999 in OverflowError.
_UNREADABLE = (
    *(tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile),
    *(ValueError, RecursionError, OverflowError),
)
_PIECE = 1 << 20


@dataclass
class PackedArchive:
    """What :func:`pack` has written. Sizes are in bytes."""

    sha256: str = ""
    size: int = 0
    files: int = 0
    unpacked: int = 0
    notes: list[str] = field(default_factory=list)  # what was left out, and why


@dataclass
class SeededPlace:
    """What :func:`seed` has unpacked."""

    place: Path
    owner: str
    files: int
    unpacked: int  # bytes
    other: dict[str, tuple[str, str]]  # fields that differ: the archive's value, and that of here
    rewritten: int  # group files of Triton
    filled_for: str  # the GPU that was not there when it was filled, "" if one was


@dataclass(frozen=True)
class ListedFile:
    """A file as a manifest lists it; its size is in bytes."""

    size: int
    sha256: str


@dataclass(frozen=True)
class _ArchiveManifest:
    fields: dict[str, str]
    files: dict[str, ListedFile]
    gpu: dict[str, object]  # what ``fill`` compiled for; {} if a GPU was there


# --- pack


def pack_place(place: places.CachePlace, file: Path, tell: Tell) -> PackedArchive:
    """Write a place to *file*, all of it or nothing. Raises Refused and OSError.

    The same files give the same bytes, with the same zlib. Nothing may write to the place
    meanwhile; users.of() says who might.
    """
    done = PackedArchive()
    with packed_files(place, file, done) as (scratch, members, listed):
        manifest = {
            "format": FORMAT,
            # Earlier releases put paths right by these two.
            "root": str(place.path.parent),
            "name": place.path.name,
            "place": place.fields,
            **({"gpu": gpu} if (gpu := places.filled_for(place.path)) else {}),
            "files": {name: vars(one) for name, one in listed.items()},
        }
        made = scratch / "archive"
        with open(made, "wb") as stream:
            hashing = HashingWriter(stream)
            _write_archive(
                hashing, manifest, members, listed, lambda size: tell(size, done.unpacked)
            )
        done.sha256, done.size = hashing.sum.hexdigest(), hashing.size
        made.chmod(0o644)
        os.replace(made, file)
    return done


@contextlib.contextmanager
def packed_files(
    place: places.CachePlace, file: Path, done: PackedArchive
) -> Iterator[tuple[Path, dict[str, Path], dict[str, ListedFile]]]:
    """A directory beside *file* to write in, the files that are packed, and their sizes and sums.

    *done* gets what is known before they are written. Raises CacheRefused and OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(file.stat().st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(file))
    tell_step("looking at what there is to pack")
    # Beside the file, because it is renamed at the end.
    hidden = f".{file.name}."
    with (
        _naming_path(file, hidden),
        tempfile.TemporaryDirectory("", hidden, file.parent) as scratch,
    ):
        members = dict(sorted(_archive_members(place.path, Path(scratch), done.notes)))
        if not members:
            raise CacheRefused(
                f"{place.path} has nothing to pack yet; cache warm -- COMMAND fills it"
            )
        listed = {name: _list_file(path) for name, path in members.items()}
        done.files, done.unpacked = len(listed), sum(one.size for one in listed.values())
        yield Path(scratch), members, listed


@contextlib.contextmanager
def _naming_path(path: Path, hidden: str) -> Iterator[None]:
    """Have an OSError name *path*, where it names none, or one with the part *hidden*.

    A write to a full disk names none, and what is not finished has a name that says nothing.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename and hidden not in str(error.filename)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _archive_members(place: Path, scratch: Path, notes: list[str]) -> Iterator[tuple[str, Path]]:
    """Each file that is packed, by name, and where to read it: databases are copied before."""
    found = dict(contents.removable_files(place))
    databases = {str(path) for path in found.values() if contents.is_database(path)}
    for number, (name, path) in enumerate(sorted(found.items())):
        if contents.database_of(path) in databases:
            continue
        if str(path) in databases:
            copy = scratch / str(number)
            try:
                contents.copy_database(path, copy)
            except sqlite3.Error as error:
                notes.append(f"{name}, a database that can't be read: {error}")
                continue
            path = copy
        yield name, path


def _list_file(path: Path) -> ListedFile:
    with open(path, "rb") as stream:
        hashing = HashingWriter(None)
        shutil.copyfileobj(stream, hashing, _PIECE)
    return ListedFile(hashing.size, hashing.sum.hexdigest())


def _write_archive(
    stream: Any,
    manifest: dict[str, Any],
    members: Mapping[str, Path],
    listed: Mapping[str, ListedFile],
    tell: TellOne,
) -> None:
    # No name and no time in gzip's header.
    squeezed = gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0)
    with squeezed, tarfile.open(fileobj=squeezed, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        text = json.dumps(manifest, indent=1, sort_keys=True).encode()
        tar.addfile(member_info(MANIFEST, len(text)), io.BytesIO(text))
        add_members(tar, "", members, listed, tell)


def add_members(
    tar: tarfile.TarFile,
    above: str,
    members: Mapping[str, Path],
    listed: Mapping[str, ListedFile],
    tell: TellOne,
) -> None:
    """Add files to a .tar, each below *above*. *tell* gets how many bytes are done.

    Raises CacheRefused if one is not as it is listed, and OSError.
    """
    done = 0
    for name, path in members.items():
        with open(path, "rb") as source:
            _add_member(tar, above + name, source, listed[name])
        done += listed[name].size
        tell(done)


def _add_member(tar: tarfile.TarFile, name: str, source: IO[bytes], listed: ListedFile) -> None:
    member = member_info(name, listed.size)
    if os.fstat(source.fileno()).st_mode & stat.S_IXUSR:
        member.mode = 0o755
    reading = _HashingReader(source)
    try:
        tar.addfile(member, reading)
    except OSError as error:
        # tarfile's own, for a file that is shorter now. The system's have a number.
        if error.errno is not None:
            raise
    if reading.sum.hexdigest() != listed.sha256 or source.read(1):
        raise CacheRefused(f"{name} changed while it was packed: end the processes that use it")


def member_info(name: str, size: int) -> tarfile.TarInfo:
    """A file of a .tar that anybody may read, and root's, of the year 1970."""
    member = tarfile.TarInfo(name)  # its time, user and group are 0
    member.size = size
    member.mode = 0o644
    return member


class HashingWriter:
    """A file that is written, and hashed on the way. Without a stream it is only hashed."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile | None) -> None:
        self.stream = stream
        self.sum = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.sum.update(data)
        self.size += len(data)
        return self.stream.write(data) if self.stream is not None else len(data)

    def flush(self) -> None:
        if self.stream is not None:
            self.stream.flush()


class _HashingReader(io.RawIOBase):
    """A file that is read, and hashed on the way."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.sum = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.sum.update(data)
        return data


# --- seed


def seed_place(
    file: Path,
    here: places.StartPlace,
    tell: Tell,
    *,
    checksum: str = "",
    other_place: bool = False,
    replace: bool = False,
    into: Path | None = None,
) -> SeededPlace:
    """Unpack an archive as a place beneath the root, or beneath *into*. Raises Refused and OSError.

    *checksum* is the SHA-256 that the file must have, in hex digits, "" for any. *other_place*: as
    this place, even if it was made for another one. *replace*: instead of what is in the place. The
    place is there as a whole or not at all.
    """
    try:
        why = trust.look(str(file), 0)[1]
    except OSError as error:
        raise CacheRefused(trust.reason(str(file), error)) from None
    if why:
        raise CacheRefused(f"{file}: {why}")
    with open(file, "rb") as stream:
        owner = _user_name(os.fstat(stream.fileno()).st_uid)
        if checksum:
            _verify_checksum(stream, file, checksum)
        # gzip, and not tarfile's own "r|gz": that one does not check the sum at the end.
        text = gzip.GzipFile(fileobj=stream)
        with _archive_errors(file), text, tarfile.open(fileobj=text, mode="r|") as tar:
            manifest = _read_manifest(tar)
            differing = places.field_differences(manifest.fields, here.fields)
            fields = (
                here.fields if other_place else _checked_fields(manifest.fields, here.fields, file)
            )
            root = here.root if into is None else into
            place = root / caches.name(fields)
            # Whatever this process's umask lets others do, nobody else may write here.
            with _with_umask(0o022), _naming_path(root, UNFINISHED):
                places.make_root(root)
                _refuse_replacement(place, replace)
                new = Path(tempfile.mkdtemp(dir=root, prefix=UNFINISHED))
                try:
                    _unpack_members(tar, manifest.files, new, tell)
                    _read_to_the_end(tar, text)
                    # Starts go by their own root, also where they link what is in the layer.
                    now = f"{here.root}/{place.name}"
                    rewritten = _settle_times_and_paths(new, manifest, now)
                    _finish_place(new, fields, manifest.gpu, into is None)
                    _put_in_place(new, place)
                    if into is None:
                        _forget_links(place)
                finally:
                    shutil.rmtree(new, ignore_errors=True)
    size = sum(one.size for one in manifest.files.values())
    gpu = str(manifest.gpu.get("name", ""))
    return SeededPlace(place, owner, len(manifest.files), size, differing, rewritten, gpu)


def _verify_checksum(stream: IO[bytes], file: Path, checksum: str) -> None:
    hashing = HashingWriter(None)
    shutil.copyfileobj(stream, hashing, _PIECE)
    stream.seek(0)
    if hashing.sum.hexdigest() != checksum:
        raise CacheRefused(f"{file} has another checksum: sha256:{hashing.sum.hexdigest()}")


@contextlib.contextmanager
def _archive_errors(file: Path) -> Iterator[None]:
    """Say of which file it is that something is wrong."""
    try:
        yield
    except _WrongArchive as error:
        raise CacheRefused(f"{file}: {error}") from None
    except _UNREADABLE as error:
        raise CacheRefused(f"{file} is damaged or no archive of ours: {error}") from None


class _WrongArchive(Exception):
    """The archive is not what pack() writes; the text says why."""


@contextlib.contextmanager
def _with_umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _read_manifest(tar: tarfile.TarFile) -> _ArchiveManifest:
    member = _next_member(tar)
    if member is None or member.name != MANIFEST or not _is_plain(member):
        raise _WrongArchive(f"its first member is not {MANIFEST}, so cache pack did not make it")
    if member.size > _LONGEST_MANIFEST:
        raise _WrongArchive(f"its {MANIFEST} has {member.size:,} bytes, which is too long")
    try:
        said = json.loads(_member_data(tar, member))
        if said["format"] != FORMAT:
            raise _WrongArchive(f"it has format {said['format']}, and this release reads {FORMAT}")
        files = {
            name: ListedFile(int(one["size"]), str(one["sha256"]))
            for name, one in said["files"].items()
        }
        fields = {str(name): str(value) for name, value in said["place"].items()}
        gpu = dict(said.get("gpu", {}))  # Archives of earlier releases have none.
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError, OverflowError):
        raise _WrongArchive(f"its {MANIFEST} is not one that cache pack writes") from None
    for one in files:
        _check_name(one)
    if not all(text.isprintable() for row in fields.items() for text in row):
        raise _WrongArchive(f"its {MANIFEST} has a field that is no line of text")
    return _ArchiveManifest(fields, files, gpu)


def _check_name(name: str) -> None:
    parts = name.split("/")
    if name.startswith("/"):
        raise _WrongArchive(f"the name {name!r} is absolute")
    if ".." in parts:
        raise _WrongArchive(f"the name {name!r} has ..")
    if len(parts) > contents.DEEPEST:
        many = f"{len(parts)} parts, more than {contents.DEEPEST}"
        raise _WrongArchive(f"the name {name[:100]!r}... has {many}")
    # Our own files in a place say what it is, and are not the archive's to write; where its parts
    # are, programs find directories.
    ours = name in (caches.MARK, caches.LINKED, *OWN_FILES) or name in _DIRECTORIES
    if "" in parts or "." in parts or "\0" in name or ours:
        raise _WrongArchive(f"the name {name!r} can't be a file's in a place")


def _next_member(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    # Not "for member in tar": that begins with the first one again.
    try:
        return tar.next()
    except ValueError as error:  # a number of a header that is none
        raise tarfile.ReadError(str(error)) from None


def _is_plain(member: tarfile.TarInfo) -> bool:
    return member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()


def _member_data(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    assert stream is not None  # _is_plain
    return stream.read()


def _checked_fields(
    theirs: Mapping[str, str], ours: Mapping[str, str], file: Path
) -> dict[str, str]:
    """The fields of the place that an archive is for, where each field is known on one side.

    A build has no GPU: there the archive's fields say for which it is. Raises Refused if the place
    is another one.
    """
    both = {
        name: pair
        for name, pair in places.field_differences(theirs, ours).items()
        if not set(pair) & set(places.UNKNOWN)
    }
    if both:
        told = places.differences_text(both)
        raise CacheRefused(
            f"{file} was made for another place: {told}; --for-other-place takes it nevertheless"
        )
    return {
        name: theirs[name] if theirs.get(name, "") not in places.UNKNOWN else value
        for name, value in ours.items()
    }


def _refuse_replacement(place: Path, replace: bool) -> None:
    """Raise CacheRefused if what is in a place must stay."""
    if not os.path.lexists(place):
        return
    places.judge_directory(place)
    if places.is_empty(place):
        return
    if not replace:
        raise CacheRefused(f"{place} is there and not empty; --replace removes what it has")
    processes = users.users_of(place)
    if processes:
        raise CacheRefused(
            f"{place} is used by {users.processes_text(processes)}: end it before it is replaced"
        )


def _unpack_members(
    tar: tarfile.TarFile, listed: Mapping[str, ListedFile], new: Path, tell: Tell
) -> None:
    """Write all members. Only directories and regular files are made, so no link leads outside."""
    left = dict(listed)
    done, size = 0, sum(one.size for one in listed.values())
    while True:
        member = _next_member(tar)
        if member is None:
            break
        _check_name(member.name)
        if not _is_plain(member):
            raise _WrongArchive(f"{member.name!r} is not a regular file")
        one = left.pop(member.name, None)
        if one is None:
            again = "is there twice" if member.name in listed else f"is not in its {MANIFEST}"
            raise _WrongArchive(f"{member.name!r} {again}")
        if member.size != one.size:
            raise _WrongArchive(f"{member.name!r} has {member.size:,} bytes, and not {one.size:,}")
        path = new / member.name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as stream:
                hashing = HashingWriter(stream)
                source = tar.extractfile(member)
                assert source is not None  # _is_plain
                shutil.copyfileobj(source, hashing, _PIECE)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise _WrongArchive(f"{member.name!r} is both a file and a directory") from None
        if hashing.sum.hexdigest() != one.sha256:
            raise _WrongArchive(f"{member.name!r} has another checksum than in its {MANIFEST}")
        if member.mode & stat.S_IXUSR:
            path.chmod(0o755)
        done += one.size
        tell(done, size)
    if left:
        raise _WrongArchive(
            f"of what its {MANIFEST} lists, {len(left)} are missing: {next(iter(left))!r}"
        )


def _read_to_the_end(tar: tarfile.TarFile, text: gzip.GzipFile) -> None:
    """Read what follows the last member: nothing but zeros, and the sum at the end."""
    # tarfile has read more than it has looked at.
    for stream in (tar.fileobj, text):
        assert stream is not None
        while True:
            data = stream.read(_PIECE)
            if data.strip(b"\0"):
                raise _WrongArchive("something follows its last member")
            if not data:
                break


def _settle_times_and_paths(new: Path, manifest: _ArchiveManifest, now: str) -> int:
    """Give all files one fresh time, and put their paths right. Returns how many had paths.

    comgr removes what is old, and so do cleaners of caches: the time 0 of the archive would be its
    end. One time for all, because make and ninja build again what is older than its source.
    """
    moment = time.time_ns()
    rewritten = 0
    for name in manifest.files:
        if layer.is_group(name):
            rewritten += layer.rewrite_group(str(new / name), str(Path(now, name).parent))
        os.utime(new / name, ns=(moment, moment))
    return rewritten


def _finish_place(
    new: Path, fields: Mapping[str, str], gpu: Mapping[str, object], private: bool
) -> None:
    """What a start gives a place: the file that says which one it is, and directories. With it,
    the facts of the GPU that it was filled for."""
    if gpu:
        (new / FACTS).write_text(json.dumps(gpu), encoding="utf-8")
    text = "".join(f"{name} {value}\n" for name, value in fields.items())
    (new / caches.MARK).write_text(text, encoding="utf-8")
    cache_place.make_parts(str(new))
    # An image's layer is for all its users.
    new.chmod(0o700 if private else 0o755)


def _forget_links(place: Path) -> None:
    """Remove this container's own directories with links to what the place had, if none uses them.

    The next start makes them again.
    """
    own = Path(caches.own(str(place)))
    if own.is_dir() and not users.users_of(own):
        shutil.rmtree(own, ignore_errors=True)


def _put_in_place(new: Path, place: Path) -> None:
    """Have *new* be the place. What was there is removed, or back if this fails."""
    aside = place.with_name(f"{new.name}-old")
    replaced = os.path.lexists(place)
    if replaced:
        os.rename(place, aside)
    try:
        os.rename(new, place)
    except BaseException:
        if replaced and not os.path.lexists(place):
            os.rename(aside, place)
        raise
    if replaced:
        shutil.rmtree(aside, ignore_errors=True)
