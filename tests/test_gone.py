"""Our files are gone, damaged, or may not be read: at a start, and in a process that runs.

The program starts, prints what it prints without us, and nobody reads a traceback of ours. Root may
read everything, so there the tests run without that right.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import HIP, MAX, Interpreter, find_python, make_hooked
from tests.programs import program_file

RIGHTS = "-dac_override,-dac_read_search"
CODE = "import torch; print(1, torch.version.hip)"


@pytest.fixture(scope="module", params=["3.9", "3.11", "3.13"])
def whole(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Interpreter:
    directory = tmp_path_factory.mktemp("gone")
    return make_hooked(directory / "venv", wheel, find_python(request.param))


@pytest.fixture
def powerless(whole: Interpreter, tmp_path: Path) -> Iterator[Interpreter]:
    """A hooked interpreter that obeys the modes of files; what a test breaks is mended after it."""
    package, saved = whole.site_packages / "rocm_autopatch", tmp_path / "saved"
    shutil.copytree(package, saved, symlinks=True)
    path = whole.path
    if os.getuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("root without setpriv may read everything")
        path = tmp_path / "bin" / "python"
        path.parent.mkdir()
        path.write_text(f'#!/bin/sh\nexec setpriv --bounding-set={RIGHTS} {whole.path} "$@"\n')
        path.chmod(0o755)
    yield _Elsewhere(path, whole.site_packages)
    if package.is_dir() and not package.is_symlink():
        for directory, names, files in os.walk(package):
            for name in (".", *names, *files):
                Path(directory, name).chmod(0o755)
    _remove(package)
    shutil.copytree(saved, package, symlinks=True)


class _Elsewhere(Interpreter):
    """An interpreter that is started by another file."""

    def __init__(self, path: Path, site_packages: Path) -> None:
        super().__init__(path)
        object.__setattr__(self, "_site_packages", site_packages)

    @property
    def site_packages(self) -> Path:
        return Path(self._site_packages)  # type: ignore[attr-defined]


def _remove(package: Path) -> None:
    if package.is_symlink() or package.is_file():
        package.unlink()
    elif package.exists():
        shutil.rmtree(package)


def _each(package: Path, change: Callable[[Path], object], keep: str = "") -> None:
    """Do something to each of our files but one."""
    for path in sorted(package.rglob("*")):
        if path.is_file() and path.name != keep:
            change(path)


def _replace(package: Path, make: Callable[[Path], object]) -> None:
    _remove(package)
    make(package)


def _drop(package: Path, name: str) -> None:
    (package / name).unlink()
    shutil.rmtree(package / "__pycache__")


# There is no package to be found, or its first file can't be read: site says so, at each run of the
# line, as for any package's .pth file. To ask first would cost every start of every process.
ABSENT: dict[str, Callable[[Path], object]] = {
    "removed": _remove,
    "files of mode 000": lambda package: _each(package, lambda path: path.chmod(0)),
    "a link to nowhere": lambda package: _replace(package, lambda p: p.symlink_to("/nowhere")),
    "a link to itself": lambda package: _replace(package, lambda p: p.symlink_to(p)),
    "a file": lambda package: _replace(package, lambda p: p.write_text("")),
}

# import makes an empty namespace of it: nobody says anything.
GONE: dict[str, Callable[[Path], object]] = {
    "a directory that may not be searched": lambda package: package.chmod(0o600),
    "a directory of mode 000": lambda package: package.chmod(0),
    "an empty directory": lambda package: _replace(package, Path.mkdir),
    "without its __init__": lambda package: _drop(package, "__init__.py"),
}

# There is something: one line says what is wrong, or none.
DAMAGED: dict[str, Callable[[Path], object]] = {
    "no more than its __init__": lambda package: _each(package, Path.unlink, "__init__.py"),
    "files of mode 000 but its __init__": lambda package: _each(
        package, lambda path: path.chmod(0), "__init__.py"
    ),
    "an empty __init__": lambda package: (package / "__init__.py").write_text(""),
    "all files empty but its __init__": lambda package: _each(
        package, lambda path: path.write_bytes(b""), "__init__.py"
    ),
    "no plans": lambda package: shutil.rmtree(package / "plans"),
}


@pytest.mark.parametrize("name", ABSENT)
def test_start_where_site_says_it(powerless: Interpreter, name: str) -> None:
    ABSENT[name](powerless.site_packages / "rocm_autopatch")
    done = powerless.run("-c", CODE, env={MAX: "1"})
    assert done.stdout == f"1 {HIP}\n"
    said = [line for line in done.stderr.splitlines() if line and not line.startswith(" ")]
    pth = powerless.site_packages / "rocm_autopatch.pth"
    assert said == [f"Error processing line 1 of {pth}:", "Remainder of file ignored"] * 2


@pytest.mark.parametrize("switch", ["on", "off"])
@pytest.mark.parametrize("name", GONE)
def test_start_without_it(powerless: Interpreter, name: str, switch: str) -> None:
    GONE[name](powerless.site_packages / "rocm_autopatch")
    for flags in ((), ("-I",), ("-X", "dev", "-W", "error")) if switch == "on" else ((),):
        done = powerless.run(*flags, "-c", CODE, env={"ROCM_AUTOPATCH": switch, MAX: "1"})
        assert (done.stdout, done.stderr) == (f"1 {HIP}\n", "")


@pytest.mark.parametrize("switch", ["on", "off"])
@pytest.mark.parametrize("name", DAMAGED)
def test_start_with_a_damaged_one(powerless: Interpreter, name: str, switch: str) -> None:
    DAMAGED[name](powerless.site_packages / "rocm_autopatch")
    done = powerless.run("-c", CODE, env={"ROCM_AUTOPATCH": switch, MAX: "1"})
    assert done.stdout == f"1 {HIP}\n"
    _at_most_a_line(done.stderr)


def test_start_without_one_file(powerless: Interpreter) -> None:
    package = powerless.site_packages / "rocm_autopatch"
    for path in sorted(package.rglob("*.py")):
        if {"cli", "ab", "probe", "graphs"} & set(path.parts) or path == package / "__init__.py":
            continue
        aside = path.rename(path.with_suffix(".aside"))
        done = powerless.run("-c", CODE, env={MAX: "1"})
        aside.rename(path)
        assert done.stdout == f"1 {HIP}\n", path
        _at_most_a_line(done.stderr)


def _at_most_a_line(text: str) -> None:
    assert "Traceback" not in text
    # The one line of a policy that applies, and one on what failed.
    assert len(text.splitlines()) <= 2
    assert all(line.startswith("rocm_autopatch: ") for line in text.splitlines())


BETWEEN = (
    *("removed", "uninstalled", "unreadable", "unreadable files", "another release"),
    *("another release that fails", "damaged", "no more descriptors", "denied", "off sys.path"),
)


@pytest.mark.parametrize("name", BETWEEN)
def test_gone_while_it_runs(powerless: Interpreter, tmp_path: Path, name: str) -> None:
    site = powerless.site_packages
    shutil.copytree(site / "torch", tmp_path / "copy" / "torch")
    pth = (site / "rocm_autopatch.pth").read_bytes()
    code = program_file("gone/gone_while_it_runs.py").read_text()
    results = []
    for switch in ("off", "on"):
        done = powerless.run(
            *("-c", code, str(site), str(tmp_path / "copy"), name),
            env={"ROCM_AUTOPATCH": switch, MAX: "1"},
            check=False,
        )
        _at_most_a_line(done.stderr)
        results.append((done.stdout, done.returncode))
        (site / "rocm_autopatch.pth").write_bytes(pth)
        package, saved = site / "rocm_autopatch", tmp_path / "saved"
        if package.exists():
            package.chmod(0o755)
            _remove(package)
        shutil.copytree(saved, package)
    assert results[1] == results[0]
    if name != "no more descriptors":
        assert results[0][0].startswith("torch ['torch', 'torch.version']")
