"""Build the wheel, the sdist and the SBOM of this checkout, and check them: ``make dist``.

    python -m tools.dist DIRECTORY

Everything is built twice, in two directories under other conditions, and must be the same byte by
byte. Nothing is written to DIRECTORY unless all checks pass. Times in the archives are those of
SOURCE_DATE_EPOCH, else of the commit. If the commit has a tag, what a release needs is checked.

It needs the extra ``release``, git, and a network that pip can use.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from configparser import ConfigParser
from email.message import Message
from email.parser import Parser
from pathlib import Path

from tools import changelog

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "tools" / "build.txt"
# Two builders who have nothing in common but the sources and the tools: the name of a directory, a
# umask, and variables.
BUILDERS = (
    ("a", 0o022, {"TZ": "UTC", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}),
    (
        "another, élsewhere",
        0o077,
        {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "2"},
    ),
)
# No mail address is published: problems are reported where the repository is. release_problems asks
# for links.
PYROMA_SKIPS = "AuthorEmail,Url"


class DistError(Exception):
    """Why nothing can be built or released; each line is one problem."""


def version(root: Path) -> str:
    """The version, which setup.cfg alone states."""
    setup = ConfigParser()
    setup.read(root / "setup.cfg", encoding="utf-8")
    return setup["metadata"]["version"]


def git(root: Path, *arguments: str) -> str:
    """What git prints. Raises DistError if it fails."""
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise DistError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def date(root: Path) -> int:
    """The time of the archives' files: SOURCE_DATE_EPOCH, else that of the commit."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or git(root, "log", "-1", "--format=%ct"))


def sources(root: Path) -> list[str]:
    """The files that are, or would be, in git: no build output, nothing that is ignored."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({name for name in listed.split("\0") if (root / name).is_file()})


def release_problems(root: Path) -> Iterator[str]:
    """What is missing for a release, if this commit has a tag: a text for each problem."""
    tags = git(root, "tag", "--points-at", "HEAD").split()
    if not tags:
        return
    stated = version(root)
    if f"v{stated}" not in tags:
        yield f"setup.cfg has version {stated}, the tag is {', '.join(tags)}"
    if git(root, "status", "--porcelain"):
        yield "there are changes that are not committed: git status"
    try:
        changelog.section((root / "CHANGELOG.md").read_text(encoding="utf-8"), stated)
    except changelog.ChangelogError as error:
        yield f"CHANGELOG.md: {error}"
    setup = ConfigParser()
    setup.read(root / "setup.cfg", encoding="utf-8")
    if not setup.get("metadata", "project_urls", fallback="").strip():
        yield "setup.cfg has no project_urls: RELEASING.md, before the first release"


def copy(root: Path, names: Sequence[str], target: Path, umask: int) -> None:
    """Copy the sources as somebody with *umask* would have them, without their times."""
    before = os.umask(umask)
    try:
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((root / name).read_bytes())
            if (root / name).stat().st_mode & 0o100:
                (target / name).chmod(0o777 & ~umask)
    finally:
        os.umask(before)


def build(root: Path, work: Path, seconds: int) -> list[Path]:
    """Build as each of BUILDERS, below *work*; where the archives of each are."""
    names = sources(root)
    made: list[Path] = []
    for name, umask, env in BUILDERS:
        tree, out = work / name / "tree", work / name / "dist"
        # The second one gets the files in another order.
        copy(root, names if not made else names[::-1], tree, umask)
        done = subprocess.run(
            [sys.executable, "-m", "build", "--outdir", out, tree],
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("LC_")},
                "SOURCE_DATE_EPOCH": str(seconds),
                "PIP_CONSTRAINT": str(CONSTRAINTS),
                **env,
            },
            cwd=work,
            umask=umask,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            raise DistError(f"build: {done.stdout.strip()}")
        made.append(out)
    return made


def members(archive: Path) -> dict[str, tuple[object, ...]]:
    """What an archive says of each of its files: to tell what differs."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {
                entry.filename: (entry.date_time, oct(entry.external_attr >> 16), entry.CRC)
                for entry in wheel.infolist()
            }
    with tarfile.open(archive) as sdist:
        return {
            entry.name: (
                entry.mtime,
                oct(entry.mode),
                entry.uname,
                entry.gname,
                digest(sdist, entry),
            )
            for entry in sdist
        }


