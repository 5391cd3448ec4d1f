"""A place as an image: an OCI layout in one .tar, whose one layer has the place and nothing else.

The layer's root is a directory of places, so the image serves as a volume mounted at the read-only
layer's path, and for ``COPY --from`` to that path (docs/caches.md). The same files give the same
bytes, with the same zlib: all times and owners are 0.

The formats are those of the OCI image specification, 1.0 and later
(https://github.com/opencontainers/image-spec).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from rocm_autopatch.caches import FACTS, archive, places
from rocm_autopatch.startup import caches

_TYPES = "application/vnd.oci.image."
# What Go, and so an image's configuration, calls a machine.
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_TITLES = "org.opencontainers.image."


def pack_image(place: places.CachePlace, file: Path, tell: archive.Tell) -> archive.PackedArchive:
    """Write a place to *file* as an image, all of it or nothing. ``sha256`` of what is returned is
    the image's digest.

    Nothing may write to the place meanwhile. Raises CacheRefused and OSError.
    """
    done = archive.PackedArchive()
    with archive.packed_files(place, file, done) as (scratch, members, listed):
        layer = scratch / "layer"
        diff = _write_layer(layer, place, members, listed, lambda size: tell(size, done.unpacked))
        blobs = {_file_digest(layer): layer}
        config = _store(scratch, blobs, _configuration(place, diff))
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPES}manifest.v1+json",
            "config": _descriptor("config.v1+json", config, blobs),
            "layers": [_descriptor("layer.v1.tar+gzip", next(iter(blobs)), blobs)],
            "annotations": _annotations(place),
        }
        done.sha256 = _store(scratch, blobs, manifest)
        index = {
            "schemaVersion": 2,
            "mediaType": f"{_TYPES}index.v1+json",
            "manifests": [
                {
                    **_descriptor("manifest.v1+json", done.sha256, blobs),
                    "annotations": {f"{_TITLES}ref.name": "latest"},
                }
            ],
        }
        made = scratch / "archive"
        with tarfile.open(made, "w", format=tarfile.PAX_FORMAT) as tar:
            _add_text(tar, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
            _add_text(tar, "index.json", json.dumps(index, sort_keys=True).encode())
            for digest, path in sorted(blobs.items()):
                member = archive.member_info(f"blobs/sha256/{digest}", path.stat().st_size)
                with open(path, "rb") as stream:
                    tar.addfile(member, stream)
        done.size = made.stat().st_size
        made.chmod(0o644)
        os.replace(made, file)
    return done


def _write_layer(
    layer: Path,
    place: places.CachePlace,
    members: Mapping[str, Path],
    listed: Mapping[str, archive.ListedFile],
    tell: archive.TellOne,
) -> str:
    """Write the layer's file; return the digest of its .tar."""
    with open(layer, "wb") as stream, gzip.GzipFile("", "wb", 6, stream, mtime=0) as squeezed:
        hashing = archive.HashingWriter(squeezed)
        with tarfile.open(fileobj=hashing, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[call-overload]
            name = place.path.name
            parts = [
                part.partition("/")[0] for _, part, use, _ in caches.PARTS if use != caches.PRIVATE
            ]
            above = {name, *(f"{name}/{part}" for part in parts)}
            above.update(f"{name}/{one}" for path in members for one in _parents(path))
            for directory in sorted(above):
                member = archive.member_info(directory, 0)
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
            for own in (caches.MARK, FACTS):
                if (place.path / own).is_file():
                    _add_text(tar, f"{name}/{own}", (place.path / own).read_bytes())
            archive.add_members(tar, f"{name}/", members, listed, tell)
    return hashing.sum.hexdigest()


def _parents(name: str) -> Iterator[str]:
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _configuration(place: places.CachePlace, diff: str) -> dict[str, object]:
    machine = platform.machine()
    return {
        "architecture": _MACHINES.get(machine, machine),
        "os": "linux",
        "config": {"Labels": _annotations(place)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
    }


def _annotations(place: places.CachePlace) -> dict[str, str]:
    """What a registry shows: what the place is for."""
    gpu = places.filled_for(place.path).get("name", "")
    return {
        f"{_TITLES}title": place.path.name,
        f"{_TITLES}description": "compile caches of rocm_autopatch",
        **{f"rocm-autopatch.{name}": value for name, value in place.fields.items()},
        **({"rocm-autopatch.filled-for": str(gpu)} if gpu else {}),
    }


def _store(scratch: Path, blobs: dict[str, Path], said: Mapping[str, object]) -> str:
    """Keep a JSON object as a blob; return its digest."""
    data = json.dumps(said, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    blobs[digest] = scratch / digest
    blobs[digest].write_bytes(data)
    return digest


def _descriptor(kind: str, digest: str, blobs: Mapping[str, Path]) -> dict[str, object]:
    size = blobs[digest].stat().st_size
    return {"mediaType": _TYPES + kind, "digest": f"sha256:{digest}", "size": size}


def _file_digest(path: Path) -> str:
    with open(path, "rb") as stream:
        return _stream_digest(stream)


def _stream_digest(stream: IO[bytes]) -> str:
    found = hashlib.sha256()
    while data := stream.read(1 << 20):
        found.update(data)
    return found.hexdigest()


def _add_text(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(archive.member_info(name, len(data)), io.BytesIO(data))
