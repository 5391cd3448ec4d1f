"""rocm-autopatch cache: archives are the same each time, and only what is listed is unpacked."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable

import pytest

from rocm_autopatch.caches import RUNS, CacheRefused, archive, gc, places, users, warm
from rocm_autopatch.cli import main
from rocm_autopatch.compile_report.gather import gather_report
from rocm_autopatch.startup import caches
from tests.conftest import FILL, Interpreter
from tests.messages import Golden
from tests.running import last_said

FIELDS = {
    "torch": "2.13.0+rocm7.0",
    "triton": "3.5.1",
    "hip": "7.0.51831",
    "gpu": "gfx942-304",
    "python": "cpython-311",
    "policy": "safe",
    "digest": "c587eb43a8428569",
}
FILES = {
    "inductor/ab/cab.py": b"print(1)\n",
    "inductor/fxgraph/a/b": os.urandom(3000),
    "triton/KEY/k.hsaco": os.urandom(100),
    "miopen/a.udb.txt": b"",
    "vllm/\u00e4 \udcff/model": b"x" * 100_000,
}
ROOT_NEEDED = pytest.mark.skipif(os.getuid() != 0, reason="it needs root")


def a_here(root: Path, **fields: str) -> places.StartPlace:
    given = {**FIELDS, **fields}
    return places.StartPlace(root, root / caches.name(given), given, "", "", "")


def a_place(here: places.StartPlace, files: Mapping[str, bytes]) -> places.CachePlace:
    here.root.mkdir(exist_ok=True)
    here.place.mkdir(mode=0o700)
    text = "".join(f"{name} {value}\n" for name, value in here.fields.items())
    (here.place / caches.MARK).write_text(text)
    for name, data in files.items():
        (here.place / name).parent.mkdir(parents=True, exist_ok=True)
        (here.place / name).write_bytes(data)
    return places.look_at_place(here.place)


def contents_of(place: Path) -> dict[str, bytes]:
    """All files of a place, also those that links lead to."""
    paths = (path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): path.read_bytes() for path in paths}


def quiet(done: int, size: int) -> None:
    assert 0 <= done <= size


def packed(
    here: places.StartPlace, file: Path, files: Mapping[str, bytes] = FILES
) -> archive.PackedArchive:
    return archive.pack_place(a_place(here, files), file, quiet)


def listed(file: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(file) as tar:
        return {member.name: member for member in tar.getmembers()}


class TestPack:
    def test_round_trip(self, tmp_path: Path) -> None:
        one, other = a_here(tmp_path / "one"), a_here(tmp_path / "other")
        file = tmp_path / "a.tar.gz"
        a_place(one, FILES)
        (one.place / "inductor/ab/cab.py").chmod(0o700)
        (one.place / RUNS).write_text("{}\n")
        done = archive.pack_place(places.look_at_place(one.place), file, quiet)
        assert done.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
        assert (done.size, done.files) == (file.stat().st_size, len(FILES))
        assert (done.unpacked, done.notes) == (sum(map(len, FILES.values())), [])
        assert file.stat().st_mode & 0o777 == 0o644
        before = os.umask(0)
        try:
            seeded = archive.seed_place(file, other, quiet)
        finally:
            os.umask(before)
        assert (seeded.place, seeded.other, seeded.rewritten) == (other.place, {}, 0)
        found = contents_of(other.place)
        mark = found.pop(caches.MARK)
        assert mark == (one.place / caches.MARK).read_bytes()
        assert found == FILES
        # As a start makes it: its user alone, and a directory for what makes none itself.
        assert other.place.stat().st_mode & 0o777 == 0o700
        assert (other.place / "tunableop").is_dir()
        modes = {path.stat().st_mode & 0o777 for path in other.place.rglob("*") if path.is_dir()}
        assert modes == {0o755}
        of_files = {name: (other.place / name).stat().st_mode & 0o777 for name in FILES}
        assert of_files == {**dict.fromkeys(FILES, 0o644), "inductor/ab/cab.py": 0o755}
        # One fresh time.
        (moment,) = {(other.place / name).stat().st_mtime for name in FILES}
        assert time.time() - moment < 60
        assert [path.name for path in other.root.iterdir()] == [other.place.name]
        assert sorted(os.listdir(tmp_path)) == ["a.tar.gz", "one", "other"]

    def test_the_same_bytes(self, tmp_path: Path) -> None:
        here = a_here(tmp_path / "root")
        first, second, third = (tmp_path / name for name in ("1.tar.gz", "2.tar.gz", "3"))
        packed(here, first)
        archive.pack_place(places.look_at_place(here.place), second, quiet)
        # The same files in another order on disk, with other times, modes and owners.
        shutil.rmtree(here.root)
        a_place(here, dict(reversed(FILES.items())))
        for number, path in enumerate(here.place.rglob("*")):
            os.utime(path, (number, number))
            path.chmod(0o700 if path.is_dir() else 0o600)
            if os.getuid() == 0:
                os.chown(path, 12345, 12345)
        archive.pack_place(places.look_at_place(here.place), third, quiet)
        assert first.read_bytes() == second.read_bytes() == third.read_bytes()
        members = list(listed(first).values())
        assert members[0].name == archive.MANIFEST
        names = [member.name for member in members[1:]]
        assert names == sorted(names)
        about = {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members}
        assert about == {(0, 0, 0, "", "", 0o644)}
        # gzip's header: no flags, so no name, and no time.
        assert first.read_bytes()[3:8] == bytes(5)

    def test_what_stays(self, tmp_path: Path) -> None:
        here = a_here(tmp_path / "root")
        stays = (
            *("extensions/a/a.so", "aiter/build/lock_a", "aiter/build/x/x.cpp", "runs"),
            *("aiter-modules/build/module_x/x.o", "aiter-modules/build/lock_module_x"),
            *("inductor/locks/abc.lock", "inductor/a/.12.34.tmp", "inductor/a/x.lock.steal"),
            *("triton/KEY/tmp.pid_1_x/k.hsaco", "triton/KEY/k.tmp", "miopen/miopen-lockfiles/x"),
            *("sglang/.staging-1/x", "sglang-jit/.ninja_lock", "tilelang/tmp/x", "vllm/lock"),
            *(".new-1/x", "flydsl/f/lock"),
        )
        goes = (
            *("aiter/build/x_1/lib.so", "aiter/build/x_1/gfx942/x.hsaco", "inductor/a/clock.py"),
            *("aiter-modules/module_x.so", "tunableop/results0.csv", "vllm/build/x", "vllm/runs"),
            *("vllm/place", "inductor/a/x.tmpl", "vllm/extensions"),
        )
        file = tmp_path / "a.tar.gz"
        packed(here, file, dict.fromkeys((*stays, *goes), b"x"))
        assert set(listed(file)) == {*goes, archive.MANIFEST}

    def test_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        layer = tmp_path / "layer"
        monkeypatch.setattr(caches, "LAYER", str(layer))
        (layer / "directory").mkdir(parents=True)
        (layer / "k").write_bytes(b"of the layer")
        (tmp_path / "secret").write_bytes(b"secret")
        here, file = a_here(tmp_path / "root"), tmp_path / "a.tar.gz"
        a_place(here, {"inductor/own": b"own"})
        os.mkfifo(here.place / "pipe")
        (tmp_path / "layerx").write_bytes(b"another name")
        for name, target in (
            ("k", layer / "k"),
            ("directory", layer / "directory"),
            ("secret", tmp_path / "secret"),
            ("over", "../../secret"),
            ("lost", layer / "lost"),
            ("circle", here.place / "circle"),
            ("device", "/dev/zero"),
            ("x", tmp_path / "layerx"),
            ("again", here.place / "inductor/own"),
            ("locked", layer / "a.lock"),
        ):
            (here.place / name).symlink_to(target)
        archive.pack_place(places.look_at_place(here.place), file, quiet)
        assert set(listed(file)) == {archive.MANIFEST, "inductor/own", "k", "again"}
        assert all(member.isreg() for member in listed(file).values())
        with tarfile.open(file) as tar:
            stream = tar.extractfile("k")
            assert stream is not None
            assert stream.read() == b"of the layer"

    def test_databases(self, tmp_path: Path) -> None:
        here, file = a_here(tmp_path / "root"), tmp_path / "a.tar.gz"
        a_place(here, {"miopen/broken.ukdb": b"SQLite format 3\0" + b"x" * 5000, "x-wal": b"own"})
        path = here.place / "miopen-kernels" / "gfx942130.ukdb"
        path.parent.mkdir()
        with contextlib.closing(sqlite3.connect(path)) as database:
            # As MIOpen leaves it, if it is killed: rows are in the -wal only.
            database.execute("pragma journal_mode = wal")
            database.execute("create table kern_db (name, blob)")
            database.commit()
            database.executemany("insert into kern_db values (?, ?)", [("a", b"x" * 500)] * 50)
            database.commit()
            killed = path.with_name("killed.ukdb")
            for suffix in ("", "-wal"):
                shutil.copy(f"{path}{suffix}", f"{killed}{suffix}")
            # The last process closes it tidily, without the rows of now.
            done = archive.pack_place(places.look_at_place(here.place), file, quiet)
            again = archive.pack_place(places.look_at_place(here.place), tmp_path / "b", quiet)
        assert done.sha256 == again.sha256
        kernels = {f"miopen-kernels/{name}.ukdb" for name in ("gfx942130", "killed")}
        # A name that ends in -wal beside no database is any file.
        assert set(listed(file)) == {archive.MANIFEST, "x-wal", *kernels}
        (note,) = done.notes
        assert note.startswith("miopen/broken.ukdb, a database that can't be read: ")
        other = a_here(tmp_path / "other")
        archive.seed_place(file, other, quiet)
        for name in kernels:
            with contextlib.closing(sqlite3.connect(other.place / name)) as database:
                assert database.execute("select count(*) from kern_db").fetchone() == (50,)

    @pytest.mark.parametrize("change", [b"", b"shorter", b"longer" * 100, b"y" * 100_000])
    def test_a_file_that_changes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: bytes
    ) -> None:
        here, file = a_here(tmp_path / "root"), tmp_path / "a.tar.gz"
        place = a_place(here, {"vllm/a": b"x" * 100_000, "vllm/b": b"x"})
        real = archive._list_file

        def listed_and_changed(path: Path) -> Any:
            found = real(path)
            if path.name == "a":
                path.write_bytes(change)
            return found

        monkeypatch.setattr(archive, "_list_file", listed_and_changed)
        file.write_bytes(b"before")
        with pytest.raises(CacheRefused, match="vllm/a changed while it was packed"):
            archive.pack_place(place, file, quiet)
        assert file.read_bytes() == b"before"
        assert sorted(os.listdir(tmp_path)) == ["a.tar.gz", "root"]

    def test_nothing_to_pack(self, tmp_path: Path, golden: Golden) -> None:
        here = a_here(tmp_path / "root")
        place = a_place(here, {"vllm/lock": b""})
        with pytest.raises(CacheRefused) as refused:
            archive.pack_place(place, tmp_path / "a.tar.gz", quiet)
        golden(str(refused.value))
        assert os.listdir(tmp_path) == ["root"]

    @pytest.mark.parametrize("target", ["/dev/full", "/proc/a.tar.gz", "/nowhere/a.tar.gz"])
    def test_no_place_for_the_file(self, tmp_path: Path, target: str) -> None:
        place = a_place(a_here(tmp_path / "root"), FILES)
        with pytest.raises(OSError, match=target) as error:
            archive.pack_place(place, Path(target), quiet)
        assert error.value.filename == target


# --- archives that cache pack did not make

Edit = Callable[[dict[str, Any]], object]


def entry(data: bytes) -> dict[str, object]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def craft(
    file: Path,
    members: list[tuple[str, bytes, dict[str, Any]]],
    manifest: Mapping[str, Any] | bytes | None = None,
    **fields: Any,
) -> None:
    """An archive with members: name, data, and what is unusual of the header."""
    if manifest is None:
        files = {name: entry(data) for name, data, _ in members}
        manifest = {"format": 1, "root": "/r", "name": "n", "place": FIELDS, "files": files}
    if not isinstance(manifest, bytes):
        manifest = json.dumps({**manifest, **fields}).encode()
    rows = [(archive.MANIFEST, manifest, {}), *members] if manifest else members
    with tarfile.open(file, "w:gz") as tar:
        for name, data, unusual in rows:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for key, value in unusual.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(data))


def of_type(kind: bytes, **more: Any) -> list[tuple[str, bytes, dict[str, Any]]]:
    return [("vllm/a", b"", {"type": kind, **more})]


A: tuple[str, bytes, dict[str, Any]] = ("vllm/a", b"data", {})
PLAIN: dict[str, Any] = {"format": 1, "root": "/r", "name": "n", "place": FIELDS}
SPARSE = {
    "pax_headers": {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "vllm/a",
        "GNU.sparse.realsize": "0",
    }
}
CRAFTED: dict[str, tuple[list[Any], Any]] = {
    "not listed": ([A, ("vllm/b", b"", {})], {**PLAIN, "files": {"vllm/a": entry(b"data")}}),
    "missing": ([A], {**PLAIN, "files": {"vllm/a": entry(b"data"), "vllm/b": entry(b"")}}),
    "other digest": ([A], {**PLAIN, "files": {"vllm/a": {**entry(b"daTa")}}}),
    "longer": ([A], {**PLAIN, "files": {"vllm/a": {**entry(b"data"), "size": 3}}}),
    "shorter": ([A], {**PLAIN, "files": {"vllm/a": {**entry(b"data"), "size": 5}}}),
    "twice": ([A, A], None),
    "absolute": ([("/tmp/rocm-autopatch-evil", b"", {})], None),
    "above": ([("vllm/../../evil", b"", {})], None),
    "only above": ([("..", b"", {})], None),
    "dot": ([("./vllm/a", b"", {})], None),
    "no name": ([("vllm//a", b"", {})], None),
    "our mark": ([("place", b"torch 1\n", {})], None),
    "a null": ([], {**PLAIN, "files": {"vllm/\0a": entry(b"")}}),
    "symbolic link": (of_type(tarfile.SYMTYPE, linkname="/etc/passwd"), None),
    "through a link": (
        [("vllm", b"", {"type": tarfile.SYMTYPE, "linkname": "/tmp"}), ("vllm/a", b"", {})],
        None,
    ),
    "hard link": (of_type(tarfile.LNKTYPE, linkname="/etc/passwd"), None),
    "directory": (of_type(tarfile.DIRTYPE), None),
    "pipe": (of_type(tarfile.FIFOTYPE), None),
    "device": (of_type(tarfile.CHRTYPE, devmajor=1, devminor=5), None),
    "contiguous": (of_type(tarfile.CONTTYPE), None),
    "sparse": (of_type(tarfile.GNUTYPE_SPARSE), None),
    "sparse as in a newer tar": ([("vllm/a", b"0\n".ljust(512, b"\0"), SPARSE)], None),
    "file and directory": ([A, ("vllm/a/b", b"", {})], None),
    "directory and file": ([("vllm/a/b", b"", {}), A], None),
    "no manifest": ([A], b""),
    "another first": ([A, (archive.MANIFEST, b"{}", {})], b""),
    "manifest as link": (
        [(archive.MANIFEST, b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"})],
        b"",
    ),
    "manifest of another release": ([A], {**PLAIN, "format": 2, "files": {}}),
    "manifest that is no JSON": ([A], b"{"),
    "manifest that is a list": ([A], b"[]"),
    "manifest without files": ([A], PLAIN),
    "files as a list": ([A], {**PLAIN, "files": ["vllm/a"]}),
    "size that is no number": ([A], {**PLAIN, "files": {"vllm/a": {"size": "x", "sha256": ""}}}),
    "line break": ([A], {**PLAIN, "place": {**FIELDS, "hip": "7\ntorch 9"}, "files": {}}),
    "another line break": (
        [A],
        {**PLAIN, "place": {**FIELDS, "hip": "7\u2028torch 9"}, "files": {}},
    ),
    "no text": ([A], {**PLAIN, "place": {**FIELDS, "gpu": "\ud800"}, "files": {}}),
    "our list of runs": ([("runs", b"{}", {})], None),
    "our link to the layer": ([("layer", b"", {})], None),
    "deep manifest": ([A], b"[" * 100_000),
    "deep field": ([A], b'{"format": 1, "place": ' + b'{"a":' * 100_000),
    "infinite size": ([A], b'{"format": 1, "files": {"vllm/a": {"size": 1e999, "sha256": ""}}}'),
    "infinite format": ([A], b'{"format": 1e999}'),
    "a part as a file": ([("triton", b"", {})], None),
    "directories without end": ([("/".join(["vllm", *"d" * 1900, "a"]), b"", {})], None),
    "manifest twice": ([(archive.MANIFEST, b"{}", {})], {**PLAIN, "files": {}}),
}


def refused_and_nothing_left(file: Path, here: places.StartPlace) -> str:
    with pytest.raises(CacheRefused) as refused:
        archive.seed_place(file, here, quiet)
    assert not here.root.exists() or os.listdir(here.root) == []
    return str(refused.value)


class TestRefusedArchives:
    @pytest.mark.parametrize("name", CRAFTED)
    def test_crafted(self, tmp_path: Path, golden: Golden, name: str) -> None:
        file = tmp_path / "a.tar.gz"
        members, manifest = CRAFTED[name]
        craft(file, members, manifest)
        golden(refused_and_nothing_left(file, a_here(tmp_path / "root")))
        assert sorted(os.listdir(tmp_path))[:1] == ["a.tar.gz"]
        assert not (tmp_path / "evil").exists()
        assert not Path("/tmp/rocm-autopatch-evil").exists()

    def test_crafting_makes_archives(self, tmp_path: Path) -> None:
        file, here = tmp_path / "a.tar.gz", a_here(tmp_path / "root")
        craft(file, [A])
        archive.seed_place(file, here, quiet)
        assert (here.place / "vllm/a").read_bytes() == b"data"

    @pytest.mark.parametrize(
        "data",
        [b"", b"\x1f\x8b", b"text", gzip.compress(b"x" * 2000)],
        ids=["empty", "cut", "text", "gzip"],
    )
    def test_no_archive(self, tmp_path: Path, data: bytes) -> None:
        file = tmp_path / "a.tar.gz"
        file.write_bytes(data)
        said = refused_and_nothing_left(file, a_here(tmp_path / "root"))
        assert said.startswith(str(file))

    def test_headers_without_end(self, tmp_path: Path) -> None:
        """Each of them is about the next one."""
        file = tmp_path / "a.tar.gz"
        header = tarfile.TarInfo("pax")
        header.type = tarfile.XHDTYPE
        file.write_bytes(gzip.compress(header.tobuf() * 5000 + bytes(1024)))
        said = refused_and_nothing_left(file, a_here(tmp_path / "root"))
        assert "is damaged or no archive of ours" in said

    @pytest.mark.parametrize("where", ["in the block", "later", "in another stream"])
    def test_what_follows_the_end(self, tmp_path: Path, golden: Golden, where: str) -> None:
        file, here = tmp_path / "a.tar.gz", a_here(tmp_path / "root")
        craft(file, [A])
        text = gzip.decompress(file.read_bytes())
        more = tarfile.TarInfo("vllm/evil").tobuf()
        at = 4096 if where == "in the block" else len(text)
        assert not text[at:].strip(b"\0")
        streams = [text[:at] + more] if where != "in another stream" else [text, more]
        file.write_bytes(b"".join(map(gzip.compress, [*streams])))
        golden(refused_and_nothing_left(file, here))
        # Zeros are what tar itself writes there.
        file.write_bytes(gzip.compress(text + bytes(30_000)))
        archive.seed_place(file, here, quiet)

    def test_a_manifest_of_gigabytes(self, tmp_path: Path) -> None:
        file = tmp_path / "a.tar.gz"
        member = tarfile.TarInfo(archive.MANIFEST)
        member.size = 1 << 33
        file.write_bytes(gzip.compress(member.tobuf() + bytes(1024)))
        said = refused_and_nothing_left(file, a_here(tmp_path / "root"))
        assert said.endswith("has 8,589,934,592 bytes, which is too long")

    def test_truncated(self, tmp_path: Path) -> None:
        file, cut, here = tmp_path / "a.tar.gz", tmp_path / "cut", a_here(tmp_path / "root")
        packed(a_here(tmp_path / "source"), file)
        data = file.read_bytes()
        for length in (*range(0, len(data), 499), *range(len(data) - 20, len(data))):
            cut.write_bytes(data[:length])
            refused_and_nothing_left(cut, here)

    def test_a_flipped_bit(self, tmp_path: Path) -> None:
        file, other = tmp_path / "a.tar.gz", tmp_path / "other"
        packed(a_here(tmp_path / "source"), file)
        data = file.read_bytes()
        # Of gzip's header, only the time, flags of no use and the system's name may be anything.
        for at in (*range(10, len(data), 211), *range(len(data) - 8, len(data))):
            other.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])
            refused_and_nothing_left(other, a_here(tmp_path / "root"))

    def test_digest(self, tmp_path: Path, golden: Golden) -> None:
        file, here = tmp_path / "a.tar.gz", a_here(tmp_path / "root")
        digest = packed(a_here(tmp_path / "source"), file).sha256
        with pytest.raises(CacheRefused) as refused:
            archive.seed_place(file, here, quiet, checksum="0" * 64)
        golden(str(refused.value).replace(digest, "<DIGEST>"))
        assert not here.root.exists()
        archive.seed_place(file, here, quiet, checksum=digest)

    @pytest.mark.parametrize(
        "what", ["group", "everybody", "directory", "stranger", "pipe", "nothing"]
    )
    def test_who_may_write_the_file(self, tmp_path: Path, golden: Golden, what: str) -> None:
        directory, here = tmp_path / "directory", a_here(tmp_path / "root")
        directory.mkdir()
        file = directory / "a.tar.gz"
        packed(a_here(tmp_path / "source"), file)
        if what in ("group", "everybody"):
            file.chmod(0o664 if what == "group" else 0o666)
        elif what == "directory":
            directory.chmod(0o777)
        elif what == "stranger":
            if os.getuid() != 0:
                pytest.skip("it needs root")
            os.chown(file, 12345, -1)
        else:
            file.unlink()
            if what == "pipe":
                os.mkfifo(file)
        golden(refused_and_nothing_left(file, here))
        assert not here.root.exists()


class TestSeed:
    def test_whose_file_it_is(self, tmp_path: Path) -> None:
        file = tmp_path / "a.tar.gz"
        packed(a_here(tmp_path / "source"), file)
        owner = archive.seed_place(file, a_here(tmp_path / "root"), quiet).owner
        assert owner in (file.owner(), f"user {os.getuid()}")

    @pytest.mark.parametrize("what", ["root", "place"])
    def test_who_may_write_the_root(self, tmp_path: Path, golden: Golden, what: str) -> None:
        file, here = tmp_path / "a.tar.gz", a_here(tmp_path / "root")
        packed(a_here(tmp_path / "source"), file)
        a_place(here, {})
        (here.root if what == "root" else here.place).chmod(0o770)
        for replace in (False, True):
            with pytest.raises(CacheRefused) as refused:
                archive.seed_place(file, here, quiet, replace=replace)
            golden(str(refused.value), str(replace), PLACE=here.place.name)
        assert os.listdir(here.root) == [here.place.name]
        assert os.listdir(here.place) == [caches.MARK]

    def test_another_place(self, tmp_path: Path, golden: Golden) -> None:
        file = tmp_path / "a.tar.gz"
        packed(a_here(tmp_path / "source"), file)
        here = a_here(tmp_path / "root", gpu="gfx942-80", hip="", policy="performance")
        golden(refused_and_nothing_left(file, here))
        assert not here.root.exists()
        done = archive.seed_place(file, here, quiet, other_place=True)
        # A start here takes it for its own.
        assert done.place == here.place
        assert places.look_at_place(here.place).fields == here.fields
        assert set(done.other) == {"gpu", "hip", "policy"}

    def test_where_there_is_no_gpu(self, tmp_path: Path) -> None:
        """A build seeds for machines that have one; what was made without one is for any."""
        file, there = tmp_path / "a.tar.gz", a_here(tmp_path / "source")
        packed(there, file)
        build = a_here(tmp_path / "root", gpu="no-gpu")
        done = archive.seed_place(file, build, quiet)
        assert done.place.name == there.place.name
        assert places.look_at_place(done.place).fields == FIELDS
        assert done.other == {"gpu": ("gfx942-304", "no-gpu")}
        packed(a_here(tmp_path / "another", gpu="no-gpu", triton=""), file)
        here = a_here(tmp_path / "third")
        assert archive.seed_place(file, here, quiet).place == here.place

    def test_a_place_that_is_there(self, tmp_path: Path, golden: Golden) -> None:
        file, here = tmp_path / "a.tar.gz", a_here(tmp_path / "root")
        packed(a_here(tmp_path / "source"), file)
        # A start makes it without files.
        a_place(here, {})
        (here.place / "inductor").mkdir()
        (here.place / RUNS).write_text("{}\n")
        archive.seed_place(file, here, quiet)
        assert not (here.place / RUNS).exists()
        (here.place / "inductor/ab/more.py").touch()
        with pytest.raises(CacheRefused) as refused:
            archive.seed_place(file, here, quiet)
        golden(str(refused.value), PLACE=here.place.name)
        assert (here.place / "inductor/ab/more.py").exists()
        archive.seed_place(file, here, quiet, replace=True)
        assert set(contents_of(here.place)) == {*FILES, caches.MARK}
        assert os.listdir(here.root) == [here.place.name]

    def test_links_of_this_container(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What a start has made of the old place goes, unless a process uses it."""
        monkeypatch.setattr(caches, "OWN", f"{tmp_path}/own-%d")
        file, here = tmp_path / "a.tar.gz", a_here(tmp_path / "root")
        packed(here, file)
        own = Path(caches.own(str(here.place)))
        own.mkdir(parents=True)
        (own / "lost").symlink_to(here.place / "lost")
        with using(own, "environ"):
            archive.seed_place(file, here, quiet, replace=True)
            assert (own / "lost").is_symlink()
        archive.seed_place(file, here, quiet, replace=True)
        assert not own.exists()

    def test_a_place_in_use(self, tmp_path: Path, golden: Golden) -> None:
        file, here = tmp_path / "a.tar.gz", a_here(tmp_path / "root")
        packed(here, file)
        with using(here.place, "environ") as pid:
            with pytest.raises(CacheRefused) as refused:
                archive.seed_place(file, here, quiet, replace=True)
            golden(str(refused.value).replace(str(pid), "<PID>"), PLACE=here.place.name)
        archive.seed_place(file, here, quiet, replace=True)

    def test_the_old_place_comes_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file, here = tmp_path / "a.tar.gz", a_here(tmp_path / "root")
        packed(here, file)
        real = os.rename

        def rename(source: Path, target: Path) -> None:
            if target == here.place and not str(source).endswith("-old"):
                raise OSError(28, "No space left on device", str(source))
            real(source, target)

        monkeypatch.setattr(os, "rename", rename)
        with pytest.raises(OSError, match="No space") as error:
            archive.seed_place(file, here, quiet, replace=True)
        assert error.value.filename == str(here.root)
        assert set(contents_of(here.place)) == {*FILES, caches.MARK}
        assert os.listdir(here.root) == [here.place.name]

    def test_moved(self, tmp_path: Path) -> None:
        """Triton finds kernels by absolute paths, and starts go by their own root."""
        source, file = a_here(tmp_path / "source"), tmp_path / "a.tar.gz"
        at = f"{source.place}/triton/KEY"
        group = {"child_paths": {"k.hsaco": f"{at}/k.hsaco", "o": "/elsewhere/o"}, "x": 1}
        files = {
            "triton/KEY/__grp__k.json": json.dumps(group).encode(),
            "triton/KEY/__grp__l.json": b"not JSON",
            "triton/KEY/__grp__m.json": b'{"child_paths": [1]}',
            "triton/KEY/__grp__n.json": b'{"child_paths": {"k": "/elsewhere"}}',
            "triton/KEY/k.json": json.dumps(group).encode(),
        }
        packed(source, file, files)
        here, into = a_here(tmp_path / "root"), tmp_path / "layer"
        for done in (
            archive.seed_place(file, here, quiet),
            archive.seed_place(file, here, quiet, into=into),
        ):
            assert done.rewritten == 1
            found = contents_of(done.place)
            now = json.loads(found.pop("triton/KEY/__grp__k.json"))
            new = f"{here.place}/triton/KEY/k.hsaco"
            assert now == {"child_paths": {"k.hsaco": new, "o": "/elsewhere/o"}, "x": 1}
            assert found.items() <= {**files, caches.MARK: found[caches.MARK]}.items()
        # At the same path nothing is written anew.
        shutil.rmtree(source.root)
        assert archive.seed_place(file, source, quiet).rewritten == 0
        assert contents_of(source.place).items() >= files.items()
        # An image's layer is for all its users.
        place = into / here.place.name
        assert (into.stat().st_mode & 0o777, place.stat().st_mode & 0o777) == (0o755, 0o755)


