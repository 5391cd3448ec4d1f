"""Twelve images under each engine that runs here: what the hook of deploy/host does in containers.

    python experiments/live/host_containers.py [OPTIONS]

As root. It makes the images from the Debian root of tests/overlay, starts an engine of its own
where one has a service, and leaves nothing. ``--torch`` is a venv of Python 3.11 with torch, for a
job of torchrun in containers. ``--schema`` is a directory with schema.json and defs.json of the
public repository of CDI. ``--before`` is a checkout of another commit, whose hook is timed beside
ours. It prints a line of JSON for each thing that was looked at; the status is
1 if one is not as it should be.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.conftest import HIP, MAX, TORCH, find_python, label_torch  # noqa: E402
from tests.overlay.containers import Store, copy_prefix  # noqa: E402

HOST = ROOT / "deploy/host/host.py"
NAMES = (
    MAX,
    "TORCHINDUCTOR_MAX_AUTOTUNE_POINTWISE",
    "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES",
    "TORCH_COMPILE_DEBUG",
)
# What a program sees. Of its environment, a container's own number is left out.
LOOK = (
    "import json, os, sys; ours = sys.modules.get('rocm_autopatch'); print(json.dumps("
    "{'env': {k: v for k, v in os.environ.items() if k not in ('HOSTNAME', 'HOME', 'TERM')}, "
    "'path': sys.path, 'ours': ours and ours.__file__, "
    "'image': ours and ours._RECORD['facts'].get('image')}))"
)
FILES = "find / -xdev ! -path '/proc*' ! -path '/sys*' ! -path '/dev*' -printf '%y %m %u %p\\n'"
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
failed = 0


def say(what: str, right: bool, **more: object) -> None:
    global failed
    failed += not right
    print(json.dumps({"what": what, "right": right, **more}), flush=True)


def sh(
    *command: str | Path, check: bool = True, **options: Any
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300, **options
    )
    if check and done.returncode:
        raise RuntimeError(f"{command}\n{done.stdout}\n{done.stderr}")
    return done


@dataclass(frozen=True)
class Case:
    """An image, the Python to start in it, and the zip paths that are to have the hook."""

    recipe: str
    python: str = "/usr/bin/python3"
    zips: tuple[str, ...] = ("/usr/lib/python311.zip",)
    options: tuple[str, ...] = ()
    # The package that a start runs: "" for the host's, the path of the image's own, None for none.
    ours: str | None = ""


def copy_torch(site: str) -> str:
    return f"RUN mkdir -p {site} && cp -r /ctx/torch {site}/\n"


CONDA = "/opt/conda/envs/py_3.10"
UV = "/root/.local/share/uv/python/cpython-3.12.1-linux-x86_64-gnu"
SITE = "/usr/local/lib/python3.11/dist-packages"
VENV = "RUN python3 -m venv --without-pip /opt/venv\n" + copy_torch(
    "/opt/venv/lib/python3.11/site-packages"
)
PACKAGE = f"RUN cp -r /ctx/wheel/* {SITE}/\n"
CASES = {
    "system": Case(copy_torch(SITE)),
    "venv": Case(VENV, "/opt/venv/bin/python3"),
    "conda-like": Case(
        f"COPY py_3.10 {CONDA}\nENV LD_LIBRARY_PATH={CONDA}/lib\n"
        + copy_torch(f"{CONDA}/lib/python3.10/site-packages"),
        f"{CONDA}/bin/python3",
        ("/usr/lib/python311.zip", f"{CONDA}/lib/python310.zip"),
    ),
    "uv": Case(
        f"COPY py_3.12 {UV}\nENV LD_LIBRARY_PATH={UV}/lib\n"
        f"RUN {UV}/bin/python3 -m venv --without-pip /app/.venv\n"
        + copy_torch("/app/.venv/lib/python3.12/site-packages")
        + "ENV PATH=/app/.venv/bin:/usr/bin:/bin\n",
        "/app/.venv/bin/python3",
        ("/usr/lib/python311.zip", f"{UV}/lib/python312.zip"),
    ),
    "two Pythons": Case(
        "COPY py_3.12 /usr/local\nENV LD_LIBRARY_PATH=/usr/local/lib\n"
        + copy_torch("/usr/local/lib/python3.12/site-packages")
        + copy_torch(SITE),
        "/usr/local/bin/python3",
        ("/usr/lib/python311.zip", "/usr/local/lib/python312.zip"),
    ),
    "no Python": Case("", "", ()),
    "read-only root": Case(copy_torch(SITE), options=("--read-only",)),
    "another user": Case(copy_torch(SITE) + "USER 65534:65534\n"),
    "own PYTHONPATH": Case(copy_torch(SITE) + "ENV PYTHONPATH=/srv/plugins\n"),
    "sitecustomize of its own": Case(
        copy_torch(SITE)
        + "RUN echo 'import os; os.RAN = 1' >/usr/lib/python3.11/sitecustomize.py\n"
    ),
    "own wheel": Case(copy_torch(SITE) + PACKAGE, ours=f"{SITE}/rocm_autopatch/__init__.py"),
    "own baseline": Case(
        copy_torch(SITE)
        + PACKAGE
        + "RUN mkdir /etc/rocm-autopatch && echo rocm/base:1 >/etc/rocm-autopatch/image\\\n"
        f" && printf '{MAX}=1\\0' >/etc/rocm-autopatch/baseline\n",
        ours=f"{SITE}/rocm_autopatch/__init__.py",
    ),
}
# Of each: what the image has, what the user gives, and whether it is the user's; None: removed.
WHOSE: dict[str, tuple[str | None, str | None, str | None]] = {
    "the image's alone": ("1", None, None),
    "another value": ("1", "0", "0"),
    "the same value": ("1", "1", None),
    "a user's alone": (None, "1", "1"),
    "set to nothing": ("1", "", ""),
    "a strange value": ("1", '0 "\\=\n$HOME', '0 "\\=\n$HOME'),
    "kept by name": ("1", None, "1"),
    "named as given": ("1", "1", "1"),
}


@dataclass
class Engine:
    """How an engine makes and runs images; *hook* says whether a container gets the hook."""

    name: str
    place: Path
    host: Path
    env: dict[str, str] = field(default_factory=dict)

    def command(self, hook: bool) -> list[str | Path]:
        raise NotImplementedError

    def run(
        self,
        image: str,
        *words: str,
        hook: bool = True,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        given = [f"--env={name}={value}" for name, value in (env or {}).items()]
        command = [*self.command(hook), *options, *given, image, *words]
        return sh(*command, check=check, env={**os.environ, **self.env})

    def build(self, tag: str, file: Path, context: Path) -> None:
        raise NotImplementedError

    def knows_images(self) -> bool:
        return True

    def close(self) -> None:
        pass


class Podman(Engine):
    def podman(self, *words: str | Path) -> list[str | Path]:
        # crun refuses a machine with both hierarchies of control groups.
        script = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec podman "$@"'
        store = ("--root", self.place / "podman", "--runroot", self.place / "podman-run")
        prefix = ("unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh")
        return [*prefix, *store, "--runtime", self.name.split()[-1], *words]

    def command(self, hook: bool) -> list[str | Path]:
        hooks = self.host / "usr/share/containers/oci/hooks.d" if hook else self.place / "empty"
        hooks.mkdir(parents=True, exist_ok=True)
        return self.podman("--hooks-dir", hooks, "run", "--rm", "--network=host", *LIMITS)

    def build(self, tag: str, file: Path, context: Path) -> None:
        sh(*self.podman("build", "-q", "--isolation=chroot", "-t", tag, "-f", file, context))

    def close(self) -> None:
        sh(*self.podman("system", "reset", "-f"), check=False)


class Docker(Engine):
    @contextlib.contextmanager
    def service(self) -> Iterator[None]:
        where = self.place / "docker"
        where.mkdir()
        self.env = {"DOCKER_HOST": f"unix://{where}/socket", "DOCKER_BUILDKIT": "0"}
        options: list[str | Path] = [
            "--data-root",
            where / "data",
            "--exec-root",
            where / "run",
            "-p",
            where / "pid",
        ]
        options += ["-H", self.env["DOCKER_HOST"], "--bridge=none", "--iptables=false"]
        options += ["--ip6tables=false", "--config-file", self.host / "etc/docker/daemon.json"]
        with open(where / "log", "w") as log:
            process = subprocess.Popen(["dockerd", *options], stdout=log, stderr=log)
        try:
            for _ in range(60):
                if (
                    sh("docker", "version", check=False, env={**os.environ, **self.env}).returncode
                    == 0
                ):
                    break
                time.sleep(1)
            yield
        finally:
            process.terminate()
            process.wait()
            sh("umount", "-R", where / "run/netns/default", check=False)

    def command(self, hook: bool) -> list[str | Path]:
        runtime = "rocm-autopatch" if hook else "runc"
        return ["docker", "run", "--rm", "--network=host", *LIMITS, f"--runtime={runtime}"]

    def build(self, tag: str, file: Path, context: Path) -> None:
        command: list[str | Path] = [
            "docker",
            "build",
            "-q",
            "--network=host",
            "-t",
            tag,
            "-f",
            file,
            context,
        ]
        sh(*command, env={**os.environ, **self.env})


class Containerd(Engine):
    """By ctr, which shows nothing of the image to a hook. Release 1.6 has no CDI in ctr."""

    count = 0

    def ctr(self, *words: str | Path) -> list[str | Path]:
        return ["ctr", "-a", self.place / "containerd/socket", *words]

    @contextlib.contextmanager
    def service(self) -> Iterator[None]:
        where = self.place / "containerd"
        where.mkdir()
        options: list[str | Path] = [
            "--root",
            where / "root",
            "--state",
            where / "state",
            "--address",
            where / "socket",
        ]
        with open(where / "log", "w") as log:
            process = subprocess.Popen(["containerd", *options], stdout=log, stderr=log)
        runtime = self.place / "runtime"
        runtime.write_text(f'#!/bin/sh\nexec {self.host}/opt/docker-runtime runc "$@"\n')
        runtime.chmod(0o755)
        try:
            for _ in range(60):
                if sh(*self.ctr("version"), check=False).returncode == 0:
                    break
                time.sleep(1)
            yield
        finally:
            process.terminate()
            process.wait()

    def command(self, hook: bool) -> list[str | Path]:
        runtime = ("--runc-binary", self.place / "runtime") if hook else ()
        return self.ctr("run", "--rm", "--net-host", *runtime)

    def run(self, image: str, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        Containerd.count += 1
        return super().run(image, f"made{Containerd.count}", *words, **options)

    def knows_images(self) -> bool:
        return False


def install_command(checkout: Path, host: Path) -> list[str | Path]:
    """What gives and takes the hook of a checkout, for the machine whose root is *host*."""
    program = checkout / HOST.relative_to(ROOT)
    return [sys.executable, program, "--at", host / "opt", "--root", host]


def tag(name: str) -> str:
    return "localhost/rocm/" + name.lower().replace(" ", "-") + ":1"


def make_context(place: Path, wheel: Path) -> Path:
    """What the images are built from."""
    context = place / "context"
    context.mkdir()
    tar = Path(os.environ.get("ROCM_AUTOPATCH_TEST_WORK", ROOT / ".work"), "overlay/debian12.tar")
    if not tar.exists():
        Store.open(tar.parent).debian()
    (context / "debian12.tar").hardlink_to(tar)
    label_torch(context / "ctx", TORCH, HIP)
    sh(sys.executable, "-m", "zipfile", "-e", wheel, context / "ctx/wheel")
    for version in ("3.10", "3.12"):
        copy_prefix(find_python(version), context / f"py_{version}")
    busybox = context / "busybox"
    busybox.mkdir()
    shutil.copy(shutil.which("busybox") or "", busybox / "busybox")
    for name in ("sh", "find", "echo", "true"):
        (busybox / name).symlink_to("busybox")
    return context


def build_all(engine: Engine, context: Path) -> None:
    file = context.with_suffix(".Dockerfile")
    file.write_text("FROM scratch\nADD debian12.tar /\nCOPY ctx /ctx\n")
    engine.build("localhost/base:1", file, context)
    env = f"ENV A='a<b>&\"c\\\\' {MAX}=1\n"
    for name, case in CASES.items():
        above = "FROM localhost/base:1\n" if case.python else "FROM scratch\nCOPY busybox /bin/\n"
        file.write_text(above + case.recipe + env)
        engine.build(tag(name), file, context)
    for which in ("image", "bare"):
        lines = "".join(f"ENV {name}=1\n" for name in NAMES) if which == "image" else ""
        file.write_text("FROM localhost/base:1\n" + copy_torch(SITE) + lines)
        engine.build(tag(f"whose {which}"), file, context)


def list_files(engine: Engine, name: str, command: str, hook: bool) -> set[str]:
    """The lines of *command* in a container. On a busy machine, ctr loses the end of an output."""
    command += " 2>/dev/null; echo listed"
    for _ in range(5):
        done = engine.run(tag(name), "sh", "-c", command, hook=hook, options=CASES[name].options)
        *lines, last = done.stdout.splitlines() or [""]
        if last == "listed":
            return {line for line in lines if ".pyc" not in line}
    raise RuntimeError(f"{engine.name} shows no whole list of the files of {name}")


def check_images(engine: Engine, options: argparse.Namespace) -> None:
    right = 0
    for name, case in CASES.items():
        both: dict[bool, set[str]] = {}
        found: dict[bool, dict[str, Any]] = {}
        problem = ""
        for hook in (True, False):
            # busybox's find shows names alone.
            files = FILES if case.python else FILES.partition(" -printf")[0]
            both[hook] = list_files(engine, name, files, hook)
        more = {line.rsplit(" ", 1)[1] for line in both[True] ^ both[False]}
        # What find shows of a mount is its root alone.
        problem += f"files {sorted(more)} " if not more <= set(case.zips) else ""
        problem += f"no hook at {set(case.zips) - more} " if set(case.zips) - more else ""
        if case.python:
            for hook in (True, False):
                quiet = {"ROCM_AUTOPATCH_LOG": "quiet"}
                done = engine.run(
                    *(tag(name), case.python, "-c", LOOK),
                    hook=hook,
                    options=case.options,
                    env=quiet,
                )
                found[hook] = json.loads(done.stdout)
            with_hook, without = found[True], found[False]
            env, plain = with_hook["env"], without["env"]
            changed = {key for key in env.keys() | plain.keys() if env.get(key) != plain.get(key)}
            if case.ours == "":
                # Those that a start of ours changes by its policy.
                expected = {MAX, "ROCM_AUTOPATCH_SAID"}
                path = f"{case.zips[-1]}/package/rocm_autopatch/__init__.py"
            else:
                expected, path = set(), str(case.ours)
            problem += f"variables {changed} " if changed != expected else ""
            problem += "sys.path " if with_hook["path"] != without["path"] else ""
            problem += f"runs {with_hook['ours']} " if with_hook["ours"] != path else ""
            named = tag(name) if engine.knows_images() and case.ours == "" else None
            if named and named not in json.dumps(with_hook["image"]):
                problem += f"image {with_hook['image']} "
        right += not problem
        say(f"{engine.name}: image {name}", not problem, problem=problem)
    say(f"{engine.name}: images", right == len(CASES), right_ones=right, of=len(CASES))


def check_whose(engine: Engine, options: argparse.Namespace) -> None:
    if not engine.knows_images():
        return
    right = 0
    for what, (in_image, given, kept) in WHOSE.items():
        env = {} if given is None else dict.fromkeys(NAMES, given)
        if what == "kept by name":
            env["ROCM_AUTOPATCH_KEEP"] = ",".join(NAMES)
        if what == "named as given":
            env["ROCM_AUTOPATCH_GIVEN"] = ",".join(NAMES)
        image = tag("whose bare" if in_image is None else "whose image")
        code = f"import json, os; print(json.dumps([os.environ.get(n) for n in {NAMES!r}]))"
        done = engine.run(image, "/usr/bin/python3", "-c", code, env=env)
        values = json.loads(done.stdout)
        for name, value in zip(NAMES, values):
            # Of these, the policy deletes one alone if it is set to nothing, whoever did that.
            expected = None if kept == "" and name == "TORCH_COMPILE_DEBUG" else kept
            right += value == expected
            if value != expected:
                say(f"{engine.name}: {what}: {name}", False, value=value, expected=expected)
    cases = len(WHOSE) * len(NAMES)
    say(f"{engine.name}: whose value", right == cases, right_ones=right, of=cases)


def check_starts(engine: Engine, options: argparse.Namespace) -> None:
    starts = options.starts
    took: dict[bool, list[float]] = {True: [], False: []}
    for number in range(starts):
        for hook in (True, False) if number % 2 else (False, True):
            began = time.perf_counter()
            engine.run(tag("system"), "true", hook=hook)
            took[hook].append((time.perf_counter() - began) * 1000)
    medians = {hook: round(statistics.median(values), 1) for hook, values in took.items()}
    paired = statistics.median(a - b for a, b in zip(took[True], took[False]))
    say(
        f"{engine.name}: ms more for a start, median of {starts} pairs",
        paired <= 10,
        more=round(paired, 1),
        with_hook=medians[True],
        without=medians[False],
        load=os.getloadavg()[0],
    )


def check_bundles(hosts: Mapping[str, Path], podman: Podman, starts: int) -> None:
    """A start by runc and crun alone, side by side, as on a quiet machine.

    They run before whatever else does (chrt), which control groups for CPUs would not let them. The
    bundle lies where Podman would have it, so the hook tells what it knows of the image, too.
    *hosts* are places with a hook, by name. Docker's way is that of its runtime in front of runc.
    """
    number = "0f" * 32
    made = sh(*podman.podman("create", "--network=none", tag("system"), "true")).stdout.strip()
    storage = podman.place / "bundles"
    images = podman.place / "podman/overlay-images"
    (image,) = [
        path for path in images.glob("*/=*") if f'"{MAX}=1"' in path.read_text("utf-8", "replace")
    ][:1]
    kept = storage / "overlay-images" / number
    kept.mkdir(parents=True)
    key = base64.b64encode(f"sha256:{number}".encode()).decode()
    shutil.copy(image, kept / f"={key}")
    rows = []
    for name in ("without", "docker", *hosts):
        bundle = storage / "overlay-containers" / name / "userdata"
        bundle.mkdir(parents=True)
        sh("runc", "spec", cwd=bundle)
        spec = json.loads((bundle / "config.json").read_text())
        spec["root"] = {"path": str(storage / "root"), "readonly": False}
        spec["process"].update(terminal=False, args=["/bin/true"])
        del spec["process"]["rlimits"]
        if name in hosts:
            hook = json.loads((hosts[name] / "opt/hook.json").read_text())
            spec["hooks"] = {"createContainer": [hook]}
        (bundle / "config.json").write_text(json.dumps(spec))
        about = json.dumps({"image-name": tag("system")})
        rows.append({"id": name, "image": number, "metadata": about})
    (storage / "overlay-containers/containers.json").write_text(json.dumps(rows))
    (storage / "hosts.json").write_text(json.dumps({name: str(at) for name, at in hosts.items()}))
    (storage / "root").mkdir()
    program = [sys.executable, __file__, "--time-bundles", str(storage), "--starts", str(starts)]
    script = (
        "for name in unified cpu cpuacct; do umount /sys/fs/cgroup/$name 2>/dev/null; done; "
        'root=$(podman --root "$1" --runroot "$2" mount "$3") && mount --bind "$root" "$4" && '
        'shift 4 && exec chrt -r 1 "$@"'
    )
    where = (podman.place / "podman", podman.place / "podman-run", made, storage / "root")
    prefix = ("unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh")
    for line in sh(*prefix, *where, *program).stdout.splitlines():
        found = json.loads(line)
        what = f"{found.pop('way')} alone, {found.pop('hook')}: ms more for a start"
        say(what, found["more"] <= 10, **found)
    sh(*podman.podman("umount", made), check=False)
    sh(*podman.podman("rm", made), check=False)


def time_bundles(storage: Path, starts: int) -> None:
    hosts = json.loads((storage / "hosts.json").read_text())
    bundles = storage / "overlay-containers"
    given = bundles / "docker/userdata/config.json"
    plain = given.read_text()
    for way in ("runc", "crun", "docker"):
        runtime = "runc" if way == "docker" else way
        commands: dict[str, tuple[str, ...]] = {}
        commands["without"] = (runtime, "run", "-b", str(bundles / "without/userdata"))
        for name, host in hosts.items():
            commands[name] = (runtime, "run", "-b", str(bundles / name / "userdata"))
            if way == "docker":
                wrapped = f"{host}/opt/docker-runtime"
                commands[name] = (wrapped, runtime, "run", "-b", str(given.parent))
        took: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(starts):
            # In no order: what one container leaves to be done may slow down the next.
            for name in random.sample(sorted(commands), len(commands)):
                given.write_text(plain)
                began = time.perf_counter()
                sh(*commands[name], f"made{os.getpid()}-{number}", stdin=subprocess.DEVNULL)
                took[name].append((time.perf_counter() - began) * 1000)
        without = took.pop("without")
        for name, values in took.items():
            row = {
                "way": way,
                "hook": name,
                "more": round(statistics.median(a - b for a, b in zip(values, without)), 1),
                "starts": starts,
                "with": round(statistics.median(values), 1),
                "without": round(statistics.median(without), 1),
                "load": os.getloadavg()[0],
            }
            print(json.dumps(row))


def check_faults(engine: Engine, options: argparse.Namespace) -> None:
    hook = engine.host / "opt/hook"
    kept = hook.read_text()
    faults = {
        "gone": None,
        "exit 1": "#!/bin/sh\nexit 1\n",
        "killed": "#!/bin/sh\nkill -KILL $$\n",
        "10 s": "#!/bin/sh\nsleep 10\n",
        "empty": "",
    }
    right = 0
    for name, text in faults.items():
        if text is None:
            hook.unlink()
        else:
            hook.write_text(text)
            hook.chmod(0o755)
        began = time.monotonic()
        done = engine.run(tag("system"), "echo", "started", check=False)
        took = time.monotonic() - began
        fine = done.stdout == "started\n" and took < 8
        right += fine
        if not fine:
            say(f"{engine.name}: fault {name}", False, stderr=done.stderr[-300:], took=took)
    hook.write_text(kept)
    hook.chmod(0o755)
    say(f"{engine.name}: faults", right == len(faults), right_ones=right, of=len(faults))


def check_job(engine: Engine, options: argparse.Namespace) -> None:
    """A job of two containers with torchrun: two that are alike, and one that differs."""
    if not options.torch or not engine.knows_images():
        return
    torch = options.torch.resolve()
    site = torch / "lib/python3.11/site-packages"
    label = engine.place / "version.py"
    text = (site / "torch/version.py").read_text().replace("+cpu", "+rocm7.0")
    label.write_text(text.replace("hip: Optional[str] = None", f"hip: Optional[str] = {HIP!r}"))
    program = (
        "import torch.distributed as d; d.init_process_group('gloo'); d.barrier(); "
        "d.destroy_process_group(); print('rank done')"
    )
    for what, odd in (("alike", {}), ("one that differs", {"TORCHINDUCTOR_MAX_AUTOTUNE": "0"})):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        running = []
        for node in range(2):
            env = {"PYTHONPATH": str(site), "GLOO_SOCKET_IFNAME": "lo", **(odd if node else {})}
            given = [f"--env={name}={value}" for name, value in env.items()]
            mounts = [f"-v={torch}:{torch}:ro", f"-v={label}:{site}/torch/version.py:ro"]
            command: list[str | Path] = [
                *engine.command(True),
                *mounts,
                *given,
                tag("whose image"),
                "python3",
                "-m",
            ]
            command += ["torch.distributed.run", "--no-python", "--nnodes=2", f"--node-rank={node}"]
            command += [f"--master-port={port}", "--master-addr=127.0.0.1"]
            command += ["python3", "-c", program]
            running.append(
                subprocess.Popen(
                    [str(word) for word in command],
                    env={**os.environ, **engine.env},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        output = "".join(process.communicate(timeout=300)[0] for process in running)
        told = [
            line for line in output.splitlines() if "rank" in line and "rocm_autopatch:" in line
        ]
        fine = output.count("rank done") == 2 and bool(told) == bool(odd)
        fine = fine and all(MAX in line for line in told)
        say(
            f"{engine.name}: two ranks, {what}",
            fine,
            told=told,
            output="" if fine else output[-1500:],
        )


def check_cdi(engine: Engine, options: argparse.Namespace) -> None:
    """By the library of CDI in Podman, which reads its specifications where the system has them."""
    if not isinstance(engine, Podman):
        return
    host, schema = engine.host, options.schema
    specs = [host / "etc/cdi/rocm-autopatch.json", host / "etc/cdi/amd.json"]
    if schema:
        import jsonschema
        import referencing

        defs = {"$schema": "http://json-schema.org/draft-07/schema#"}
        defs.update(json.loads((schema / "defs.json").read_text()))
        registry: Any = referencing.Registry().with_contents([("defs.json", defs)])
        whole = json.loads((schema / "schema.json").read_text())
        validator = jsonschema.Draft7Validator(whole, registry=registry)
        for spec in specs:
            problems = [
                error.message for error in validator.iter_errors(json.loads(spec.read_text()))
            ]
            say(f"CDI's schema: {spec.name}", not problems, problems=problems)
    script = 'mkdir -p /run/cdi; mount --bind "$1" /run/cdi; shift; exec "$@"'
    for device in ("rocm-autopatch/inject=on", "amd.com/gpu=all", ""):
        wish = [f"--device={device}"] if device else []
        command: list[str | Path] = [
            *engine.command(False),
            *wish,
            tag("system"),
            "/usr/bin/python3",
            "-c",
            LOOK,
        ]
        prefix = ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh"]
        done = sh(*prefix, host / "etc/cdi", *command, check=False)
        ours = json.loads(done.stdout)["ours"] if done.returncode == 0 else done.stderr[-300:]
        fine = (ours == f"{CASES['system'].zips[0]}/package/rocm_autopatch/__init__.py") == bool(
            device
        )
        say(
            f"CDI in {engine.name}: {device or 'no device'}",
            fine and done.returncode == 0,
            ours=ours,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--torch", type=Path)
    parser.add_argument("--schema", type=Path)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT")
    parser.add_argument("--only", action="append")
    parser.add_argument("--time-bundles", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.time_bundles:
        time_bundles(options.time_bundles, options.starts)
        return
    with tempfile.TemporaryDirectory(prefix="rocm-autopatch-host-") as made:
        place = Path(made)
        sh(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", place / "dist", ROOT)
        (wheel,) = (place / "dist").glob("*.whl")
        host = place / "host"
        command = install_command(ROOT, host)
        (host / "etc/cdi").mkdir(parents=True)
        node = {"path": "/dev/null"}
        amd = {
            "cdiVersion": "0.5.0",
            "kind": "amd.com/gpu",
            "devices": [{"name": "all", "containerEdits": {"deviceNodes": [node]}}],
        }
        (host / "etc/cdi/amd.json").write_text(json.dumps(amd))
        pythons = [find_python(version) for version in ("3.10", "3.11", "3.12")]
        sh(*command, "install", wheel, *pythons, "--docker", "--gpus")
        hosts = {"with": host}
        if options.before:
            hosts["with the one before"] = place / "before"
            sh(*install_command(options.before, place / "before"), "install", wheel, *pythons)
        context = make_context(place, wheel)
        crun, runc = (
            Podman("podman with crun", place, host),
            Podman("podman with runc", place, host),
        )
        docker, ctr = Docker("docker", place, host), Containerd("containerd", place, host)
        engines: list[Engine] = [crun, runc, docker, ctr]
        with contextlib.ExitStack() as stack:
            stack.callback(crun.close)
            for engine in engines:
                if options.only and engine.name not in options.only:
                    continue
                if isinstance(engine, (Docker, Containerd)):
                    stack.enter_context(engine.service())
                if isinstance(engine, Containerd):
                    if options.only and crun.name not in options.only:
                        build_all(crun, context)
                    for name in [*CASES, "whose image", "whose bare"]:
                        archive = place / "image.tar"
                        archive.unlink(missing_ok=True)
                        sh(*crun.podman("save", "-q", "-o", archive, tag(name)))
                        sh(*ctr.ctr("images", "import", archive))
                elif engine is not runc or options.only:
                    build_all(engine, context)
                for check in (
                    check_images,
                    check_starts,
                    check_faults,
                    check_whose,
                    check_cdi,
                    check_job,
                ):
                    try:
                        check(engine, options)
                    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
                        say(f"{engine.name}: {check.__name__} ended", False, why=str(error)[-600:])
            if not options.only or crun.name in options.only:
                check_bundles(hosts, crun, options.starts)
            sh(*command, "remove")
            left = [str(path) for path in host.rglob("*") if path.is_file()]
            say("after the removal", left == [str(host / "etc/cdi/amd.json")], left=left)
            same = json.loads((host / "etc/cdi/amd.json").read_text()) == amd
            say("AMD's specification after the removal", same)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
