"""Where starts are tried: an environment with the wheel, which a case breaks and which is repaired.

Each worker process has one, in a mount namespace of its own, because a fuzzed path may be any path.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.torture import oracle
from experiments.torture.oracle import Outcome, Start

HERE = Path(__file__).parent
SITE = Path("/etc/rocm-autopatch")
_CLONE_NEWNS = 0x00020000

# A stand-in for torch: only what a start reads, and the modules for which hooks wait. Its config
# modules are like those of torch 2.4, a plain dict of values.
CONFIG = """
_default = {values!r}
_config = dict(_default)
_is_dirty = True
def __getattr__(name):
    try:
        return _config[name]
    except KeyError:
        raise AttributeError(name) from None
"""
INDUCTOR = {
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "memory_planning": False,
    "max_autotune_gemm_backends": "ATEN,TRITON,CPP",
    "coordinate_descent_tuning": False,
    "triton.cudagraphs": False,
    "triton.cudagraph_trees": True,
    "epilogue_fusion": True,
    "pattern_matcher": True,
    "reorder_for_locality": True,
    "aggressive_fusion": False,
}
TORCH = {
    "torch/__init__.py": (
        "from torch import version\n"
        "class _TorchCompileInductorWrapper:\n"
        "    def apply_mode(self, mode):\n        self.mode = mode\n"
        "    def __call__(self, model, inputs):\n        return model\n"
    ),
    "torch/_inductor/__init__.py": "",
    "torch/_inductor/config.py": CONFIG.format(values=INDUCTOR),
    "torch/_dynamo/__init__.py": "",
    "torch/_dynamo/config.py": CONFIG.format(values={"cache_size_limit": 8}),
    "torch/_dynamo/convert_frame.py": "def _compile(*args, **kwargs):\n    return args\n",
    "torch/_logging/__init__.py": "",
    "torch/_logging/_internal.py": (
        "import logging\n"
        "trace_log = logging.getLogger('torch.__trace')\n"
        "class LazyTraceHandler(logging.StreamHandler):\n    pass\n"
    ),
}


class Bench:
    """An environment, a directory for a case's files, and the results of starts without us.

    All of it is in *run*. ``site`` says whether this process has an /etc/rocm-autopatch of its own,
    which ``enter`` makes.
    """

    def __init__(self, template: Path, run: Path, site: bool) -> None:
        self.home = run / template.name
        self.home.mkdir()
        self.site = site
        self.venv = self.home / "venv"
        shutil.copytree(template, self.venv, symlinks=True)
        # pytest's directories are private, and some cases run as another user.
        self.venv.chmod(0o755)
        self.python = str(self.venv / "bin" / "python")
        (self.library,) = self.venv.glob("lib/python3*/site-packages")
        self.package = self.library / "rocm_autopatch"
        for name, text in TORCH.items():
            (self.library / name).parent.mkdir(parents=True, exist_ok=True)
            (self.library / name).write_text(text)
        self.directory = self.home / "case"
        self.watch = str(self.home / "watch.py")
        shutil.copy(HERE / "watch.py", self.watch)
        self.version = self.library.parent.name.replace("python", "")
        # Compile everything, so that a program loads the same files at each start.
        for flags in ((), ("-O",), ("-OO",)):
            command = [self.python, *flags, "-m", "compileall", "-q", str(self.library)]
            subprocess.run(command, env={"ROCM_AUTOPATCH": "off"}, stdout=subprocess.DEVNULL)
        self._pristine = self.home / "pristine"
        shutil.copytree(self.library, self._pristine, symlinks=True)
        self._off: dict[object, Outcome] = {}
        self.last: list[tuple[Start, Outcome]] = []
        self.clean()

    def clean(self) -> None:
        """An empty directory for a case, and an empty /etc/rocm-autopatch."""
        self.last = []
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()
        if self.site:
            for entry in SITE.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            SITE.chmod(0o755)

    @contextlib.contextmanager
    def broken(self, *names: str) -> Iterator[None]:
        """Restore these files of site-packages at the end, whatever was done to them."""
        try:
            yield
        finally:
            for name in names:
                self._restore(name)

    def _restore(self, name: str) -> None:
        here, there = self.library / name, self._pristine / name
        if here.is_dir() and not here.is_symlink():
            here.chmod(0o755)
            shutil.rmtree(here)
        elif here.exists() or here.is_symlink():
            here.unlink()
        if there.is_dir():
            shutil.copytree(there, here, symlinks=True)
        elif there.exists():
            shutil.copy2(there, here)

    def start(
        self,
        *arguments: str,
        flags: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        program: str = "",
        **more: Any,
    ) -> Start:
        """A start of watch.py or another *program*, with *arguments*, in this environment."""
        # No PATH: the program starts nothing by name.
        command = (self.python, *flags, program or self.watch, *arguments)
        return replace(Start(command, {**self._env(), **(env or {})}), **more)

    def _env(self) -> dict[str, str]:
        return {"LC_ALL": "C.UTF-8", "HOME": str(self.home)}

    def judge(self, start: Start, key: object = None) -> list[str]:
        """Run a start with and without us. Starts with the same *key* share the run without us."""
        if key is None:
            off = self.run(start.off())
        elif key in self._off:
            off = self._off[key]
        else:
            # Without the variables of this one case, so that it fits all of them.
            off = self._off[key] = self.run(replace(start, env=self._env()).off())
        return oracle.judge(start, self.run(start), off)

    def run(self, start: Start, patience: float = oracle.PATIENCE) -> Outcome:
        """Run a start, and remember it, to show how a case failed."""
        outcome = oracle.run(start, patience)
        self.last.append((start, outcome))
        return outcome

    def keep(self, directory: Path, name: str, wrong: list[str]) -> Path:
        """Write everything that a case was made from to *directory*."""
        to = directory / name.replace("/", "_")
        shutil.rmtree(to, ignore_errors=True)
        to.mkdir(parents=True)
        (to / "wrong.txt").write_text("\n".join(wrong) + f"\n\n{again(name)}\n")
        with (to / "starts.txt").open("w", errors="backslashreplace") as stream:
            for start, outcome in self.last:
                print(*map(ascii, start.command), file=stream)
                for variable, value in start.env.items():
                    print(f"  {variable}={value!r}", file=stream)
                print(outcome, file=stream)
        for source in (self.directory, SITE):
            if source.exists():
                _copy_regular(source, to / source.name)
        return to


def again(name: str) -> str:
    """The command that runs a case again."""
    return f"python -m experiments.torture --case {name}"


def _copy_regular(source: Path, to: Path) -> None:
    # No pipes, and no links to other places.
    for path in source.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 22:
            (to / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(OSError):
                shutil.copy(path, to / path.relative_to(source))


def enter(run: Path, keep: Path, bases: Iterable[Path]) -> bool:
    """Prevent this process from harming the machine. Returns whether that is possible here.

    The process gets a mount namespace of its own. Only files below *run* and *keep* can be written,
    /etc is a copy, and every user can reach the interpreters at *bases*. No directory of the
    machine stays mounted below *run*, and only a process outside of the namespace removes *run*.
    """
    if os.getuid() != 0 or ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) != 0:
        return False
    _mount("--make-rprivate", "/")
    for writable in (run, keep):
        _mount("--bind", writable, writable)
    etc = run / "etc"
    etc.mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "none", etc)
    subprocess.run(["cp", "-a", "/etc/.", etc], check=True)
    (etc / SITE.name).mkdir(exist_ok=True)
    _mount("--move", etc, "/etc")
    _own_devices(run)
    _open_to_all(run, bases)
    _protect(run, keep)
    os.environ["TMPDIR"] = tempfile.tempdir = str(run)
    return True


def _own_devices(run: Path) -> None:
    """Give this process a /dev of its own, because cases replace names in it."""
    devices = run / "dev"
    devices.mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "none", devices)
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        subprocess.run(["cp", "-a", f"/dev/{name}", devices], check=True)
    (devices / "shm").mkdir(mode=0o1777)
    for name, to in {"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"}.items():
        (devices / name).symlink_to(f"/proc/self/fd{to}")
    _mount("--move", devices, "/dev")


def _open_to_all(run: Path, bases: Iterable[Path]) -> None:
    """Let every user reach the interpreters, which may be in root's own home."""
    shut = {}
    for base in bases:
        ways = [way for way in base.parents if not way.stat().st_mode & 0o1]
        if ways:
            shut[base] = ways[-1]
    aside = {base: run / f"base{number}" for number, base in enumerate(shut)}
    for base, there in aside.items():
        there.mkdir()
        _mount("--bind", base, there)
        _mount("-o", "remount,ro,bind", there)
    for way in set(shut.values()):
        _mount("-t", "tmpfs", "-o", "mode=755", "none", way)
    for base, there in aside.items():
        base.mkdir(parents=True)
        _mount("--move", there, base)


def _protect(*writable: Path) -> None:
    """Make everything read-only but these directories and what is no disk."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    for point in {line.split(" ")[4] for line in lines}:
        own = any(
            os.path.join(point, "").startswith(f"{path}/") for path in (*writable, "/etc", "/dev")
        )
        if not own and point != "/proc" and not point.startswith("/proc/"):
            _mount("-o", "remount,ro,bind", point)


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *arguments], check=True)


def make_template(directory: Path, version: str, root: Path) -> Path:
    """An environment of a Python *version* with the wheel of *root* in it."""
    from tests import conftest

    place = directory / f"python{version}"
    shutil.rmtree(place, ignore_errors=True)
    # A new wheel each time: the sources may have changed.
    with tempfile.TemporaryDirectory() as wheels:
        with conftest.building():
            command = [sys.executable, *("-m", "pip", "wheel", "-q", "--no-deps"), f"-w{wheels}"]
            subprocess.run([*command, str(root)], check=True, stdout=sys.stderr)
        (wheel,) = Path(wheels).glob("*.whl")
        conftest.make_hooked(place, wheel, conftest.find_python(version))
    return place
