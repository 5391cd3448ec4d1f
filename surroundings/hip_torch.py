"""A torch that says it is a ROCm build: a stand-in for the label, not for the HIP runtime.

A HIP build of torch does not run without an AMD GPU's libraries. But torch's Python code asks only
``torch/version.py`` whether this is ROCm. So a torch for the CPU gets the version.py of a ROCm
build here: every ``torch.version.hip`` branch in Python is taken, ``torch.compile`` works and
compiles for the CPU, and ``torch.cuda.is_available()`` is False. The metadata that pip reads still
names the CPU build.

``python -m surroundings.hip_torch DIRECTORY`` makes ``cpu``, a venv with torch as pip installed it,
and ``hip``, the same with the label, in DIRECTORY.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

TORCH = "2.13.0"
REQUIREMENTS = (f"torch=={TORCH}", "numpy", "PyYAML", "packaging", "setuptools")
# version.py as ROCm builds have it.
LABEL = {"__version__": f"'{TORCH}+rocm7.0'", "hip": "'7.0.51831-a3e329ad8'"}
# Written last: a venv without it, or with another text in it, is half-built or out of date.
STAMP = "surroundings.json"


class SurroundingsError(Exception):
    """The surroundings can't be made on this machine; the text says why, in one line."""


def create(directory: Path) -> tuple[Path, Path]:
    """Make the venvs ``cpu`` and ``hip`` in *directory*, or find them there; return their paths.

    Processes that do this at once wait for one another. If one leaves a venv unfinished, the next
    one makes it anew. pip takes its index from the settings of this process.
    """
    directory = directory.resolve()
    cpu, hip = directory / "cpu", directory / "hip"
    with lock(directory / "surroundings.lock"):
        _check_compiler()
        if not finished(cpu):
            _say(f"installing {', '.join(REQUIREMENTS)} in {cpu}")
            _install(cpu)
            finish(cpu)
            _remove(hip)
        if not finished(hip):
            _say(f"copying it to {hip}, labelled {TORCH}+rocm7.0")
            copy(cpu, hip)
            _label(hip)
            finish(hip)
    return cpu, hip


def python(venv: Path) -> Path:
    """The interpreter of a venv."""
    return venv / "bin" / "python"


def site_packages(venv: Path) -> Path:
    """The directory in which a venv made here has its packages."""
    return venv / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"


def copy(source: Path, target: Path, copy_file: Callable[[str, str], object] = os.link) -> None:
    """Copy a venv by hard links, in a second and without its size; *target* is replaced.

    The copy's scripts start the copy's interpreter. Its files are the same as those of *source*:
    you may replace one, as pip does, but never edit it in place. With ``copy_file=shutil.copy2``
    they are the copy's own.
    """
    _remove(target)
    shutil.copytree(source, target, symlinks=True, copy_function=copy_file)
    (target / STAMP).unlink(missing_ok=True)
    before, after = os.fsencode(source), os.fsencode(target)
    for path in [target / "pyvenv.cfg", *(target / "bin").iterdir()]:
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if before in content:
            replace(path, content.replace(before, after))


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Wait for the lock file *path*, and hold it; the system releases it when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        # A pip that outlives us, as after kill -9, goes on writing: it holds the lock too.
        os.set_inheritable(stream.fileno(), True)
        yield


def pip(venv: Path, command: str, *arguments: str) -> None:
    """Run pip in a venv. pip takes its index from the settings of this process."""
    run([str(python(venv)), "-I", "-m", "pip", command, "-q", *arguments])


def _check_compiler() -> None:
    if shutil.which("g++") is None:
        raise SurroundingsError(
            "there is no C++ compiler g++, which torch.compile needs on a CPU; "
            "on Debian and Ubuntu: apt-get install g++"
        )
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").is_file():
        raise SurroundingsError(
            f"there is no Python.h in {headers}, which torch.compile needs on a CPU; "
            f"on Debian and Ubuntu: apt-get install python{sysconfig.get_python_version()}-dev"
        )


def _install(venv: Path) -> None:
    _remove(venv)
    # -I: a PYTHONPATH of the caller must not satisfy pip in the venv's place.
    run([sys.executable, "-I", "-m", "venv", str(venv)])
    # pip would compile one file after the other. torch's own tests are for later Pythons, too.
    pip(venv, "install", "--no-compile", *REQUIREMENTS)
    compile_all = ["-m", "compileall", "-q", "-j", "0", "-x", "/testing/_internal/"]
    run([str(python(venv)), "-I", *compile_all, str(site_packages(venv))])


def _label(venv: Path) -> None:
    path = site_packages(venv) / "torch" / "version.py"
    text = path.read_text(encoding="utf-8")
    for name, value in LABEL.items():
        text, count = re.subn(
            rf"^({name}\b[^=\n]*= ).*$", rf"\g<1>{value}", text, flags=re.MULTILINE
        )
        if count != 1:
            raise SurroundingsError(f"{path} has {count} lines that set {name}, expected one")
    replace(path, text.encode())
    # Everything else is compiled. So no file appears or disappears while somebody copies the
    # venv that is in use.
    py_compile.compile(str(path), doraise=True)


def replace(path: Path, content: bytes) -> None:
    """Give *path* new content in a new file, as the old one may have other names."""
    mode = path.stat().st_mode
    path.unlink()
    path.write_bytes(content)
    path.chmod(mode)


def finished(venv: Path, recipe: object = None) -> bool:
    """Whether *venv* was made to its end, here, and by the same *recipe*."""
    path = venv / STAMP
    return (
        python(venv).exists()
        and path.is_file()
        and path.read_text(encoding="utf-8") == _stamp(venv, recipe)
    )


def finish(venv: Path, recipe: object = None) -> None:
    """Say that *venv* is made to its end."""
    (venv / STAMP).write_text(_stamp(venv, recipe), encoding="utf-8")


def _stamp(venv: Path, recipe: object) -> str:
    # Scripts hold the venv's path, and compiled modules belong to one Python.
    whole = {
        "requirements": REQUIREMENTS,
        "label": LABEL,
        "recipe": recipe,
        "path": str(venv),
        "python": sys.version,
    }
    return json.dumps(whole, indent=2) + "\n"


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def run(command: list[str]) -> None:
    """Run a command; its output goes to stderr.

    Raises:
        SurroundingsError: it fails.
    """
    # As progress does: stdout is for the paths.
    status = subprocess.run(command, stdout=sys.stderr, close_fds=False, check=False).returncode
    if status:
        raise SurroundingsError(f"{' '.join(command)} ended with status {status}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Make the venvs and print their paths."""
    parser = argparse.ArgumentParser(description="make the venvs cpu and hip in a directory")
    parser.add_argument("directory", type=Path)
    try:
        cpu, hip = create(parser.parse_args().directory)
    except SurroundingsError as error:
        print(f"surroundings: {error}", file=sys.stderr)
        return 1
    print(cpu, hip, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
