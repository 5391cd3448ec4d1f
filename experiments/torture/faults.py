"""Starts where calls fail, files are no regular files, streams are closed and limits are low.

A case's name is ``faults/PYTHON/KIND/ARGUMENTS``. For ``inject``, fault.c makes each single system
call fail that a start makes for our files. The other kinds are lists.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from experiments.torture import oracle
from experiments.torture.bench import HERE, SITE, Bench
from experiments.torture.oracle import Start
from experiments.torture.starts import FLAGS

POLICY = """\
version: 1
extends: ./base.yaml
env: {FIRST: {set: "1"}, GIVEN: {delete: true}}
config:
  torch._inductor.config:
    max_autotune: {pin: false}
"""
BASE = "version: 1\nextends: safe\nenv: {BASE: {default: \u00e9}}\n"
# The patience, in seconds, for cases that hang if they fail.
HANG = 10.0
# The errors with which a call may fail.
ERRORS = {
    "open": ("EACCES", "EIO", "EMFILE", "EINTR", "ENOENT"),
    "read": ("EIO", "EINTR"),
    "write": ("ENOSPC", "EPIPE", "EAGAIN", "EIO"),
    "stat": ("EACCES", "EIO", "ENOENT"),
    "lstat": ("EACCES", "EIO", "ENOENT"),
    "fstat": ("EIO",),
    "access": ("EACCES", "EIO"),
    "lseek": ("EINVAL",),
    "close": ("EIO",),
    "opendir": ("EACCES", "EMFILE"),
    "readlink": ("EINVAL", "EIO"),
    "getcwd": ("ENOENT", "EACCES"),
    "mkdir": ("EACCES", "ENOSPC"),
    "rename": ("EIO",),
}
PARTS = {
    "ours": "rocm_autopatch",
    "files": "case/",
    "site": "/etc/rocm-autopatch",
    "torch": "torch/version",
}


def _policy(bench: Bench) -> dict[str, str]:
    """The variables of a start with a policy of YAML."""
    (bench.directory / "policy.yaml").write_text(POLICY)
    (bench.directory / "base.yaml").write_text(BASE, encoding="utf-8")
    return {"ROCM_AUTOPATCH_POLICY": str(bench.directory / "policy.yaml"), "GIVEN": "1"}


def _site(bench: Bench) -> dict[str, str]:
    """The variables of a start that reads /etc/rocm-autopatch."""
    if bench.site:
        (SITE / "image").write_text("rocm/sgl-dev:v0.5.8-rocm700-mi30x-20260129\n")
        (SITE / "baseline").write_bytes(b"GIVEN=1\0TORCHINDUCTOR_MAX_AUTOTUNE=1\0")
        (SITE / "team.yaml").write_text(BASE, encoding="utf-8")
    return {"GIVEN": "1", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}


def _baked(bench: Bench) -> dict[str, str]:
    """The variables of a start with a baked plan."""
    _bake(bench)
    return {"GIVEN": "1"}


_PLANS: dict[str, bytes] = {}


def _bake(bench: Bench) -> None:
    path = bench.package / "baked.plan"
    if bench.version not in _PLANS:
        bench.run(bench.start("bake", flags=("-I", "-m"), program="rocm_autopatch"))
        _PLANS[bench.version] = path.read_bytes()
    path.write_bytes(_PLANS[bench.version])


def _report(bench: Bench) -> dict[str, str]:
    """The variables of a start that is to write a report and a profile."""
    there = str(bench.directory / "report")
    return {"ROCM_AUTOPATCH_REPORT": there, "ROCM_AUTOPATCH_PROFILE": there + "/%p.json"}


def _built_in(bench: Bench) -> dict[str, str]:
    """The variables of a start with the default policy."""
    return {"TORCHINDUCTOR_MAX_AUTOTUNE": "1"}


SCENES: dict[str, Callable[[Bench], dict[str, str]]] = {
    "default": _built_in,
    "policy": _policy,
    "site": _site,
    "baked": _baked,
    "report": _report,
}


def _start(
    bench: Bench, scene: str, *arguments: str, env: Mapping[str, str] | None = None, **more: Any
) -> Start:
    ours = SCENES[scene](bench)
    # A line for what was done, and one for each thing that could not be done.
    return bench.start(*arguments, env={**ours, **(env or {})}, **{"lines": 6, **more})


# Each call that fails


def _library(bench: Bench) -> str:
    made = bench.home / "fault.so"
    if not made.exists():
        command = ["gcc", "-shared", "-fPIC", "-O1", f"-o{made}", str(HERE / "fault.c"), "-ldl"]
        subprocess.run(command, check=True)
    return str(made)


def _injected(bench: Bench, part: str, call: str, number: int, error: str) -> dict[str, str]:
    code = getattr(errno, error) if error else 0
    said = f"{call}:{code}:{number}:{PARTS[part]}:{bench.home}/hits"
    return {"LD_PRELOAD": _library(bench), "TORTURE_FAULT": said}


def _injections(bench: Bench) -> Iterator[str]:
    """Each call of each kind in each scene, with each error."""
    hits = bench.home / "hits"
    for scene in SCENES:
        for part in PARTS:
            bench.clean()
            hits.write_text("")
            with bench.broken("rocm_autopatch/baked.plan"):
                arguments = () if part == "torch" else ("torch",)
                count = _injected(bench, part, "any", -1, "")
                bench.run(_start(bench, scene, *arguments, env=count))
            calls = hits.read_text().split()
            for call in sorted(set(calls)):
                # The program asks for its directory itself, after us.
                last = calls.count(call) - (call == "getcwd")
                for error in ERRORS[call]:
                    for number in range(1, last + 1):
                        yield f"inject/{scene}/{part}/{call}/{error}/{number}"
                    if error != "EINTR":
                        yield f"inject/{scene}/{part}/{call}/{error}/0"


def inject(bench: Bench, scene: str, part: str, call: str, error: str, number: str) -> list[str]:
    """One call for our files, or each of a kind, fails."""
    # Without its version.py, torch itself can't be imported.
    arguments = () if part == "torch" else ("torch",)
    fault = _injected(bench, part, call, int(number), error)
    with bench.broken("rocm_autopatch/baked.plan"):
        start = _start(bench, scene, *arguments, env=fault)
        ours = bench.run(start)
        if call == "getcwd" and number == "0":
            return oracle.judge(start, ours, bench.run(start.off()))
        # Compared with a run in which nothing fails: without us, the n-th call is another one.
        none = _injected(bench, part, "none", -1, "")
        return oracle.judge(
            start, ours, bench.run(_start(bench, scene, *arguments, env=none).off())
        )


# No regular file


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _stdin(path: Path) -> None:
    path.symlink_to("/dev/stdin")


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _tty(path: Path) -> None:
    path.symlink_to("/dev/tty")


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def _dangling(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


ODD: dict[str, Callable[[Path], None]] = {
    "fifo": _fifo,
    "stdin": _stdin,
    "zero": _zero,
    "tty": _tty,
    "socket": _socket,
    "directory": Path.mkdir,
    "dangling": _dangling,
    "loop": _loop,
}
PLACES = (
    *("policy", "base", "image", "baseline", "yaml", "images", "baked", "plan", "index"),
    *("version", "report", "profile", "named"),
)


def odd(bench: Bench, place: str, what: str) -> list[str]:
    """Something else in the place of a file; the program must still get all of its input."""
    scene = {"policy": "policy", "base": "policy", "baked": "baked"}.get(place, "default")
    env: dict[str, str] = {}
    path = {
        "policy": bench.directory / "policy.yaml",
        "base": bench.directory / "base.yaml",
        "image": SITE / "image",
        "baseline": SITE / "baseline",
        "yaml": SITE / "team.yaml",
        "images": SITE / "images.yaml",
        "baked": bench.package / "baked.plan",
        "plan": bench.package / "plans" / "safe.plan",
        "index": bench.package / "plans" / "images.index",
        "version": bench.library / "torch" / "version.py",
        "report": bench.directory / "report",
        "profile": bench.directory / "profile",
        "named": bench.directory / "policy.yaml",
    }[place]
    if place in ("image", "baseline", "yaml", "images") and not bench.site:
        return []
    if place == "named":
        # The path itself, as a user writes it.
        targets = {
            "stdin": "/dev/stdin",
            "zero": "/dev/zero",
            "tty": "/dev/tty",
            "fifo": "/dev/fd/0",
        }
        env["ROCM_AUTOPATCH_POLICY"] = targets.get(what, "/dev/null")
    if place == "index":
        env["ROCM_AUTOPATCH_IMAGE"] = "rocm/pytorch:latest"
    if place in ("report", "profile"):
        env[f"ROCM_AUTOPATCH_{place.upper()}"] = str(path)
        env.setdefault("ROCM_AUTOPATCH_REPORT", "")
    names = ("rocm_autopatch/baked.plan", "rocm_autopatch/plans", "torch/version.py")
    with bench.broken(*names):
        # The program does not import torch: this file would break torch's own import too.
        arguments = ("stdin",) if place == "version" else ("torch", "stdin")
        start = _start(bench, scene, *arguments, env=env, stdin=b"input\n" * 20)
        if path.exists() or path.is_symlink():
            path.unlink()
        ODD[what](path)
        ours = bench.run(start, HANG)
        return oracle.judge(start, ours, bench.run(start.off(), HANG))


# Streams


def _close(*descriptors: int) -> Callable[[], None]:
    def setup() -> None:
        for descriptor in descriptors:
            os.close(descriptor)

    return setup


def _full_pipe(reader: bool = True, blocking: bool = True) -> Callable[[], None]:
    """Standard error is a pipe that nobody reads, or whose reading end is closed."""

    def setup() -> None:
        end, pipe = os.pipe()
        os.set_blocking(pipe, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(pipe, b"x" * 4096)
        os.set_blocking(pipe, blocking)
        os.dup2(pipe, 2)
        os.close(pipe)
        if reader:
            os.set_inheritable(end, True)
        else:
            os.close(end)

    return setup


def _nearly_full_pipe() -> None:
    _full_pipe()()
    # Space for only the first bytes of a line.
    fcntl.fcntl(2, fcntl.F_GETFL)
    for descriptor in range(3, 20):
        with contextlib.suppress(OSError):
            if os.get_inheritable(descriptor):
                os.read(descriptor, 4096)
                return


def _device(path: str, mode: int) -> Callable[[], None]:
    def setup() -> None:
        os.dup2(os.open(path, mode), 2)

    return setup


STREAMS: dict[str, Callable[[], None]] = {
    "closed-0": _close(0),
    "closed-1": _close(1),
    "closed-2": _close(2),
    "closed-02": _close(0, 2),
    "closed-012": _close(0, 1, 2),
    "full": _full_pipe(),
    "full-nonblocking": _full_pipe(blocking=False),
    "nearly-full": _nearly_full_pipe,
    "broken": _full_pipe(reader=False),
    "dev-full": _device("/dev/full", os.O_WRONLY),
    "read-only": _device("/dev/null", os.O_RDONLY),
}


def streams(bench: Bench, scene: str, which: str) -> list[str]:
    """Standard streams that are closed, full or broken; an error to write, and one line."""
    out = str(bench.directory / "seen")
    env = {"TORTURE_OUT": out, "ROCM_AUTOPATCH_ASSUME": "nonsense=1"}
    with bench.broken("rocm_autopatch/baked.plan"):
        start = _start(bench, scene, "torch", env=env, setup=STREAMS[which])
        return oracle.judge(start, bench.run(start, HANG), bench.run(start.off(), HANG))


# Limits


def limits(bench: Bench, scene: str, which: str, value: str) -> list[str]:
    """A resource limit under which the same program runs without us.

    We use some memory, which the program then lacks. If the limit is that much higher, it must run.
    """
    with bench.broken("rocm_autopatch/baked.plan"):
        wrong = _limited(bench, scene, which, int(value))
        if wrong and which in ("AS", "DATA"):
            return _limited(bench, scene, which, int(value) + OUR_MEMORY)
        return wrong


def _limited(bench: Bench, scene: str, which: str, value: int) -> list[str]:
    limit = getattr(resource, f"RLIMIT_{which}")

    def setup() -> None:
        resource.setrlimit(limit, (value, value))

    start = _start(bench, scene, env={"PYTHONDONTWRITEBYTECODE": "1"}, setup=setup)
    off = bench.run(start.off())
    return oracle.judge(start, bench.run(start), off) if off.status == 0 else []


# Bytes that reading a policy of YAML may take in a start.
OUR_MEMORY = 16 << 20
# The lowest values are what the program itself needs to start, or less.
LIMITS = {
    "NOFILE": range(3, 12),
    "AS": [megabytes << 20 for megabytes in (12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 64)],
    "DATA": [megabytes << 20 for megabytes in (2, 3, 4, 5, 6, 8, 12)],
    "STACK": [kilobytes << 10 for kilobytes in (64, 128, 256, 512, 1024)],
    "FSIZE": (0, 1, 100),
    "NPROC": (0, 1),
    "CORE": (0,),
    "MEMLOCK": (0,),
    "CPU": (2,),
}


# Places


def _in_namespace(start: Start, script: str) -> Start:
    command = (
        "/usr/bin/unshare",
        "-m",
        "/bin/sh",
        "-c",
        f'{script} && exec "$0" "$@"',
        *start.command,
    )
    return Start(command, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **start.env}, lines=start.lines)


def _no_proc(bench: Bench, start: Start) -> Start:
    return _in_namespace(start, "mount -t tmpfs none /proc")


def _read_only(bench: Bench, start: Start) -> Start:
    home = bench.home
    return _in_namespace(start, f"mount --bind {home} {home} && mount -o remount,ro,bind {home}")


def _small_disk(bench: Bench, start: Start) -> Start:
    there, aside = bench.directory, bench.home / "aside"
    full = f"dd if=/dev/zero of={there}/full bs=1k count=64 2>/dev/null; true"
    keep = f"cp -p {there}/*.yaml {aside} 2>/dev/null; true"
    back = f"cp -p {aside}/* {there} 2>/dev/null; true"
    mount = f"mount -t tmpfs -o size=16k,mode=755 none {there}"
    return _in_namespace(start, f"mkdir -p {aside} && {keep} && {mount} && {back} && {full}")


def _gone(bench: Bench, start: Start) -> Start:
    there = bench.home / "gone"

    def setup() -> None:
        there.mkdir(exist_ok=True)
        os.chdir(there)
        there.rmdir()

    return Start(start.command, start.env, lines=start.lines, setup=setup)


def _no_directory(bench: Bench, start: Start) -> Start:
    """The working directory can't be entered again."""
    there = bench.home / "closed"

    def setup() -> None:
        there.mkdir(exist_ok=True)
        os.chdir(there)
        there.chmod(0)
        _nobody()

    return Start(start.command, start.env, lines=start.lines, setup=setup)