# --- who uses a place


@contextlib.contextmanager
def using(place: Path, how: str) -> Iterator[int]:
    """A process that uses a place: in its environment, by an open file, or by a mapped one."""
    file = place / "used"
    file.write_bytes(bytes(4096))
    code = "import mmap, sys\nf = open(sys.argv[1], 'r+b') if sys.argv[1] else None\n"
    if how == "maps":
        code += "m = mmap.mmap(f.fileno(), 0)\nf.close()\n"
    code += "print(flush=True)\nsys.stdin.read()\n"
    argument = "" if how == "environ" else str(file)
    env = {"TRITON_CACHE_DIR": f"{place}/triton"} if how == "environ" else {}
    command = [sys.executable, "-c", code, argument]
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()
            file.unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["environ", "open", "maps"])
def test_users(tmp_path: Path, how: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    # By another name, as a home directory may be a link.
    (tmp_path / "link").symlink_to(tmp_path)
    assert users.users_of(place) == []
    with using(place, how) as pid:
        assert users.users_of(place) == [pid]
        assert users.users_of(tmp_path / "link" / "place") == [pid]
        assert users.users_of(tmp_path / "other") == []
    assert users.users_of(place) == []
    assert users.processes_text([1]) == "process 1"
    assert users.processes_text([1, 2, 3]) == "process 1 and 2 more"


# --- gc


class TestGc:
    def some(self, root: Path) -> dict[str, places.StartPlace]:
        """Three places of 1000 bytes, the first one used last, by name."""
        found = {}
        for number, name in enumerate(("new", "old", "older")):
            found[name] = a_here(root, policy=name)
            a_place(found[name], {"vllm/a": bytes(1000)})
            os.utime(found[name].place, (1e9 - number, 1e9 - number))
        return found

    def left(self, some: dict[str, places.StartPlace]) -> set[str]:
        return {name for name, here in some.items() if here.place.exists()}

    def test_the_least_recently_used_first(self, tmp_path: Path) -> None:
        some = self.some(tmp_path / "root")
        here = a_here(tmp_path / "root", policy="here")
        for most, left, size in (
            (3000, {"new", "old", "older"}, 3000),
            (2999, {"new", "old"}, 2000),
            (1000, {"new"}, 1000),
            (0, set(), 0),
        ):
            done = gc.collect_places(here, most)
            assert (self.left(some), done.size, done.kept) == (left, size, {})
        assert os.listdir(here.root) == []

    def test_what_stays(self, tmp_path: Path, golden: Golden) -> None:
        some = self.some(tmp_path / "root")
        with using(some["older"].place, "environ") as pid:
            done = gc.collect_places(some["old"], 0)
        assert self.left(some) == {"old", "older"}
        assert [place.path for place in done.removed] == [some["new"].place]
        said = "\n".join(f"{name}: {why}" for name, why in sorted(done.kept.items()))
        names = {f"{name.upper()}": here.place.name for name, here in some.items()}
        golden(said.replace(str(pid), "<PID>"), **names)

    def test_what_was_left_over(self, tmp_path: Path) -> None:
        root = tmp_path / "root"
        some = self.some(root)
        for name, age in ((".new-1-old", 4000), (".new-2-young", 60)):
            (root / name / "vllm").mkdir(parents=True)
            (root / name / "vllm" / "a").write_bytes(bytes(500))
            then = time.time() - age
            os.utime(root / name, (then, then))
        # What is not ours stays, whatever it is.
        (root / "mine").mkdir()
        (root / "mine" / "a").touch()
        (root / ".new-file").touch()
        done = gc.collect_places(some["new"], 1 << 40)
        assert [path.name for path in done.unfinished] == [".new-1-old"]
        assert done.size == 3500
        assert {"mine", ".new-2-young", ".new-file"} <= set(os.listdir(root))

    def test_a_place_without_its_mark(self, tmp_path: Path) -> None:
        """A running program has made its directories again after its place was removed."""
        some = self.some(tmp_path / "root")
        for name in ("new", "older"):
            (some[name].place / caches.MARK).unlink()
            os.utime(some[name].place, (9e8, 9e8) if name == "older" else (1e9, 1e9))
        (tmp_path / "root" / "torch-mine").mkdir()
        here = a_here(tmp_path / "root", policy="here")
        done = gc.collect_places(here, 2000)
        assert (self.left(some), done.size) == ({"new", "old"}, 2000)
        with using(some["new"].place, "environ"):
            assert self.left(some) == {"new", "old"}
            done = gc.collect_places(here, 0)
        assert list(done.kept) == [some["new"].place.name]
        assert (gc.collect_places(here, 0).size, self.left(some)) == (0, set())
        assert os.listdir(here.root) == ["torch-mine"]

    def test_no_root(self, tmp_path: Path) -> None:
        assert gc.collect_places(a_here(tmp_path / "root"), 0).size == 0


# --- warm


def test_modules_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "OWN", f"{tmp_path}/own-%d")
    here = a_here(tmp_path / "root")
    a_place(here, {})
    jit = tmp_path / "site-packages" / "aiter" / "jit"
    torch = str(tmp_path / "site-packages" / "torch" / "version.py")
    assert list(warm.bring_aiter(here.place, torch)) == []
    assert list(warm.bring_aiter(here.place, "")) == []
    assert os.listdir(here.place) == [caches.MARK]
    (jit / "flydsl_cache" / "f_1").mkdir(parents=True)
    (jit / "build" / "module_a").mkdir(parents=True)
    for name in ("module_a.so", "core.py", "build/module_a/a.so", "flydsl_cache/f_1/b.pkl"):
        (jit / name).write_text(name)
    done = dict(warm.bring_aiter(here.place, torch))
    assert done == {"aiter-modules": len("module_a.so"), "flydsl": len("flydsl_cache/f_1/b.pkl")}
    found = {"aiter-modules/module_a.so", "flydsl/f_1/b.pkl"}
    assert set(contents_of(here.place)) == {caches.MARK, *found}
    # aiter looks there only if the directory is there.
    assert (here.place / "aiter").is_dir()
    # What is there is not touched: aiter may have built it anew.
    (here.place / "aiter-modules" / "module_a.so").write_text("newer")
    assert list(warm.bring_aiter(here.place, torch)) == []
    assert (here.place / "aiter-modules" / "module_a.so").read_text() == "newer"

    # aiter builds in the container's own directory, where links stand for what is there.
    own = Path(caches.own(str(here.place)))
    for name in ("build/lock_module_b", "build/module_b/b.o", "module_b.so", "module_c.so"):
        (own / "aiter-modules" / name).parent.mkdir(parents=True, exist_ok=True)
        (own / "aiter-modules" / name).write_text(name)
    (own / "aiter-modules" / "module_a.so").symlink_to(here.place / "aiter-modules/module_a.so")
    (here.place / "aiter-modules" / "module_c.so").write_text("old")
    warm.keep_built(here.place)
    found |= {"aiter-modules/module_b.so", "aiter-modules/module_c.so"}
    assert set(contents_of(here.place)) == {caches.MARK, *found}
    assert (here.place / "aiter-modules" / "module_c.so").read_text() == "module_c.so"
    # Nothing was built here. An empty directory would hide what another image has.
    assert not (here.place / "aiter").exists()
    assert os.listdir(here.root) == [here.place.name]