def digest(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> str:
    stream = archive.extractfile(entry)
    return hashlib.sha256(stream.read() if stream else b"").hexdigest()


def compare(first: Path, second: Path) -> None:
    """Raise DistError, with what differs, unless both directories have the same files."""
    names = [sorted(path.name for path in place.iterdir()) for place in (first, second)]
    if names[0] != names[1]:
        raise DistError(f"two builds have other files: {names[0]} and {names[1]}")
    problems = []
    for name in names[0]:
        if (first / name).read_bytes() == (second / name).read_bytes():
            continue
        one, two = members(first / name), members(second / name)
        told = [
            f"{name}: {entry}: {one.get(entry, 'missing')} and {two.get(entry, 'missing')}"
            for entry in sorted({*one, *two})
            if one.get(entry) != two.get(entry)
        ]
        problems += told or [f"{name}: the same files, packed in another way or order"]
    if problems:
        raise DistError("\n".join(["two builds differ", *problems]))


def run(*command: str | Path) -> None:
    """Run a tool of the extra ``release``. Raises DistError, with what it said, if it fails."""
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
    if done.returncode:
        raise DistError(f"{command[0]}: {(done.stdout + done.stderr).strip()}")


def check(place: Path) -> None:
    """What PyPI and pip would find wrong."""
    wheel, sdist = next(place.glob("*.whl")), next(place.glob("*.tar.gz"))
    run("twine", "check", "--strict", wheel, sdist)
    run("check_wheel_contents", "--config", ROOT / "pyproject.toml", wheel)
    run("pyroma", "--min", "10", "--skip-tests", PYROMA_SKIPS, sdist)


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def bill(wheel: Path, work: Path, seconds: int) -> Path:
    """The SBOM beside the wheel: the wheel, and what pip installs with it, in CycloneDX."""
    found = metadata(wheel)
    venv, described = work / "venv", work / "pyproject.toml"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    run("pip", "--python", python, "install", "-q", "-c", CONSTRAINTS, wheel)
    # The tool reads what it describes from pyproject.toml alone; ours is in setup.cfg.
    described.write_text(
        f'[project]\nname = "{found["Name"]}"\nversion = "{found["Version"]}"\n'
        f'description = "{found["Summary"]}"\nlicense = "{found["License-Expression"]}"\n',
        encoding="utf-8",
    )
    made = wheel.with_name(f"{found['Name']}-{found['Version']}.cdx.json")
    os.environ["SOURCE_DATE_EPOCH"] = str(seconds)
    options: tuple[str | Path, ...] = ("--pyproject", described, "--mc-type", "library", "-o", made)
    run("cyclonedx_py", "environment", "--output-reproducible", *options, python)
    return made


def make(root: Path, target: Path, say: Callable[[str], None]) -> None:
    """Build, compare, check, and put everything into *target*. Raises DistError."""
    problems = list(release_problems(root))
    if problems:
        raise DistError("\n".join(problems))
    with tempfile.TemporaryDirectory() as directory:
        work, seconds = Path(directory), date(root)
        say(f"building version {version(root)} twice, SOURCE_DATE_EPOCH={seconds}")
        first, second = build(root, work, seconds)
        compare(first, second)
        say("both builds are the same; checking")
        check(first)
        bill(next(first.glob("*.whl")), work, seconds)
        target.mkdir(exist_ok=True)
        # The overlay takes the one wheel that is there. Archives of caches in dist/ stay.
        for old in target.glob("rocm_autopatch-[0-9]*"):
            old.unlink()
        for file in sorted(first.iterdir()):
            shutil.copy(file, target / file.name)
            say(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {target.name}/{file.name}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Build and check the wheel, the sdist and the SBOM."
    )
    parser.add_argument("directory", type=Path)
    try:
        make(ROOT, parser.parse_args().directory, lambda text: print(text, flush=True))
    except DistError as error:
        sys.exit(f"make dist: {error}")


if __name__ == "__main__":
    main()