def _nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def _as_nobody(bench: Bench, start: Start) -> Start:
    return Start(start.command, start.env, lines=start.lines, setup=_nobody)


def _no_package(bench: Bench, start: Start) -> Start:
    """Our package is another user's, and private."""
    bench.package.chmod(0o700)
    return _as_nobody(bench, start)


def _no_files(bench: Bench, start: Start) -> Start:
    """All files of ours but the first are private."""
    for path in bench.package.rglob("*"):
        if path.is_file() and not path.name.startswith("__init__"):
            path.chmod(0)
    return _as_nobody(bench, start)


def _no_yaml(bench: Bench, start: Start) -> Start:
    shutil.rmtree(bench.library / "yaml")
    return start


def _no_packaging(bench: Bench, start: Start) -> Start:
    shutil.rmtree(bench.library / "packaging")
    return start


def _no_start(bench: Bench, start: Start) -> Start:
    """Half of an installation: the first module alone."""
    for path in bench.package.iterdir():
        if path.name not in ("__init__.py", "baked.plan"):
            path.unlink() if path.is_file() else shutil.rmtree(path)
    return start


def _no_first(bench: Bench, start: Start) -> Start:
    """What pip leaves if it was killed: the .pth file without its package."""
    shutil.rmtree(bench.package)
    return start


