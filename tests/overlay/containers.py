"""Images and containers without a Docker service: buildah makes images, runc runs them.

The store is below WORK/overlay and is kept, so a second run finds the base images there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEBIAN = "localhost/overlay-tests/debian12"
BASE = "localhost/overlay-tests/base"
# Debian's pip is for torch in the system's Python. YAML and packaging are copied to venvs.
PACKAGES = "python3,python3-venv,python3-pip,python3-yaml,python3-packaging"


class CanNot(Exception):
    """This machine can't build or run images; the text says why."""


@dataclass(frozen=True)
class Result:
    status: int
    stdout: str
    stderr: str

    @property
    def said(self) -> list[str]:
        return self.stderr.splitlines()


@dataclass(frozen=True)
class Image:
    """An image, mounted like the lowest layer of its containers."""

    store: Store
    reference: str

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = self.store.inspect(self.reference)["OCIv1"]["config"]
        return found

    def run(
        self,
        *arguments: str,
        root: Path | None = None,
        entrypoint: Sequence[str] | None = None,
        user: str = "0:0",
        read_only: bool = False,
        env: Mapping[str, str] | None = None,
        mounts: Mapping[str, Path] | None = None,
        read_only_mounts: Collection[str] = (),
        check: bool = True,
    ) -> Result:
        """Run like ``docker run --rm``: the image's variables, then *env*; ENTRYPOINT, arguments.

        *root* is a container that exists already. *read_only_mounts* are keys of *mounts*.
        """
        if root is None:
            with self.store.container(self.reference) as root:
                return self.run(
                    *arguments,
                    root=root,
                    entrypoint=entrypoint,
                    user=user,
                    read_only=read_only,
                    env=env,
                    mounts=mounts,
                    read_only_mounts=read_only_mounts,
                    check=check,
                )
        config = self.config
        variables = dict(line.split("=", 1) for line in config["Env"])
        variables.update({"HOME": "/root" if user.startswith("0") else "/", **(env or {})})
        first = config.get("Entrypoint", []) if entrypoint is None else entrypoint
        uid, gid = map(int, user.split(":"))
        with tempfile.TemporaryDirectory(dir=self.store.place) as bundle:
            subprocess.run(["runc", "spec"], cwd=bundle, check=True)
            file = Path(bundle, "config.json")
            spec = json.loads(file.read_text())
            spec["root"] = {"path": str(root), "readonly": read_only}
            spec["process"].update(
                terminal=False,
                user={"uid": uid, "gid": gid},
                args=[*first, *(arguments or config.get("Cmd", []))],
                env=[f"{name}={value}" for name, value in variables.items()],
                cwd=config.get("WorkingDir") or "/",
            )
            if uid == 0:
                # As in Docker, root may read and write files of other users.
                for kind in ("bounding", "effective", "permitted"):
                    spec["process"]["capabilities"][kind] += [
                        "CAP_DAC_OVERRIDE",
                        "CAP_CHOWN",
                        "CAP_FOWNER",
                    ]
            spec["mounts"] += [
                {
                    "destination": to,
                    "source": str(source),
                    "options": ["bind", "ro" if to in read_only_mounts else "rw"],
                }
                for to, source in (mounts or {}).items()
            ]
            file.write_text(json.dumps(spec))
            done = subprocess.run(
                ["runc", "--root", self.store.place / "runc", "run", f"test-{uuid.uuid4()}"],
                cwd=bundle,
                capture_output=True,
                text=True,
                timeout=120,
            )
        if check and done.returncode:
            raise AssertionError(f"status {done.returncode}\n{done.stdout}\n{done.stderr}")
        return Result(done.returncode, done.stdout, done.stderr)

    def layers(self) -> list[dict[str, Any]]:
        """The store's record of each layer, from the lowest."""
        place = self.store.place / "storage"
        driver = self.store.driver
        rows = json.loads((place / f"{driver}-layers" / "layers.json").read_text())
        by_id = {row["id"]: row for row in rows}
        images = json.loads((place / f"{driver}-images" / "images.json").read_text())
        wanted = self.store.inspect(self.reference)["FromImageID"]
        (top,) = [image["layer"] for image in images if image["id"] == wanted]
        found = []
        while top:
            found.append(by_id[top])
            top = by_id[top].get("parent", "")
        return found[::-1]


