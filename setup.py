"""What setup.cfg can't say: lower the built-in policies, leave comments out, hook editable installs
too, and write the same archives for everybody who builds them.
"""

import bz2
import gzip
import hashlib
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any, Optional
from zipfile import ZipFile

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
# Build backends don't have the project's directory on sys.path. If a release is installed here, its
# hook has already imported that release, which must not lower this checkout's policies.
sys.path.insert(0, str(ROOT))
for name in [name for name in sys.modules if name.partition(".")[0] == "rocm_autopatch"]:
    del sys.modules[name]

from tools import lean_source, readme  # noqa: E402


class BuildPyWithPlans(build_py):
    """Writes the built-in policies as plans, so that a start has no YAML to read."""

    def run(self) -> None:
        # setuptools keeps build/lib: a module removed since the last build would be shipped again.
        shutil.rmtree(Path(self.build_lib, "rocm_autopatch"), ignore_errors=True)
        super().run()
        # An editable install reads policies/*.yaml at each start, so no plan can be out of date.
        if not self.editable_mode:
            self._leave_out_comments()
            self._pack_pages()
            for path, data in self._plans().items():
                Path(path).parent.mkdir(exist_ok=True)
                Path(path).write_bytes(data)

    def _leave_out_comments(self) -> None:
        package = Path(self.build_lib, "rocm_autopatch")
        for file in package.rglob("*.py"):
            public = file.relative_to(package).as_posix() in lean_source.PUBLIC
            source = file.read_text(encoding="utf-8")
            file.write_text(lean_source.lean_source(source, public), encoding="utf-8")
        for file in [*package.rglob("*.cpp"), *package.rglob("*.h")]:
            source = file.read_text(encoding="utf-8")
            file.write_text(lean_source.lean_cpp(source), encoding="utf-8")
        # The policies beside them are for users, and keep theirs.
        for file in package.glob("probe/*.yaml"):
            source = file.read_text(encoding="utf-8")
            file.write_text(lean_source.lean_yaml(source), encoding="utf-8")

    def _pack_pages(self) -> None:
        from rocm_autopatch.cli import manual

        package = Path(self.build_lib, "rocm_autopatch")
        pages = sorted((package / "pages").glob("*.md"))
        texts = {path.stem: path.read_text(encoding="utf-8") for path in pages}
        packed = bz2.compress(json.dumps(texts, ensure_ascii=False).encode())
        (package / manual.PACKED).write_bytes(packed)
        shutil.rmtree(package / "pages")

    def get_outputs(self, include_bytecode: Any = 1) -> "list[str]":
        outputs = super().get_outputs(include_bytecode)
        if self.editable_mode:
            return outputs
        from rocm_autopatch.cli import manual

        package = Path(self.build_lib, "rocm_autopatch")
        left = [path for path in outputs if Path(path).parent != package / "pages"]
        return [*left, str(package / manual.PACKED), *self._plans()]

    def _plans(self) -> "dict[str, bytes]":
        from rocm_autopatch.policy import builtin

        package = Path(self.build_lib, "rocm_autopatch")
        plans = dict(builtin.files())
        # A baked plan is checked against this: it serves only the package that made it.
        sources = [file.read_bytes() for file in sorted(package.rglob("*.py"))]
        whole = hashlib.sha256(b"".join([*sources, *plans.values()]))
        plans["id"] = whole.hexdigest()[:16].encode()
        return {str(package / "plans" / name): data for name, data in plans.items()}


class EditableWheelWithStartup(editable_wheel):
    """Adds the start-up files to the wheel of an editable install, which has no package data."""

    def run(self) -> None:
        super().run()
        (wheel,) = Path(self.dist_dir).glob("rocm_autopatch-*.whl")
        with ZipFile(wheel, "a") as archive:
            for name in ("rocm_autopatch.pth", "rocm_autopatch.start"):
                archive.write(ROOT / name, name)


def mode(path: "str | Path") -> int:
    """The mode of a file in an archive: not that of the builder's umask."""
    return 0o755 if os.path.isdir(path) or os.stat(path).st_mode & 0o100 else 0o644


class SameWheel(bdist_wheel):
    """setuptools takes the times from SOURCE_DATE_EPOCH, but the modes from the builder's files.

    The start-up files come after the package: pip writes in the order of the archive, and a Python
    that starts meanwhile must not find them alone.
    """

    def run(self) -> None:
        super().run()
        assert self.dist_dir
        path = Path(self.dist_dir, "-".join([self.wheel_dist_name, *self.get_tag()]) + ".whl")
        with ZipFile(path) as archive:
            members = [(one, archive.read(one)) for one in archive.infolist()]
        # The order of the others stays: .dist-info is the last.
        members.sort(key=lambda one: (".dist-info/" in one[0].filename, "/" not in one[0].filename))
        with ZipFile(path, "w") as archive:
            for one, data in members:
                archive.writestr(one, data, compresslevel=9)

    def write_wheelfile(self, *arguments: Any, **options: Any) -> None:
        super().write_wheelfile(*arguments, **options)
        # All files of the wheel are there now, and the archive is written next.
        assert self.bdist_dir
        for path in Path(self.bdist_dir).rglob("*"):
            path.chmod(mode(path))


class SameSdist(sdist):
    """With SOURCE_DATE_EPOCH, an sdist without the builder's times, names, modes and order."""

    def make_archive(
        self,
        base_name: "str | os.PathLike[str]",
        format: str,
        root_dir: Any = None,
        base_dir: Optional[str] = None,
        owner: Optional[str] = None,
        group: Optional[str] = None,
    ) -> str:
        date = os.environ.get("SOURCE_DATE_EPOCH")
        if date is None or format != "gztar" or base_dir is None or root_dir is not None:
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)
        name = f"{os.fspath(base_name)}.tar.gz"
        os.makedirs(os.path.dirname(name), exist_ok=True)
        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=int(date)) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for path in sorted(Path(base_dir).rglob("*")):
                if not path.is_dir():
                    entry = tarfile.TarInfo(path.as_posix())
                    entry.size, entry.mtime, entry.mode = path.stat().st_size, int(date), mode(path)
                    with path.open("rb") as stream:
                        archive.addfile(entry, stream)
        return name


setup(
    long_description=readme.for_index(ROOT),
    cmdclass={
        "bdist_wheel": SameWheel,
        "build_py": BuildPyWithPlans,
        "editable_wheel": EditableWheelWithStartup,
        "sdist": SameSdist,
    },
)
