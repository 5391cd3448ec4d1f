"""Our wheel with other real torches and Pythons than those of the tests: Debian roots, and Ray.

    python experiments/live/run.py [trixie] [sid] [hip] [experimental] [amd] [launchers] [metrics]
        [torchrun] [ray] [--work DIRECTORY]

``trixie`` (Debian 13) has torch 2.6.0 and Python 3.13; ``sid`` torch 2.14.1 and Python 3.14, and
Python 3.15 without a torch. If a root does not exist yet, mmdebstrap makes it from the machine's
own Debian mirror: in 2 to 5 minutes, with about 2 GB, as root, on Debian or Ubuntu. Each check of
checks.py then runs in the roots by chroot. ``hip`` is a second root of sid, with Debian's HIP
runtime, hipcc and rocminfo: hip_runtime.py runs there. ``experimental`` is the same with the ROCm
packages of Debian experimental. ``amd`` is a third one of sid, with Triton and the GPU that
compiles and does not run (rocm_autopatch/compiling_gpu): amd_compiler.py runs there. ``launchers``
is a fourth one, with Slurm, Open MPI, MPICH, Ray, Podman, Docker, Apptainer and Prometheus:
launchers.py runs there, and metrics.py by ``metrics``. ``torchrun`` runs one check of launchers.py
in the venv that surroundings/hip_torch.py makes, and ``ray`` runs ray_actors.py in a copy of it.

Torch in a root says that it is a ROCm build, but is none: its version.py is replaced by one with
other text. As in hip_torch.py, that stands in for the label and not for the HIP runtime. In ``hip``
and ``experimental`` the runtime is real, and torch has its version, but does not use it.

It prints a table, and below it what differs. If anything does, the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from rocm_autopatch.compiling_gpu import build  # noqa: E402
from surroundings import amd_torch, hip_torch  # noqa: E402

HIP = "7.0.51831-a3e329ad8"
# torch.compile on a CPU wants a compiler, and headers of torch and Python.
COMPILES = ("libtorch-dev", "g++", "python3-dev", "python3-setuptools")
PACKAGES = ("python3-torch", "python3-yaml", "python3-packaging")
INSIDE = "live"
CHECKS = ("start", "strengths", "modes", "compiles", "workers", "renamed", "empty", "capture")


class Place(NamedTuple):
    """A Debian root: its suite, what is in it, other Pythons, the HIP that torch says it was built
    with ("" for that of the root's runtime), the suite of ROCm's packages, the Triton that leads to
    the GPU that compiles and does not run, packages from PyPI; the place whose root it uses; what
    runs there, the files that this needs, and what is in each root with torch. *apart*: each check
    has its own network and processes, and our package lies in HOOK instead of being installed."""

    suite: str
    packages: tuple[str, ...]
    pythons: tuple[str, ...] = ()
    hip: str = HIP
    newer: str = ""
    triton: str = ""
    pip: tuple[str, ...] = ()
    root: str = ""
    apart: bool = False
    script: str = "checks.py"
    checks: tuple[str, ...] = CHECKS
    base: tuple[str, ...] = PACKAGES
    files: tuple[Path, ...] = (HERE / "no_device.hip", ROOT / "surroundings" / "image_env.json")


# hipcc brings the runtime.
WITH_HIP = Place(
    "sid",
    ("hipcc", "rocminfo", "strace"),
    hip="",
    script="hip_runtime.py",
    checks=("facts", "untouched", "driver", "runtime"),
)
LAUNCHERS = Place(
    "sid",
    (
        *(
            "slurm-wlm",
            "munge",
            "openmpi-bin",
            "mpich",
            "apptainer",
            "iproute2",
            "procps",
            "strace",
        ),
        *("podman", "crun", "netavark", "docker.io", "docker-cli", "docker-compose", "systemd"),
        *("prometheus", "prometheus-node-exporter", "python3-prometheus-client"),
    ),
    pip=("ray==2.60.0",),
    apart=True,
    script="launchers.py",
    checks=("slurm", "openmpi", "mpich", "ray", "podman", "quadlet", "compose", "apptainer"),
    files=(ROOT / "docs" / "fleet.md",),
)
HOOK = "opt/rocm-autopatch"
ROOTS = {
    "trixie": Place("trixie", COMPILES),
    "sid": Place("sid", (*COMPILES, "python3.15", "python3.15-venv"), ("python3.15",)),
    "hip": WITH_HIP,
    "experimental": WITH_HIP._replace(
        packages=(*WITH_HIP.packages, "librocm-core-dev"), newer="experimental"
    ),
    # The Triton that torch 2.14 for GPUs requires.
    "amd": Place(
        "sid",
        COMPILES,
        triton="3.8.0",
        script="amd_compiler.py",
        checks=("policies", "settings"),
    ),
    "launchers": LAUNCHERS,
    "metrics": LAUNCHERS._replace(
        root="launchers",
        script="metrics.py",
        checks=("node_exporter", "killed", "rules", "prometheus"),
        files=(
            *LAUNCHERS.files,
            HERE / "launchers.py",
            HERE / "alerts.yml",
            ROOT / "deploy" / "prometheus" / "rocm_autopatch.rules.yml",
        ),
    ),
    # What images of containers are made from.
    "image": Place("sid", (), checks=()),
}
# Of the newer suite, ROCm's packages and no others.
PIN = "Package: hip* rocm* librocm* libamdhip64* libhiprtc* libhsa* libamd-comgr*\\n"
PIN += "Pin: release a={}\\nPin-Priority: 990\\n"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMIT_S = 1800
# A namespace of its own, so that the mounts are gone with the command however it ends.
CHROOT = (
    'mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" && '
    'root=$1 && shift && exec chroot "$root" "$@"'
)
# The same with processes, a host name and a network of its own, as a machine has. Without an
# address besides 127.0.0.1, Slurm finds none. pivot_root, because Apptainer refuses to run in a
# chroot. $2 is the root of the containers' image.
APART = """
set -e
root=$1 image=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mkdir -p image
mount --bind "$image" image
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs tmpfs run
mkdir -p dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
hostname n0
ip link set lo up
ip address add 192.0.2.1/32 dev lo
pivot_root . mnt
umount -l /mnt
exec "$@"
"""
SPACES = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--uts", "--ipc", "--cgroup")
# The checkout's own Python with our package in /opt/rocm-autopatch, which is gone with the command.
WITH_HOOK = """
set -e
mount -t overlay overlay -o "lowerdir=$1:/opt" /opt
mount -t tmpfs tmpfs /run
mount -t proc proc /proc
ip link set lo up
shift
exec "$@"
"""


class LiveError(Exception):
    """Something can't be made on this machine; the text says why, in one line."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def command(*words: str | Path) -> str:
    """What a command prints; its own complaints pass through."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise LiveError(f"{' '.join(map(str, words))} ended with status {done.returncode}")
    return done.stdout


def enter(root: Path, *words: str, apart: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command in a root, with nothing of our environment. For *apart* see Place."""
    way: list[str | Path] = ["--mount", "sh", "-c", CHROOT, "sh", root]
    if apart:
        way = [*SPACES, "sh", "-c", APART, "sh", root, root.with_name("image")]
    return subprocess.run(
        ["unshare", *way, *words],
        env={"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def inside(root: Path, *words: str) -> str:
    done = enter(root, *words)
    if done.returncode:
        raise LiveError(f"{' '.join(words[:3])} in {root.name}: {done.stderr.strip()[-500:]}")
    return done.stdout.strip()


def mirror() -> str:
    """The Debian mirror that apt uses here."""
    form = ("--format", "$(REPO_URI) $(ORIGIN)/$(LABEL)", "Created-By: Packages")
    for _ in range(2):
        for line in command("apt-get", "indextargets", *form).splitlines():
            uri, _, name = line.partition(" ")
            if name == "Debian/Debian":
                return uri
        command("apt-get", "update")
    raise LiveError("apt has no Debian mirror here")


def make_root(name: str, work: Path, place: Place) -> Path:
    """A Debian root, made if it is not there yet."""
    if place.root:
        return make_root(place.root, work, ROOTS[place.root])
    root = work / name
    with hip_torch.lock(work / f"{name}.lock"):
        if root.is_dir():
            return root
        if os.getuid():
            raise LiveError("making a root and entering it needs the user root")
        if not shutil.which("mmdebstrap"):
            say("installing mmdebstrap")
            command("apt-get", "install", "-y", "--no-install-recommends", "mmdebstrap")
        say(f"making {root}")
        unfinished = work / f"{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        packages = ",".join([*place.base, *place.packages])
        options = ["--mode=root", "--variant=minbase", f"--include={packages}"]
        # A mirror's copy of sid may be older than its Release file says it may get.
        options += ['--aptopt=Acquire::Check-Valid-Until "false"', "--quiet"]
        sources = [mirror()]
        if place.newer:
            sources.append(f"deb {sources[0]} {place.newer} main")
            pin = f"printf '{PIN.format(place.newer)}' > \"$1/etc/apt/preferences.d/rocm\""
            options.append(f'--setup-hook=mkdir -p "$1/etc/apt/preferences.d" && {pin}')
        command("mmdebstrap", *options, place.suite, unfinished, *sources)
        unfinished.rename(root)
    return root


def label(root: Path, hip: str) -> str:
    """Put a version.py of a ROCm build in the place of Debian's; the version of torch.

    *hip* is as in Place.
    """
    found = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    directory = root / inside(root, "python3", "-I", "-c", found).lstrip("/")
    path, original = directory / "version.py", directory / "version.py.debian"
    if not original.exists():
        path.rename(original)
    text = original.read_text(encoding="utf-8")
    (version,) = re.findall(r"^__version__ = '([\d.]+)", text, re.MULTILINE)
    if hip:
        changes = {"__version__": f"'{version}+rocm7.0'", "hip": f"'{hip}'"}
    else:
        # Debian's own version of torch stays: it names no ROCm.
        runtime, _, _ = inside(root, "hipconfig", "--version").partition("-")
        changes = {"hip": f"'{runtime}'"}
    for name, value in changes.items():
        pattern = rf"^({name}\b[^=\n]*= ).*$"
        text, count = re.subn(pattern, rf"\g<1>{value}", text, flags=re.MULTILINE)
        if count != 1:
            raise LiveError(f"{original} has {count} lines that set {name}, expected one")
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.unlink(missing_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(version)


def build_wheel(work: Path) -> Path:
    """Our wheel, from a copy: builds of others share the checkout's build directory."""
    source, wheels = work / "source", work / "wheels"
    for directory in (source, wheels):
        shutil.rmtree(directory, ignore_errors=True)
    skipped = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, ignore=skipped)
    command(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", wheels, source)
    (wheel,) = wheels.glob("*.whl")
    return wheel


def unpack(wheel: Path, directory: Path) -> None:
    """Install our wheel: a root has no pip, and our wheel nothing that needs one."""
    for path in directory.glob("rocm_autopatch*"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(directory)


def prepare(root: Path, place: Place, wheel: Path) -> str:
    """Label torch and install our wheel in a root; the version of torch."""
    version = label(root, place.hip)
    # Where pip would install. It is read before the directory of Debian's torch.
    sites = "import site; print(site.getsitepackages()[0])"
    site = root / inside(root, "python3", "-I", "-c", sites).lstrip("/")
    if place.apart:
        lay_out(wheel, root / HOOK)
        label(make_root("image", root.parent, ROOTS["image"]), HIP)
    else:
        unpack(wheel, site)
    for requirement in place.pip:
        name, _, number = requirement.partition("==")
        if not list(site.glob(f"{name}-{number}.dist-info")):
            pip_into(root, site, requirement)
    # A check that was killed leaves its policy behind.
    shutil.rmtree(root / "etc" / "rocm-autopatch", ignore_errors=True)
    if place.triton:
        add_gpu(root, place.triton)
    target = root / INSIDE
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in (HERE / place.script, *place.files):
        shutil.copy(path, target)
    for name in place.pythons:
        # Debian's Pythons share their packages, and so the torch of one of them.
        inside(root, name, "-m", "venv", "--without-pip", f"/{INSIDE}/{name}")
        (site,) = (target / name).glob("lib/python3*/site-packages")
        unpack(wheel, site)
    return version


def lay_out(wheel: Path, hook: Path) -> None:
    """Our package as launchers find it."""
    shutil.rmtree(hook, ignore_errors=True)
    command(sys.executable, ROOT / "deploy" / "image" / "tree.py", wheel, hook)


def pip_into(root: Path, site: Path, *words: str) -> None:
    """Have our pip install something into a directory of a root, for the root's Python."""
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    python = inside(root, "python3", "-I", "-c", version)
    options = ["--only-binary", ":all:", "--python-version", python]
    for tag in ("manylinux_2_27", "manylinux_2_28", "manylinux_2_17", "manylinux2014"):
        options += ["--platform", f"{tag}_x86_64"]
    pip = (sys.executable, "-m", "pip", "install", "-q", "--target", site)
    command(*pip, *options, *words)


def add_gpu(root: Path, triton: str) -> None:
    """Install Triton and the GPU that compiles and does not run."""
    asked = "import importlib.util as u, site; print(site.getsitepackages()[0], "
    asked += "u.find_spec('torch').submodule_search_locations[0])"
    site, torch = inside(root, "python3", "-I", "-c", asked).split()
    outside = root / site.lstrip("/")
    if not list(outside.glob(f"triton-{triton}.dist-info")):
        pip_into(root, outside, "--no-deps", f"triton=={triton}")
    amd_torch.install_stand_in(outside, root / torch.lstrip("/"))
    inside(root, *build.device_command(Path(site) / build.NAME, Path(torch), "g++"))


def told(done: subprocess.CompletedProcess[str]) -> str:
    """What a check printed, or how it failed."""
    if done.returncode == 0 and done.stdout.strip():
        return done.stdout.strip()
    last = [*done.stdout.splitlines(), *done.stderr.splitlines()][-15:]
    return f"status {done.returncode}\n" + "\n".join(last)


def check_root(where: str, work: Path, wheel: Path, names: Sequence[str]) -> dict[str, str]:
    """What each check says in a root; its first row is the table's head."""
    place = ROOTS[where]
    root = make_root(where, work, place)
    found = {"": f"torch {prepare(root, place, wheel)}"}
    for name in place.checks:
        if name not in names:
            continue
        say(f"{where}: {name}")
        try:
            script = f"/{INSIDE}/{place.script}"
            found[name] = told(enter(root, "python3", script, name, apart=place.apart))
        except subprocess.TimeoutExpired:
            found[name] = f"more than {LIMIT_S} s"
    return found


def check_torchrun(work: Path, surroundings: Path, wheel: Path) -> dict[str, str]:
    """What launchers.py says of torchrun."""
    try:
        _, hip = hip_torch.create(surroundings)
    except hip_torch.SurroundingsError as problem:
        raise LiveError(str(problem)) from None
    say("torchrun")
    target = work / "torchrun"
    shutil.rmtree(target, ignore_errors=True)
    lay_out(wheel, target / HOOK)
    for path in (HERE / "launchers.py", *LAUNCHERS.files):
        shutil.copy(path, target)
    words: list[str | Path] = [
        target / "opt",
        hip_torch.python(hip),
        target / "launchers.py",
        "torchrun",
    ]
    done = subprocess.run(
        ["unshare", *SPACES, "sh", "-c", WITH_HOOK, "sh", *words],
        env={"PATH": f"{hip}/bin:{PATH}", "HOME": str(target), "LC_ALL": "C.UTF-8"},
        cwd=target,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return {"": f"torch {hip_torch.TORCH}", "torchrun": told(done)}


def check_ray(work: Path, surroundings: Path, wheel: Path) -> dict[str, str]:
    """What ray_actors.py says, or why Ray can't be had."""
    head = {"": f"torch {hip_torch.TORCH}"}
    try:
        _, hip = hip_torch.create(surroundings)
    except hip_torch.SurroundingsError as problem:
        raise LiveError(str(problem)) from None
    venv = work / "ray"
    say("ray: installing")
    hip_torch.copy(hip, venv)
    python = hip_torch.python(venv)
    install: list[str | Path] = [python, "-I", "-m", "pip", "install", "-q"]
    tried = subprocess.run([*install, "ray"], capture_output=True, text=True, check=False)
    if tried.returncode:
        lines = tried.stderr.strip().splitlines()
        error = next((line for line in lines if line.startswith("ERROR")), "no word")
        return {**head, "ray": f"not tried, ray can't be installed: {error}"}
    command(*install, "--no-deps", wheel)
    say("ray: running")
    try:
        done = subprocess.run(
            [python, HERE / "ray_actors.py"],
            env={"PATH": os.environ["PATH"], "HOME": str(venv)},
            cwd=venv,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {**head, "ray": f"more than {LIMIT_S} s"}
    return {**head, "ray": told(done)}


def table(found: dict[str, dict[str, str]]) -> None:
    """Print what was found, by suite, and what is wrong."""
    width = 16
    print(" " * 12, *(f"{suite:{width}}" for suite in found))
    names = dict.fromkeys(name for some in found.values() for name in some)
    for name in names:
        cells = []
        for some in found.values():
            text = some.get(name, "-")
            one_word = name == "" or text in ("ok", "-")
            cells.append(text if one_word else "WRONG" if not skipped(text) else "not tried")
        print(f"{name:12}", *(f"{cell:{width}}" for cell in cells))
    for suite, some in found.items():
        for name, text in some.items():
            if name and text != "ok":
                print(f"\n{suite}, {name}:", text.replace("\n", "\n    "))


def skipped(text: str) -> bool:
    return text.startswith("not tried")


def main() -> int:
    """Run what was asked for, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    # The image's root is made where it is needed.
    places = [*(name for name in ROOTS if name != "image"), "torchrun", "ray"]
    parser.add_argument("where", nargs="*", metavar="|".join(places), help="default: all")
    parser.add_argument("--work", type=Path, default=ROOT / ".work" / "roots")
    parser.add_argument(
        "--surroundings",
        type=Path,
        default=ROOT / ".work",
        help="where hip_torch.py makes its venvs, on the same filesystem as --work",
    )
    checks = [name for place in ROOTS.values() for name in place.checks]
    checks = list(dict.fromkeys(checks))
    parser.add_argument("--check", action="append", choices=checks, help="only this one")
    asked = parser.parse_args()
    wrong = set(asked.where) - set(places)
    if wrong:
        parser.error(f"no such place: {', '.join(sorted(wrong))}")
    work = asked.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    found = {}
    try:
        with hip_torch.lock(work / "run.lock"):
            wheel = build_wheel(work)
            for where in asked.where or places:
                if where == "ray":
                    found[where] = check_ray(work, asked.surroundings, wheel)
                elif where == "torchrun":
                    found[where] = check_torchrun(work, asked.surroundings, wheel)
                else:
                    found[where] = check_root(where, work, wheel, asked.check or checks)
    except LiveError as error:
        print(f"live: {error}", file=sys.stderr)
        return 1
    table(found)
    said = [text for some in found.values() for name, text in some.items() if name]
    return int(any(text != "ok" and not skipped(text) for text in said))


if __name__ == "__main__":
    sys.exit(main())