def test_counts(tmp_path: Path) -> None:
    lines = []
    for name, payload in (
        ("fx_graph_cache_hit", '{"key": "k"}'),
        ("fx_graph_cache_miss", "{}"),
        ("fx_graph_cache_hash", '{"cache_state": "miss"}'),
        ("fx_graph_cache_hash", "not JSON"),
        ("fx_graph_cache_hash", "[]"),
        ("aotautograd_cache_hit", "{}"),
        ("aotautograd_cache_bypass", "{}"),
        ("aotautograd_cache_pickle_failure", "{}"),
        ("inductor_output_code", ""),
    ):
        head = json.dumps({"artifact": {"name": name, "encoding": "json"}, "frame_id": 0})
        lines += [f"V1121 19:13:29.512000 7 a.py:1] {head}", f"\t{payload}"]
    (tmp_path / "dedicated_log_torch_trace_x.log").write_text("\n".join(lines) + "\n")
    assert warm.lookup_counts(gather_report(tmp_path)) == {
        "fx_graph_cache": {"hit": 1, "miss": 2, "bypass": 0},
        "aotautograd_cache": {"hit": 1, "miss": 0, "bypass": 1},
    }


def test_json_that_is_too_deep(tmp_path: Path) -> None:
    """A file of runs may be damaged."""
    here = a_here(tmp_path / "root")
    place = a_place(here, {RUNS: b"[" * 100_000 + b"\n{}\n"})
    assert places.warm_runs(place.path) == [{}]


