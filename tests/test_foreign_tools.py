"""Other tools that change the start, imports and processes.

Each command runs twice in the same place, with ``ROCM_AUTOPATCH=off`` and with a policy that
applies. It must print the same and end with the same status. Each of its processes writes to a file
what it sees of torch and of the environment. This follows the policy; without us it is unchanged.

The tools are installed from PyPI. Each list of tools gets an environment of its own, once.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from surroundings import hip_torch
from tests.conftest import (
    HIP,
    MAX,
    WORK,
    Interpreter,
    free_place,
    label_torch,
    make_venv,
    pip,
)
from tests.programs import program_file

TOOLS = {
    "beartype": "0.23.1",
    "coverage": "7.17.3",
    "debugpy": "1.8.22",
    "eventlet": "0.41.3",
    "gevent": "26.9.0",
    "ipython": "9.18.1",
    "pip": "26.3",
    "pyinstaller": "6.22.3",
    "pytest": "9.2.0",
    "pytest-cov": "7.1.0",
    "shiv": "1.0.8",
    "typeguard": "4.6.0",
    "uvloop": "0.23.0",
    "wrapt": "2.5.2",
}

# What the built-in policy patches in torch 2.5, as far as these tests need it.
INIT = """
from torch import version
from torch.version import __version__
class _TorchCompileInductorWrapper:
    def apply_mode(self, mode: object) -> None:
        pass
"""
# A config module like those of torch 2.4 and 2.5.
CONFIG = """
_config = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN", "memory_planning": True}
_default = dict(_config)
_is_dirty = True
def __getattr__(name: str) -> object:
    try:
        return _config[name]
    except KeyError:
        raise AttributeError(name) from None
