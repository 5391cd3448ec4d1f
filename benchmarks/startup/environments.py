"""The venvs that are measured, and what is put into them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
RUNNING = "%d.%d" % sys.version_info[:2]
HIP = "7.0.51831-a3e329ad8"
# Not copied: no wheel is made from it.
_NO_SOURCE = (".*", "build", "dist", "*.egg-info", "__pycache__")


class NotMade(Exception):
    """An environment can't be had on this machine; the text says why, in one line."""


@dataclass(frozen=True)
class Wheel:
    """Our package as a wheel, and a number that differs if its content does."""

    path: Path
    content: int


@dataclass(frozen=True)
class Place:
    """Where the venvs of one Python are made."""

    directory: Path
    python: str
    version: str
    wheel: Wheel


def python(venv: Path) -> Path:
    return venv / "bin" / "python"


def site_packages(venv: Path) -> Path:
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


def version_of(venv: Path, name: str) -> str:
    """The version of a distribution in a venv."""
    (found,) = metadata.distributions(name=name, path=[str(site_packages(venv))])
    return found.version


def build_wheel(directory: Path) -> Wheel:
    # pip builds in the directory that it is given. In the checkout, another build may be running.
    source = directory / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*_NO_SOURCE))
    wheels = directory / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    pip("wheel", "--no-deps", "-w", str(wheels), str(source))
    (path,) = wheels.glob("*.whl")
    with ZipFile(path) as archive:
        # A wheel's bytes differ from build to build, by the times in it.
        content = sum(entry.CRC for entry in archive.infolist())
    return Wheel(path, content)


def venv(place: Place, name: str, requirements: Sequence[str] = (), hip: str | None = HIP) -> Path:
    """A venv with a stand-in for torch and what *requirements* name; "" is our wheel."""
    made = place.directory / place.version / name
    stamp = made / "recipe.json"
    content = place.wheel.content if "" in requirements else None
    recipe = json.dumps([place.python, list(requirements), hip, content]) + "\n"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == recipe:
        return made
    shutil.rmtree(made, ignore_errors=True)
    print(f"making {made}", file=sys.stderr, flush=True)
    subprocess.run([place.python, "-m", "venv", "--without-pip", str(made)], check=True)
    if requirements:
        wanted = [requirement or str(place.wheel.path) for requirement in requirements]
        pip("--python", str(python(made)), "install", *wanted)
    _label_torch(site_packages(made), hip)
    stamp.write_text(recipe, encoding="utf-8")
    return made


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotMade((errors or [f"pip ended with status {done.returncode}"])[-1])


def find_python(version: str) -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [
        sys.executable if version == RUNNING else None,
        shutil.which(f"python{version}"),
        *sorted(map(str, pyenv.glob(f"{version}.*/bin/python3"))),
    ]
    for candidate in filter(None, candidates):
        # A pyenv shim exists for every version, and fails for one that is not selected.
        code = "import sys; print('%d.%d' % sys.version_info[:2])"
        asked = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
        if asked.stdout.strip() == version:
            return candidate
    raise NotMade(f"no Python {version} on this machine")


def _label_torch(directory: Path, hip: str | None) -> None:
    package = directory / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("from torch import version\n", encoding="utf-8")
    (package / "version.py").write_text(
        "from typing import Optional\n"
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n"
        f"__version__ = {'2.13.0+rocm7.0' if hip else '2.13.0+cpu'!r}\n"
        "debug = False\n"
        "cuda: Optional[str] = None\n"
        "git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'\n"
        f"hip: Optional[str] = {hip!r}\n",
        encoding="utf-8",
    )
