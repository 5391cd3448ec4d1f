"""Real interpreters with the real wheel in them.

``python`` is each supported Python in turn. Its stand-in for torch has only what a start looks at:
the text of ``torch/version.py`` and a package that can be imported. ``torch_python`` (in test_torch
and other modules) has the real torch 2.13.0 with a HIP label.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
import yaml

from surroundings import hip_torch
from tests import failures, forked, kept_compiler
from tests.measuring import measure

if TYPE_CHECKING:
    from syrupy.assertion import SnapshotAssertion

    from tests.messages import Golden

pytest.register_assert_rewrite("tests.messages")
# An example may take long on a busy machine.
hypothesis.settings.register_profile("default", deadline=None)

ROOT = Path(__file__).parent.parent
WORK = Path(os.environ.get("ROCM_AUTOPATCH_TEST_WORK", ROOT / ".work"))
# What programs get of the tests' own environment, and a place for caches.
CLEAN = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(WORK.absolute() / "cache")}
# Commands that tests run in this process write as wide as where there is no terminal.
os.environ.pop("COLUMNS", None)
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
# For what takes long and hardly depends on the Python: the oldest and the newest one.
ENDS = (VERSIONS[0], VERSIONS[-1])
OLD_AND_NEW = pytest.mark.parametrize("python", ENDS, indirect=True)
# The Pythons between them are for the nightly, and for "make starts", which a pull request runs on
# each. The tests' own Python has tests of its own ("python311").
_BETWEEN = [pytest.param(one, marks=pytest.mark.nightly) for one in VERSIONS if one not in ENDS]
HIP = "7.0.51831-a3e329ad8"
TORCH = "2.13.0+rocm7.0"
# The variable of SGLang's images that most tests are about, and programs that print it and the
# report.
MAX = "TORCHINDUCTOR_MAX_AUTOTUNE"
SEEN = f"import os; print(os.environ.get({MAX!r}))"
REPORT = "import json, rocm_autopatch; print(json.dumps(rocm_autopatch.status()))"
# Fixtures that take long to make: the built wheel, which all our interpreters and the real torch
# use, and container images.
SLOW = {"wheel", "store"}
# What "make test" leaves out: by how a test's id begins, the mark that says when it runs.
LEFT_OUT = {
    f"tests/{test}": row["runs"]
    for row in yaml.safe_load((ROOT / "tests" / "left_out.yaml").read_text(encoding="utf-8"))
    for test in row["tests"]
}
# Of those, the ones with which each test takes seconds: compiles and images.
LONG = {"torch_python", "amd_python", "store"}


# A plugin can't be named here, in a directory of the root's.
pytest_runtest_makereport = failures.pytest_runtest_makereport
pytest_terminal_summary = failures.pytest_terminal_summary


def pytest_configure() -> None:
    """Where tests write, and Ctrl-C, which what a shell starts in the background ignores."""
    _write_to_memory()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests that use a slow fixture as slow. A few others have the mark in their file.

    The longest files come first, so that all processes of a run end at about the same time.
    """
    long = set()
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if SLOW.intersection(fixtures):
            item.add_marker(pytest.mark.slow)
        if LONG.intersection(fixtures):
            long.add(item.path)
        for test, mark in LEFT_OUT.items():
            if item.nodeid.startswith(test):
                item.add_marker(mark)
    yield
    # Last: pytest itself brings the tests of each Python together, whatever their files are.
    items.sort(key=lambda item: (item.path not in long, item.path))


def _write_to_memory(place: str = "/dev/shm", free: int = 6 * 2**30) -> None:
    """Let tests write to a file system in memory where there is room: they copy the package often.

    Programs are started there, so a container's, which is mounted ``noexec``, does not do.
    """
    with contextlib.suppress(OSError):
        there = os.statvfs(place)
        if not there.f_flag & os.ST_NOEXEC and there.f_bavail * there.f_frsize > free:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", place)


@dataclass(frozen=True)
class Interpreter:
    """An interpreter of an environment of its own, with the variables that it always gets."""

    path: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *arguments: str | Path,
        env: Mapping[str, str] | None = None,
        check: bool = True,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run with *env* and, of the tests' own environment, only PATH. It does not run in the
        checkout, which -c and -m would find on sys.path, and has no cache in a home directory."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {**streams, "cwd": self.path.parent, "timeout": 1800, **options}
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [self.path, *arguments],
            env=self.environment(env),
            text=True,
            **options,
        )
        if check and done.returncode:
            # The report's last lines are this error, and not these lines.
            __tracebackhide__ = True
            raise AssertionError(forked.say_failure(" ".join(map(str, arguments)), done))
        return done

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**CLEAN, **self.env, **(env or {})}

    def value(self, code: str, *flags: str, env: Mapping[str, str] | None = None) -> str:
        """What the program prints, which must be all it prints to stdout."""
        return self.run(*flags, "-c", code, env=env).stdout.rstrip("\n")

    @property
    def site_packages(self) -> Path:
        (found,) = self.path.parent.parent.glob("lib/python3*/site-packages")
        return found