def _truncated(bench: Bench, start: Start) -> Start:
    """What a full disk leaves: empty files."""
    for path in bench.package.glob("*.py"):
        path.write_bytes(b"")
    shutil.rmtree(bench.package / "__pycache__", ignore_errors=True)
    return start


def _no_byte_code(bench: Bench, start: Start) -> Start:
    shutil.rmtree(bench.package / "__pycache__", ignore_errors=True)
    return start


WHERE: dict[str, Callable[[Bench, Start], Start]] = {
    "no-proc": _no_proc,
    "read-only": _read_only,
    "small-disk": _small_disk,
    "gone": _gone,
    "no-directory": _no_directory,
    "nobody": _as_nobody,
    "no-package": _no_package,
    "no-files": _no_files,
    "no-yaml": _no_yaml,
    "no-packaging": _no_packaging,
    "no-start": _no_start,
    "no-first": _no_first,
    "truncated": _truncated,
    "no-byte-code": _no_byte_code,
}
_ROOT = ("no-proc", "read-only", "small-disk", "no-directory", "nobody", "no-package", "no-files")
_WHOLE = ("rocm_autopatch", "yaml", "packaging", "torch")


def places(bench: Bench, scene: str, where: str) -> list[str]:
    """A place where something is not as it should be."""
    if where in _ROOT and not bench.site:
        return []
    with bench.broken(*_WHOLE):
        start = WHERE[where](bench, _start(bench, scene, "torch"))
        return bench.judge(start)