"""

# What a process sees without us: the variable, and two config values.
AS_WITHOUT = ("1", True, True)

PROGRAM = program_file("foreign_tools/program.py").read_text()


@pytest.fixture(scope="session")
def tools(wheel: Path) -> Interpreter:
    """An environment with the tools, our wheel and a stand-in for torch."""
    directory = WORK / "tools"
    stamp = directory / "tools.json"
    wanted = [f"{name}=={version}" for name, version in TOOLS.items()]
    with hip_torch.lock(WORK / "tools.lock"):
        if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
            shutil.rmtree(directory, ignore_errors=True)
            made = make_venv(directory)
            try:
                pip(made, "install", *wanted)
            except subprocess.CalledProcessError:
                # If one tool can't be installed, the others still are.
                for tool in wanted:
                    subprocess.run([*_PIP, made.path, "install", tool], stdout=sys.stderr)
            stamp.write_text(json.dumps(wanted))
        # Another run may have its own wheel in it.
        own = free_place("tools")
        hip_torch.copy(directory, own)
    made = Interpreter(own / "bin" / "python")
    # Its files are those of all copies: what is another one here has to be new.
    shutil.rmtree(made.site_packages / "torch", ignore_errors=True)
    pip(made, "install", "--force-reinstall", "--no-deps", wheel)
    site = label_torch(made.site_packages, "2.5.1+rocm6.2", HIP)
    texts = {"__init__": INIT, "_inductor/__init__": "", "_inductor/config": CONFIG}
    for name, text in texts.items():
        path = site / "torch" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return made


_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python")


# stdout, stderr, status, and a row for each process that noted what it saw.
Ran = tuple[str, str, int, "list[list[object]]"]


def wait_for_all(variable: str) -> None:
    """Wait until no process has *variable* in its environment.

    multiprocessing's resource tracker ends after the program, and coverage writes a file then.
    """
    deadline = time.monotonic() + 60
    while running := [*filter(partial(has, variable.encode()), Path("/proc").glob("[0-9]*"))]:
        assert time.monotonic() < deadline, running
        time.sleep(0.02)


def has(variable: bytes, process: Path) -> bool:
    try:
        return variable in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


class Place:
    """A directory in which a command runs twice."""

    def __init__(self, python: Interpreter, directory: Path) -> None:
        self.python = python
        self.template, self.work = directory / "template", directory / "work"
        self.template.mkdir()
        self.write("program.py", PROGRAM)

    def write(self, name: str, text: str) -> None:
        path = self.template / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def needs(self, *names: str) -> None:
        """Skip the test if a tool could not be installed."""
        for name in names:
            found = name.replace("-", "_")
            if not [*self.python.site_packages.glob(f"{found}-{TOOLS[name]}.dist-info")]:
                pytest.skip(f"{name} {TOOLS[name]} could not be installed")

    def run_switched(self, switch: str, *command: str) -> Ran:
        """stdout, stderr, status and what the processes saw."""
        seen = self.work / "seen.txt"
        env = {
            "HOME": str(self.work),
            "PYTHONDONTWRITEBYTECODE": "1",
            "ROCM_AUTOPATCH": switch,
            "SEEN": str(seen),
            MAX: "1",
        }
        done = self.python.run(*command, env=env, cwd=self.work, check=False, timeout=120)
        wait_for_all(f"SEEN={seen}")
        texts = [
            # Without times, addresses, and our one line.
            re.sub(
                r"\d+\.\d+s|0x[0-9a-f]+|(?m:^rocm_autopatch: policy safe applies .*\n)", "", text
            )
            for text in (done.stdout, done.stderr)
        ]
        rows = seen.read_text().splitlines() if seen.exists() else []
        return texts[0], texts[1], done.returncode, [json.loads(row) for row in rows]

    def same(self, *command: str, status: int = 0, config: bool = True) -> str:
        """stdout of the command, the same with us as without."""
        off, on = self.both(*command)
        self.compare(off, on, status, (None, not config, not config))
        return on[0]

    def both(self, *command: str) -> list[Ran]:
        """stdout, stderr, status and notes of the command, without us and with us."""
        results = []
        for switch in ("off", "on"):
            shutil.rmtree(self.work, ignore_errors=True)
            shutil.copytree(self.template, self.work)
            results.append(self.run_switched(switch, *command))
        return results

    def compare(
        self,
        off: Ran,
        on: Ran,
        status: int = 0,
        wanted: tuple[object, ...] = AS_WITHOUT,
    ) -> None:
        assert on[:3] == off[:3]
        assert off[2] == status, off[1]
        assert {tuple(row[1:]) for row in off[3]} == {AS_WITHOUT}
        assert {tuple(row[1:]) for row in on[3]} == {wanted}
        assert sorted(str(row[0]) for row in on[3]) == sorted(str(row[0]) for row in off[3])


@pytest.fixture
def place(tools: Interpreter, tmp_path: Path) -> Iterator[Place]:
    yield Place(tools, tmp_path)
    shutil.rmtree(tmp_path)


def test_plain(place: Place) -> None:
    assert place.same("program.py", "a", "b").startswith("main: torch 2.5.1+rocm6.2, SourceFile")


@pytest.mark.parametrize("arguments", ["-m program x", "-m pdb -c continue -m program", "-i -c"])
def test_python_itself(place: Place, arguments: str) -> None:
    command = arguments.split()
    place.same(*command, *(["import program; program.main()"] if command[-1] == "-c" else []))


class TestArchives:
    def test_zipapp(self, place: Place) -> None:
        place.write("app/__main__.py", PROGRAM)
        place.write("app/beside.py", "VALUE = 1\n")
        place.python.run("-m", "zipapp", "app", "-o", "app.pyz", cwd=place.template)
        place.same("app.pyz", "argument")

    def test_torch_in_an_archive(self, place: Place) -> None:
        # One loader for all of its modules.
        site = place.python.site_packages
        with zipfile.ZipFile(place.template / "app.pyz", "w") as archive:
            archive.writestr("__main__.py", PROGRAM)
            for path in (site / "torch").rglob("*.py"):
                archive.write(path, path.relative_to(site))
        place.same("app.pyz")

    def test_shiv(self, place: Place) -> None:
        place.needs("shiv")
        place.write("site/main.py", PROGRAM)
        command = ("-m", "shiv", "--site-packages", "site", "-e", "main:main", "-o", "app.pyz")
        place.python.run(*command, cwd=place.template)
        place.same("app.pyz", "argument")

    def test_pyinstaller(self, place: Place) -> None:
        place.needs("pyinstaller")
        # A frozen application runs no .pth line. It has our package only if something imports it.
        place.write("frozen.py", "import rocm_autopatch\n" + PROGRAM)
        place.work = place.template
        _, err, status, _ = place.run_switched("on", "-m", "PyInstaller", "frozen.py")
        assert status == 0, err
        place.python = Interpreter(place.template / "dist" / "frozen" / "frozen")

        def application(switch: str) -> Ran:
            (place.template / "seen.txt").unlink(missing_ok=True)
            return place.run_switched(switch, "argument")

        place.compare(application("off"), application("on"))


class TestDebuggersAndCoverage:
    def test_debugpy(self, place: Place) -> None:
        place.needs("debugpy")
        place.same("-m", "debugpy", "--listen", "localhost:0", "program.py", "argument")

    CHILD = program_file("foreign_tools/child.py").read_text()
    SETTINGS = "[run]\nbranch = true\nparallel = true\npatch = subprocess\nsource = .\n"

    def test_coverage(self, place: Place) -> None:
        place.needs("coverage")
        place.write("child.py", self.CHILD)
        place.write(".coveragerc", self.SETTINGS)
        place.write(
            "all.sh",
            '"$1" -m coverage run child.py && "$1" -m coverage combine -q &&'
            ' exec "$1" -m coverage report -m\n',
        )
        python = str(place.python.path)
        place.python = Interpreter(Path("/bin/sh"))
        out = place.same("all.sh", python)
        assert "program.py" in out

    def test_pytest_cov(self, place: Place) -> None:
        place.needs("coverage", "pytest", "pytest-cov")
        place.write("test_it.py", self.CHILD)
        place.write(".coveragerc", self.SETTINGS)
        options = ("-p", "no:cacheprovider", "--cov", "--cov-report=term-missing", "-q")
        assert "3 passed" in place.same("-m", "pytest", *options)

    def test_failing_tests(self, place: Place) -> None:
        place.needs("pytest")
        place.write(
            "test_it.py",
            "import program\ndef test_it():\n    import torch.absent\n"
            "def test_other():\n    assert program.note('x') == 1\n",
        )
        options = ("-p", "no:cacheprovider", "--import-mode=importlib", "-o", "pythonpath=.", "-q")
        assert "2 failed" in place.same("-m", "pytest", *options, status=1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("gevent", ()),
        ("gevent_after_torch", ()),
        ("eventlet", ()),
        ("uvloop", ()),
        ("beartype", ()),
        ("typeguard", ()),
        ("typeguard_everywhere", ()),
        ("wrapt", ()),
        ("wrapt", ("behind",)),
        ("lazy_loader", ()),
        ("multiprocessing", ()),
        ("multiprocessing", ("first",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_library(place: Place, name: str, arguments: tuple[str, ...]) -> None:
    place.needs(*[tool for tool in TOOLS if tool in name.split("_")])
    place.write("other.py", program_file(f"foreign_tools/with_{name}.py").read_text())
    if name == "beartype":
        # beartype_all() instruments our modules too. It can't resolve annotations with names that
        # only a type checker imports. Torch is not changed, one line says so, the program runs.
        off, on = place.both("other.py", *arguments)
        assert (on[0], on[2]) == (off[0], off[2])
        assert on[1].startswith("rocm_autopatch: torch is not changed: Beartype")
        assert len(on[1].splitlines()) == 1
        return
    # typeguard's finder comes before ours and asks PathFinder itself, so what it instruments is as
    # without us.
    place.same("other.py", *arguments, config=name != "typeguard_everywhere")


def test_gevent_runs_it(place: Place) -> None:
    place.needs("gevent")
    place.same("-m", "gevent.monkey", "program.py", "argument")


def test_typeguard_in_pytest(place: Place) -> None:
    place.needs("pytest", "typeguard")
    place.write(
        "test_it.py",
        "import program\ndef test_it():\n    program.note('a')\n"
        "def test_wrong():\n    program.note(1)\n",
    )
    options = ("-p", "no:cacheprovider", "--typeguard-packages=program", "-q")
    assert "TypeCheckError" in place.same("-m", "pytest", *options, status=1)


def test_ipython(place: Place) -> None:
    place.needs("ipython")
    place.write(".ipython/profile_default/startup/x.py", "started = 1\n")
    code = "import program; program.main(); print(started)"
    place.same("-m", "IPython", "--no-banner", "--colors=NoColor", "-c", code)


def test_venv_and_pip(place: Place) -> None:
    place.needs("pip")
    with zipfile.ZipFile(place.template / "small-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("small.py", "import program\nprogram.main()\n")
        info = "small-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    place.write(
        "all.sh",
        '"$1" -m venv --without-pip --system-site-packages made && find made | sort &&'
        ' "$1" -m pip install -q --no-index --target into ./small-1.0-py3-none-any.whl &&'
        ' find into | sort && PYTHONPATH=into "$1" -c "import small" &&'
        ' "$1" -m pip list --path into\n',
    )
    python = str(place.python.path)
    place.python = Interpreter(Path("/bin/sh"))
    place.same("all.sh", python)