def find_python(version: str) -> str:
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [found, *sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")))]
    for candidate in filter(None, candidates):
        # A pyenv shim exists for every version, and fails for one that is not selected.
        asked = subprocess.run(
            [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True,
            text=True,
        )
        if asked.stdout.strip() == version:
            return candidate
    pytest.skip(f"no Python {version} on this machine")


def make_venv(directory: Path, base: str = sys.executable, *options: str) -> Interpreter:
    subprocess.run([base, "-m", "venv", "--without-pip", *options, directory], check=True)
    return Interpreter(directory / "bin" / "python")


def copy_interpreter(directory: Path) -> Interpreter:
    """An interpreter that is nobody's venv, with an empty site-packages of its own."""
    version = "python%d.%d" % sys.version_info[:2]
    library = directory / "lib" / version
    (library / "site-packages").mkdir(parents=True)
    (directory / "bin").mkdir()
    shutil.copy(os.path.realpath(sys.executable), directory / "bin" / "python")
    for entry in Path(os.__file__).parent.iterdir():
        if entry.name != "site-packages":
            (library / entry.name).symlink_to(entry)
    return Interpreter(directory / "bin" / "python")


def pip(python: Interpreter, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", python.path, *arguments, "-q"]
    subprocess.run([*command, "--disable-pip-version-check"], check=True, stdout=sys.stderr)


def label_torch(directory: Path, version: str, hip: str | None, cuda: str | None = None) -> Path:
    """A stand-in for torch in *directory*: an importable package with the text of version.py."""
    package = directory / "torch"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("from torch import version\n")
    (package / "version.py").write_text(
        "from typing import Optional\n"
        "__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']\n"
        f"__version__ = {version!r}\n"
        "debug = False\n"
        f"cuda: Optional[str] = {cuda!r}\n"
        "git_version = 'cf30153c4c131c8164ee7798e5022d810682e2cb'\n"
        f"hip: Optional[str] = {hip!r}\n"
    )
    return directory


def run_with_site(site: Path, *command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run with the files of *site* in /etc/rocm-autopatch, in a mount namespace of its own."""
    if os.getuid() != 0:
        pytest.skip("mounting over /etc needs root")
    script = (
        "mount -t tmpfs none /etc && mkdir /etc/rocm-autopatch && "
        'cp -rp "$1"/* /etc/rocm-autopatch && shift && exec "$@"'
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", site, *command],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], **env},
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    return done


# A program that leaves a file in two of the caches, as compilers do.
FILL = """
import os, sys
for name, part in (("TORCHINDUCTOR_CACHE_DIR", "ab/cab.py"), ("TRITON_CACHE_DIR", "K/k.hsaco")):
    path = os.environ[name] + "/" + part
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(b"x" * 1000)
"""


def run_in(
    directory: Path, python: Interpreter, *arguments: str | Path, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of ours in *directory*, with its temporary files there, too: none is left."""
    (directory / "tmp").mkdir(exist_ok=True)
    done = python.run(
        *("-m", "rocm_autopatch", *arguments),
        env={"TMPDIR": str(directory / "tmp"), "ROCM_AUTOPATCH_LOG": "quiet", **env},
        check=False,
        cwd=directory,
    )
    assert os.listdir(directory / "tmp") == []
    return done


def document(done: subprocess.CompletedProcess[str], status: int = 0) -> dict[str, Any]:
    """What a command printed as JSON; it has to end with *status*."""
    assert done.returncode == status, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def building() -> contextlib.AbstractContextManager[None]:
    """Hold the checkout for a build: setuptools writes into it, and other processes test too."""
    return hip_torch.lock(WORK / "build.lock")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once in a run, for all its processes."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    with hip_torch.lock(place / "wheel.lock"):
        if not (place / "wheel").exists():
            directory = tmp_path_factory.mktemp("wheel")
            command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w"]
            with building():
                subprocess.run([*command, directory, ROOT], check=True, stdout=sys.stderr)
            directory.rename(place / "wheel")
    (built,) = (place / "wheel").glob("*.whl")
    return built


def make_hooked(directory: Path, wheel: Path, base: str = sys.executable) -> Interpreter:
    """An environment with our wheel and a HIP-labelled stand-in for torch.

    The first one for a Python is made beside the wheel, and the others are copies: pip takes 2 s.
    """
    digest = hashlib.sha256(f"{base}\0".encode() + wheel.read_bytes()).hexdigest()
    model = wheel.parent / f"hooked-{digest[:16]}"
    with hip_torch.lock(model.with_suffix(".lock")):
        if not model.exists():
            made = make_venv(model.with_suffix(".part"), base)
            pip(made, "install", wheel)
            label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
            hip_torch.copy(model.with_suffix(".part"), model, shutil.copy2)
            shutil.rmtree(model.with_suffix(".part"))
    hip_torch.copy(model, directory, shutil.copy2)
    made = Interpreter(directory / "bin" / "python")
    measure(made.path, made.site_packages)
    return made


# By version, the environments that this process has made. Pytest makes a fixture with parameters
# again in each file.
_hooked: dict[str, Interpreter] = {}


@pytest.fixture(scope="session", params=[*ENDS, *_BETWEEN])
def python(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Interpreter:
    """Each supported Python, hooked."""
    version = request.param
    if version not in _hooked:
        base = find_python(version)
        made = make_hooked(tmp_path_factory.mktemp(f"python{version}-"), wheel, base)
        _hooked[version] = made
    return _hooked[version]


@pytest.fixture(scope="session")
def python311(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """The running version, hooked: for tests whose result is the same in all versions."""
    return make_hooked(tmp_path_factory.mktemp("python-"), wheel)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """The running version without us, with the same stand-in."""
    made = make_venv(tmp_path_factory.mktemp("bare-"))
    label_torch(made.site_packages, "2.13.0+rocm7.0", HIP)
    return made


@pytest.fixture
def golden(request: pytest.FixtureRequest, snapshot: SnapshotAssertion) -> Golden:
    """Compares a message with the one on file: ``golden(done.stderr)``."""
    from tests.messages import Golden  # needs syrupy, which an environment with a GPU may lack

    return Golden(snapshot, request.node.funcargs)


@pytest.fixture
def fresh(wheel: Path, tmp_path: Path) -> Iterator[Interpreter]:
    """A hooked environment of the test's own, to break."""
    yield make_hooked(tmp_path / "venv", wheel)
    shutil.rmtree(tmp_path / "venv")


# Torch makes a million objects that stay. To look through them time and again, and to take them
# apart at the end, is a third of what a process with torch costs.
QUICK = "import atexit, gc; gc.set_threshold(50000); atexit.register(gc.freeze)\n"


def quicken(python: Interpreter) -> None:
    """Let all processes of an environment with torch collect less garbage."""
    (python.site_packages / "a_quick.pth").write_text(QUICK)


def free_place(name: str) -> Path:
    """A directory below .work that no other process has got, as long as this one lives.

    Two runs of tests at once, or the processes of one, would replace each other's environments.
    """
    WORK.mkdir(exist_ok=True)
    for number in itertools.count(1):
        place = WORK.absolute() / f"{name}-{number}"
        taken = os.open(
            f"{place}.lock", os.O_RDWR | os.O_CREAT
        )  # Closed at the end, and not before.
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(taken, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return place
        os.close(taken)
    raise AssertionError("itertools.count has an end")


@pytest.fixture(scope="session")
def torch_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """The real torch 2.13.0, HIP-labelled, with our wheel beside it."""
    _, hip = hip_torch.create(WORK)
    made = free_place("tests")
    hip_torch.copy(hip, made)
    # With empty caches, torch would compile a dozen programs to see what this processor can do.
    # What one test compiles is not there for the next one.
    kept_compiler.install(WORK / "compiler", WORK / "cache" / "compiled")
    env = {
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
        "ROCM_AUTOPATCH_CACHE": "off",
        "PATH": f"{(WORK / 'compiler').absolute()}:{CLEAN['PATH']}",
    }
    python = Interpreter(made / "bin" / "python", env)
    pip(python, "install", "--no-deps", wheel)
    quicken(python)
    measure(python.path, python.site_packages)
    return python


@pytest.fixture(scope="module", autouse=True)
def no_fork_is_left() -> Iterator[None]:
    """Whatever a file has in forked.py is its own."""
    yield
    forked.close()