def test_runs(tmp_path: Path) -> None:
    assert places.warm_runs(tmp_path) == []
    warm.note_run(tmp_path, {"status": 0})
    with open(tmp_path / RUNS, "a") as stream:
        stream.write('{"cut": \n[]\n')
    warm.note_run(tmp_path, {"status": 1})
    assert places.warm_runs(tmp_path) == [{"status": 0}, {"status": 1}]


# --- the command


def of_home(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "XDG_CACHE_HOME": ""}


def command(
    python: Interpreter, home: Path, *arguments: str | Path, **env: str
) -> tuple[int, str, str]:
    home.mkdir(exist_ok=True)
    words = ("-m", "rocm_autopatch", "cache", *arguments)
    done = python.run(*words, env={**of_home(home), **env}, check=False)
    return done.returncode, done.stdout, done.stderr


def data(python: Interpreter, home: Path, *arguments: str | Path, **env: str) -> Any:
    status, out, err = command(python, home, *arguments, "--json", **env)
    assert (status, err) == (0, "")
    return json.loads(out)


def place_of(python: Interpreter, home: Path, **env: str) -> Path:
    return Path(command(python, home, "path", **env)[1].rstrip("\n"))


def filled(python: Interpreter, home: Path, **env: str) -> Path:
    """The place of a home after a run of warm."""
    words = ("warm", "--", python.path, "-c", FILL)
    status, out, err = command(python, home, *words, **env)
    assert (status, out) == (0, ""), err
    return place_of(python, home, **env)