def later(bench: Bench, scene: str, what: str) -> list[str]:
    """Our files change between the start and the import of torch."""
    if "drop" in what and not bench.site:
        return []
    with bench.broken(*_WHOLE):
        start = _start(
            bench,
            scene,
            *what.split("-"),
            *("torch", "twice"),
            env={"TORTURE_PACKAGE": str(bench.package)},
            prepare=lambda: _again(bench, scene),
        )
        return bench.judge(start)


def _again(bench: Bench, scene: str) -> None:
    with bench.broken("rocm_autopatch"):
        pass
    if scene == "baked":
        _bake(bench)


LATER = ("delete", "forbid-drop", "drop", "deny", "purge", "purge-delete", "purge-deny")


# Encodings, flags

ENCODINGS: dict[str, dict[str, str]] = {
    "c": {"LC_ALL": "C"},
    "c-strict": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "posix": {"LC_ALL": "POSIX", "PYTHONUTF8": "0"},
    "none": {"LC_ALL": "xx_YY.nonsense", "LANG": "\u00e9"},
    "utf8": {"PYTHONUTF8": "1"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "utf-16": {"PYTHONIOENCODING": "utf-16", "TORTURE_OUT": ""},
    "utf-8-sig": {"PYTHONIOENCODING": "utf-8-sig", "TORTURE_OUT": ""},
    "cp500": {"PYTHONIOENCODING": "cp500", "TORTURE_OUT": ""},
    "idna": {"PYTHONIOENCODING": "idna", "TORTURE_OUT": ""},
}


def encodings(bench: Bench, scene: str, which: str) -> list[str]:
    """A locale or an encoding that can't express what is in a policy."""
    env = dict(ENCODINGS[which])
    if "TORTURE_OUT" in env:
        env["TORTURE_OUT"] = str(bench.directory / "seen")
    env["ROCM_AUTOPATCH_IMAGE"] = "rocm/\u00e9\udcff:\u4e2d"
    with bench.broken("rocm_autopatch/baked.plan"):
        return bench.judge(_start(bench, scene, "torch", env=env))


def flags(bench: Bench, scene: str, which: str) -> list[str]:
    """A flag of the interpreter, or several."""
    chosen = tuple(which.split("+"))
    with bench.broken("rocm_autopatch/baked.plan"):
        return bench.judge(_start(bench, scene, "torch", flags=chosen))


KINDS: dict[str, Callable[..., list[str]]] = {
    "inject": inject,
    "odd": odd,
    "streams": streams,
    "limits": limits,
    "places": places,
    "later": later,
    "encodings": encodings,
    "flags": flags,
}


def _listed(version: str) -> Iterator[str]:
    for place in PLACES:
        for what in ODD:
            yield f"odd/{place}/{what}"
    for scene in SCENES:
        yield from (f"streams/{scene}/{which}" for which in STREAMS)
        yield from (f"places/{scene}/{where}" for where in WHERE)
        yield from (f"later/{scene}/{what}" for what in LATER)
        yield from (f"encodings/{scene}/{which}" for which in ENCODINGS)
        for which in FLAGS:
            if which != ("-P",) or tuple(map(int, version.split("."))) >= (3, 11):
                yield f"flags/{scene}/{'+'.join(which)}"
        for limit, values in LIMITS.items():
            yield from (f"limits/{scene}/{limit}/{value}" for value in values)


def names(bench: Bench, seed: int, count: int) -> Iterator[str]:
    """*count* cases, or all there are: half from the lists, half calls that fail."""
    random = Random(seed)
    listed = list(_listed(bench.version))
    random.shuffle(listed)
    # These cases need the compiler.
    calls = list(_injections(bench)) if shutil.which("gcc") else []
    random.shuffle(calls)
    half = min(len(listed), max(count // 2, count - len(calls)))
    for name in (*listed[:half], *calls[: count - half]):
        yield f"faults/{bench.version}/{name}"


def run(bench: Bench, name: str) -> list[str]:
    """What is wrong with one start."""
    _, _, kind, *arguments = name.split("/")
    return KINDS[kind](bench, *arguments)