@dataclass
class Store:
    """Where images are, and how they are made."""

    place: Path
    driver: str = "overlay"

    @classmethod
    def open(cls, place: Path) -> Store:
        for program in ("buildah", "runc", "mmdebstrap"):
            if shutil.which(program) is None:
                raise CanNot(f"{program} is not installed")
        if os.getuid() != 0:
            raise CanNot("building images and starting runc as these tests do needs root")
        place.mkdir(parents=True, exist_ok=True)
        problem = ""
        for driver in ("overlay", "vfs"):
            store = cls(place, driver)
            done = store.buildah("from", "scratch", check=False)
            if done.returncode == 0:
                store.buildah("rm", done.stdout.strip())
                return store
            problem = done.stderr.strip()
        raise CanNot(f"buildah does not work here: {problem}")

    def buildah(
        self,
        *arguments: str | Path,
        prefix: Sequence[str] = (),
        check: bool = True,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        command = [
            *prefix,
            "buildah",
            *("--root", self.place / "storage", "--runroot", self.place / "run"),
            *("--storage-driver", self.driver, *arguments),
        ]
        options = {"env": {"PATH": os.environ["PATH"]}, **options}
        done = subprocess.run(command, capture_output=True, text=True, **options)
        if check and done.returncode:
            raise AssertionError(f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def bud(
        self, context: Path, tag: str, *arguments: str | Path, check: bool = True, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Build like a builder with an empty cache and no network."""
        return self.buildah(
            *(
                "bud",
                "--isolation",
                "chroot",
                "--pull-never",
                "--layers",
                "--no-cache",
                "--force-rm",
            ),
            *("-t", tag, *arguments, context),
            prefix=("unshare", "-n"),
            check=check,
            **options,
        )

    def close(self) -> None:
        """Keep what takes time to make. Leave no container, no mount and no other image."""
        self.buildah("rm", "--all")
        listed = self.buildah("images", "--noheading", "--format", "{{.Name}}:{{.Tag}}").stdout
        for name in listed.split():
            if not name.startswith((DEBIAN, BASE)) and "<none>" not in name:
                self.buildah("rmi", name)
        self.buildah("rmi", "--prune")
        # Otherwise nobody could remove the directory.
        subprocess.run(["umount", self.place / "storage" / self.driver], capture_output=True)

    def has(self, reference: str) -> bool:
        return self.buildah("inspect", "--type", "image", reference, check=False).returncode == 0

    def inspect(self, reference: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.buildah("inspect", "--type", "image", reference).stdout
        )
        return found

    @contextlib.contextmanager
    def container(self, reference: str) -> Iterator[Path]:
        """The root of a new container."""
        name = self.buildah("from", "--pull-never", reference).stdout.strip()
        try:
            yield Path(self.buildah("mount", name).stdout.strip())
        finally:
            self.buildah("rm", name)

    def debian(self) -> str:
        """A small Debian 12 with its Python, the lowest layer of every image here."""
        if not self.has(DEBIAN):
            tar = self.place / "debian12.tar"
            if not tar.exists():
                part = tar.with_suffix(".part.tar")
                command = ["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}"]
                options = [
                    "--aptopt=APT::Install-Recommends false",
                    "--dpkgopt=path-exclude=/usr/share/doc/*",
                ]
                done = subprocess.run(
                    [*command, *options, "bookworm", part], stderr=subprocess.PIPE, text=True
                )
                if done.returncode:
                    raise CanNot(f"mmdebstrap made no Debian 12: {done.stderr[-300:]}")
                part.rename(tar)
            name = self.buildah("from", "scratch").stdout.strip()
            self.buildah("add", "-q", name, tar, "/")
            self.buildah("commit", "-q", name, DEBIAN)
            self.buildah("rm", name)
        return DEBIAN

    def try_out(self) -> None:
        """Build a trivial image and start a container of it. Raises CanNot if that fails."""
        self.debian()
        trial = "localhost/overlay-tests/trial"
        with tempfile.TemporaryDirectory(dir=self.place) as context:
            Path(context, "Dockerfile").write_text(f"FROM {DEBIAN}\nRUN true\n")
            built = self.bud(Path(context), trial, check=False)
        if built.returncode:
            raise CanNot(f"buildah builds nothing here: {built.stderr[-300:]}")
        started = Image(self, trial).run("true", check=False)
        if started.status:
            raise CanNot(f"runc starts nothing here: {started.stderr[-300:]}")

    def base(self, reference: str, recipe: str, context: Path) -> Image:
        """The image that *recipe* makes above Debian, under a real image's name."""
        self.debian()
        digest = hashlib.sha256(recipe.encode())
        for file in sorted(context.rglob("*")):
            digest.update(f"{file.relative_to(context)}\0{file.lstat().st_mode}\0".encode())
            digest.update(file.read_bytes() if file.is_file() else b"")
        kept = f"{BASE}:{digest.hexdigest()[:20]}"
        if not self.has(kept):
            file = context.with_suffix(".Dockerfile")
            file.write_text(f"FROM {DEBIAN}\n{recipe}")
            self.buildah(
                *("bud", "--isolation", "chroot", "--pull-never", "-f", file, "-t", kept, context)
            )
        self.buildah("tag", kept, reference)
        return Image(self, reference)


def tree(root: Path) -> dict[str, tuple[Any, ...]]:
    """The files of a container: by path, the kind, the mode, the owner and the content."""
    found: dict[str, tuple[Any, ...]] = {}
    for directory, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(directory, name)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                content: object = os.readlink(path)
            else:
                # For the others, only the size: to read every file would take long.
                content = status.st_size if stat.S_ISREG(status.st_mode) else ""
            where = "/" + str(path.relative_to(root))
            found[where] = (status.st_mode, status.st_uid, status.st_gid, content)
    return found


def copy_prefix(python: str, to: Path) -> None:
    """A copy of a Python's installation, without the parts that no test needs."""
    prefix = Path(python).resolve().parent.parent
    unwanted = ("test", "tests", "__pycache__", "idlelib", "tkinter", "site-packages", "*.a")
    shutil.copytree(
        prefix / "lib",
        to / "lib",
        symlinks=True,
        ignore=shutil.ignore_patterns(*unwanted, "config-*", "pkgconfig", "*_test*"),
    )
    (to / "bin").mkdir()
    shutil.copy2(Path(python).resolve(), to / "bin" / "python3")
    (library,) = (to / "lib").glob("python3.*/os.py")
    pip = library.parent / "site-packages" / "pip"
    shutil.copytree(prefix / pip.relative_to(to), pip, ignore=shutil.ignore_patterns("__pycache__"))