def test_status(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    def show(name: str, **env: str) -> None:
        status, out, err = command(python311, tmp_path, "status", **env)
        assert (status, err) == (0, "")
        place = place_of(python311, tmp_path, **env)
        other = place_of(python311, tmp_path, ROCM_AUTOPATCH_POLICY="debug")
        digests = {
            f"{key}_DIGEST": dict(
                line.split(" ", 1) for line in (path / caches.MARK).read_text().splitlines()
            )["digest"]
            for key, path in (("OWN", place), ("OTHER", other))
            if (path / caches.MARK).exists()
        }
        golden(out, name, PLACE=place.name, OTHER=other.name, **digests)

    show("nothing")
    assert os.listdir(tmp_path) == []
    for policy in ("debug", "safe"):
        place = filled(python311, tmp_path, ROCM_AUTOPATCH_POLICY=policy)
        (place / RUNS).unlink()
        os.utime(place, (1e9, 1e9))
    counted = {"hit": 3, "miss": 0, "bypass": 1}
    warm.note_run(
        place, {"fx_graph_cache": counted, "aotautograd_cache": dict.fromkeys(counted, 0)}
    )
    os.utime(place, (1e9 + 1, 1e9 + 1))
    left = place.with_name(".new-1")
    left.mkdir()
    (left / "a").write_bytes(bytes(2000))
    show("two places", TZ="UTC")
    # Asking is no use.
    assert place.stat().st_mtime == 1e9 + 1
    show("switched off", TZ="UTC", ROCM_AUTOPATCH="off")
    shutil.rmtree(left)
    # The command's own start only looks.
    found = data(python311, tmp_path, "status", ROCM_AUTOPATCH_CACHE="on")
    assert (found["used"], found["layer"], found["reason"]) == (True, "ROCM_AUTOPATCH_CACHE", "")
    assert found["root"] == str(place.parent)
    one, other = found["places"]
    assert (one["here"], other["here"]) == (True, False)
    assert one["path"] == found["place"] == str(place)
    assert one["of"] == found["of"]
    assert other["differs"] == ["digest", "policy"]
    assert (one["bytes"], one["files"], one["parts"]) == (
        2000,
        2,
        {"inductor": 1000, "triton": 1000},
    )
    assert one["used"] == 1e9 + 1
    assert one["warmed"]["fx_graph_cache"] == counted
    assert (found["unfinished"], found["image"]) == ([], [])


def test_a_policy_says_where(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    file = tmp_path / "team.yaml"
    home = tmp_path / "home"
    for use in (f"{tmp_path}/own", "off"):
        file.write_text(f"version: 1\nextends: safe\ncaches: {use}\n")
        env = {"ROCM_AUTOPATCH_POLICY": str(file)}
        _, out, _ = command(python311, home, "status", **env)
        out = re.sub(r"last used .*", "last used <TIME>", out)
        golden(out, use.rpartition("/")[2], PLACE=place_of(python311, home, **env).name)
    # warm does not go elsewhere than starts do.
    file.write_text(f"version: 1\nextends: safe\ncaches: {tmp_path}/own\n")
    assert filled(python311, home, **env).parent == tmp_path / "own"
    other = filled(python311, home, **env, ROCM_AUTOPATCH_CACHE=str(tmp_path / "users"))
    assert other.parent == tmp_path / "users"


def test_warm(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    status, out, err = command(
        python311, tmp_path, "warm", "--", python311.path, "-c", FILL + "print(1)\nsys.exit(3)"
    )
    assert (status, out) == (3, "1\n")
    golden(re.sub(r"in \d.* s;", "in <TIME>;", err))
    place = place_of(python311, tmp_path)
    (row,) = places.warm_runs(place)
    assert (row["status"], row["bytes"], row["graphs"]) == (3, 2000, 0)
    # A second run adds nothing. It may miss, also where a start must not.
    show = "import os; print(os.environ['ROCM_AUTOPATCH_CACHE'])"
    arguments = ("warm", "--", python311.path, "-c", FILL + show)
    _, out, _ = command(python311, tmp_path, *arguments, ROCM_AUTOPATCH_CACHE="require")
    assert out == "on\n"
    assert [row["bytes"] for row in places.warm_runs(place)] == [2000, 0]
    assert os.listdir(place.parent) == [place.name]


@pytest.mark.parametrize(
    ("arguments", "env", "expected"),
    [
        (("--", "/no/such"), {}, 127),
        (("--", "/"), {}, 126),
        ((), {}, 2),
        (("--", "sh", "-c", "kill -9 $$"), {}, 137),
        (("--", "true"), {"ROCM_AUTOPATCH": "off"}, 1),
        (("--", "true"), {"ROCM_AUTOPATCH_CACHE": "/proc/x"}, 1),
        (("--", "true"), {"ROCM_AUTOPATCH_ASSUME": "accelerator=cuda"}, 1),
    ],
)
def test_warm_that_can_not(
    python311: Interpreter,
    tmp_path: Path,
    arguments: tuple[str, ...],
    env: dict[str, str],
    expected: int,
    golden: Golden,
) -> None:
    status, _, err = command(python311, tmp_path, "warm", *arguments, **env)
    assert status == expected
    if expected in (1, 126, 127):
        golden(last_said(err))


def test_warm_with_aiter(fresh: Interpreter, tmp_path: Path) -> None:
    jit = fresh.site_packages / "aiter" / "jit"
    jit.mkdir(parents=True)
    (jit / "module_a.so").write_bytes(bytes(100))
    build = (
        "import os; d = os.environ['AITER_JIT_DIR']; print(os.listdir(d));"
        "open(d + '/module_b.so', 'wb').write(bytes(50))"
    )
    home = tmp_path / "home"
    place = place_of(fresh, home)
    own = Path(caches.own(str(place)))
    # Of another test.
    shutil.rmtree(own, ignore_errors=True)
    try:
        status, out, err = command(fresh, home, "warm", "--", fresh.path, "-c", build)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    assert (status, out) == (0, "['module_a.so']\n")
    assert "aiter-modules: 100 bytes copied from the image" in err
    assert sorted(os.listdir(place / "aiter-modules")) == ["module_a.so", "module_b.so"]


def test_pack_and_seed(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    one, two, file = tmp_path / "one", tmp_path / "two", tmp_path / "a.tar.gz"
    place = filled(python311, one)
    status, out, err = command(python311, one, "pack", file)
    assert (status, err) == (0, "")
    digest = "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    size = file.stat().st_size
    golden(out.replace(digest, "<DIGEST>").replace(f"{size} bytes", "<SIZE>"), "pack")
    before = file.read_bytes()
    found = data(python311, one, "pack", file, "--place", place.name)
    assert found == {
        "file": str(file),
        "checksum": digest,
        "bytes": size,
        "place": place.name,
        "files": 2,
        "unpacked": 2000,
        "left_out": [],
    }
    assert file.read_bytes() == before
    status, out, err = command(python311, two, "seed", file, "--checksum", digest)
    assert (status, err) == (0, "")
    owner = archive._user_name(os.getuid())
    golden(out.replace(f"belongs to {owner}", "belongs to <OWNER>"), "seed", PLACE=place.name)
    seeded = place_of(python311, two)
    assert {name: len(text) for name, text in contents_of(seeded).items()} == {
        caches.MARK: (place / caches.MARK).stat().st_size,
        "inductor/ab/cab.py": 1000,
        "triton/K/k.hsaco": 1000,
    }
    # A start uses it as it is.
    used = data(python311, two, "status", ROCM_AUTOPATCH_CACHE="on")
    assert [row["bytes"] for row in used["places"]] == [2000]
    # Once more: it is there.
    status, out, err = command(python311, two, "seed", file)
    assert (status, out) == (1, "")
    golden(err, "there", PLACE=place.name)
    found = data(python311, two, "seed", file, "--replace")
    assert found == {
        "place": str(seeded),
        "here": True,
        "owner": owner,
        "files": 2,
        "bytes": 2000,
        "differs": [],
        "rewritten": 0,
        "filled_for": "",
    }
    # For another policy.
    other = {"ROCM_AUTOPATCH_POLICY": "debug"}
    status, out, err = command(python311, two, "seed", file, **other)
    assert (status, out) == (1, "")
    found = data(python311, two, "seed", file, "--for-other-place", **other)
    assert (found["here"], found["differs"]) == (True, ["digest", "policy"])
    # Into an image's layer.
    found = data(python311, two, "seed", file, "--into", tmp_path / "layer")
    assert found["place"] == str(tmp_path / "layer" / place.name)


def test_refused(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    def refused(name: str, *arguments: str | Path, **env: str) -> None:
        status, out, err = command(python311, home, *arguments, **env)
        assert (status, out) == (1, "")
        golden(re.sub("[0-9a-f]{64}", "<DIGEST>", err), name, PLACE=place.name)

    home, file = tmp_path / "home", tmp_path / "a.tar.gz"
    place = place_of(python311, home)
    refused("pack, no place", "pack", file)
    refused("pack, no such place", "pack", file, "--place", "torch-1")
    refused("pack, above", "pack", file, "--place", "../other")
    filled(python311, home)
    with using(place, "environ") as pid:
        status, _, err = command(python311, home, "pack", file)
        assert status == 1
        golden(err.replace(str(pid), "<PID>"), "pack, used", PLACE=place.name)
        assert not file.exists()
        assert command(python311, home, "pack", file, "--even-if-used")[0] == 0
    refused("pack, no directory", "pack", tmp_path / "nowhere" / "a.tar.gz")
    refused("pack, no file", "pack", "/dev/null")
    refused("seed, no file", "seed", tmp_path / "nothing")
    refused(
        "seed, no digest of it", "seed", place / caches.MARK, "--checksum", f"sha256:{'0' * 64}"
    )
    refused("seed, no archive", "seed", place / caches.MARK)
    file.chmod(0o666)
    refused("seed, others may write it", "seed", file)
    file.chmod(0o644)
    refused("seed, a file as root", "seed", file, ROCM_AUTOPATCH_CACHE=str(file))
    place.parent.chmod(0o777)
    for action in (("status",), ("pack", file), ("seed", file), ("gc", "--max", "0")):
        refused(f"{action[0]}, others may write the root", *action)
    assert place.exists()


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        (),
        ("pakc",),
        ("pack",),
        ("seed",),
        ("seed", "a", "--checksum", "sha256:12"),
        ("seed", "a", "--checksum", "0" * 64),
        ("gc",),
        *(("gc", "--max", size) for size in ("", "x", "1P", "1g", "-1", "1e3", "G")),
        ("warm", "--json", "--", "true"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["cache", *arguments])
        assert ended.value.code == 2, arguments
        assert "usage: rocm-autopatch" in capsys.readouterr().err


def test_gc(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    found = {}
    for number, policy in enumerate(("debug", "performance", "safe")):
        place = found[policy] = filled(python311, tmp_path, ROCM_AUTOPATCH_POLICY=policy)
        os.utime(place, (1e9 + number, 1e9 + number))
    names = {policy.upper(): place.name for policy, place in found.items()}
    status, out, err = command(python311, tmp_path, "gc", "--max", "3.95K")
    assert (status, err) == (0, "")
    golden(out, "one", **names)
    assert not found["debug"].exists()
    assert found["performance"].exists()
    said = data(python311, tmp_path, "gc", "--max", "4000")
    assert said == {"removed": [], "unfinished": [], "kept": {}, "bytes": 4000, "max": 4000}
    status, out, err = command(python311, tmp_path, "gc", "--max", "0")
    assert status == 1
    golden(out, "all that may go", **names)
    golden(err, "more than it may be", **names)
    assert found["safe"].exists()


def test_path_without_a_home(python311: Interpreter, golden: Golden) -> None:
    done = python311.run(
        *("-m", "rocm_autopatch", "cache", "path"), env=of_home(Path("relative")), check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    golden(done.stderr)


# --- what goes wrong on the way

# Ends the process when something of the archive was unpacked.
KILLED = """
import os, signal, sys
from pathlib import Path
from rocm_autopatch.caches import archive, places

def kill(done, size):
    os.kill(os.getpid(), signal.SIGKILL)

archive.seed_place(Path(sys.argv[1]), places.place_here(), kill, replace=len(sys.argv) > 2)
"""


def test_killed_in_seed(python311: Interpreter, tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "a.tar.gz"
    filled(python311, tmp_path / "source")
    command(python311, tmp_path / "source", "pack", file)
    home.mkdir()
    env = of_home(home)
    done = python311.run("-c", KILLED, file, env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    place = place_of(python311, home)
    (left,) = place.parent.iterdir()
    assert left.name.startswith(".new-")
    # What is left over is no place, does not disturb, and goes.
    assert data(python311, home, "status")["places"] == []
    assert command(python311, home, "seed", file)[0] == 0
    os.utime(left, (0, 0))
    assert data(python311, home, "gc", "--max", "1G")["unfinished"] == [left.name]
    # What was there before stays.
    (place / "triton" / "more").touch()
    done = python311.run("-c", KILLED, file, "replace", env=env, check=False)
    assert done.returncode == -signal.SIGKILL
    assert (place / "triton" / "more").exists()


@ROOT_NEEDED
def test_full_disk(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    here = a_here(tmp_path / "source")
    packed(here, tmp_path / "a.tar.gz", {f"vllm/{n}": os.urandom(300_000) for n in range(9)})
    small = tmp_path / "small"
    small.mkdir()
    mount = 'mount -t tmpfs -o size=1m,mode=755 none "$SMALL"; "$@"'
    script = mount + '; status=$?; ls -A "$SMALL"; exit $status'
    prefix = ("unshare", "-m", "sh", "-c", script, "sh", str(python311.path), "-m")
    seed = ("seed", "--for-other-place", str(tmp_path / "a.tar.gz"))
    pack = ("pack", str(small / "a"), "--place", here.place.name)
    for name, words, root in (("seed", seed, small), ("pack", pack, here.root)):
        done = subprocess.run(
            [*prefix, "rocm_autopatch", "cache", *words],
            capture_output=True,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "SMALL": str(small),
                "ROCM_AUTOPATCH_CACHE": str(root),
                "ROCM_AUTOPATCH_LOG": "quiet",
            },
        )
        if "unshare" in done.stderr:
            pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
        assert done.returncode == 1, done.stderr
        golden(done.stderr, name)
        # Only the empty place of the command's own start.
        left = [line for line in done.stdout.splitlines() if not line.startswith("torch-")]
        assert left == []


COMPILE = """
import torch

@torch.compile
def f(x):
    return (x.sin() + 1).sum()

f(torch.ones(64))
"""


def test_real_caches(torch_python: Interpreter, tmp_path: Path) -> None:
    """A program that was packed elsewhere finds all of it, at another path."""
    one, two, file = tmp_path / "one", tmp_path / "two", tmp_path / "a.tar.gz"
    words = ("warm", "--", torch_python.path, "-c", COMPILE)
    for home, expected in ((one, (0, 1)), (one, (1, 0)), (two, (1, 0))):
        if home == two:
            assert command(torch_python, one, "pack", file)[0] == 0
            assert command(torch_python, two, "seed", file)[0] == 0
        status, _, err = command(torch_python, home, *words)
        assert status == 0, err
        row = places.warm_runs(place_of(torch_python, home))[-1]
        for cache in ("fx_graph_cache", "aotautograd_cache"):
            assert (row[cache]["hit"], row[cache]["miss"]) == expected, (home, row, err)


def test_warm_needs_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "warm"]) == 2
    assert capsys.readouterr().err == (
        "rocm-autopatch cache warm: the COMMAND is missing: rocm-autopatch cache warm -- COMMAND\n"
    )


def test_path_as_json(python311: Interpreter, tmp_path: Path) -> None:
    status, out, err = command(python311, tmp_path, "path", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {"path": str(place_of(python311, tmp_path))}
