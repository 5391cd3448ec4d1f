"""Gives the hook to the containers of this machine, and takes it away: docs/fleet.md.

    python3 deploy/host/host.py install dist/rocm_autopatch-*.whl python3.10 python3.12
    python3 deploy/host/host.py status
    python3 deploy/host/host.py remove

It needs nothing but a Python of 3.9 or later, and what it installs needs none. The exit status is 1
where something has to be mended first, and for ``status`` where not all is as it was installed.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "image")]
# This checkout's package, and not one of another release that this Python's own start has loaded.
for name in [name for name in sys.modules if name.partition(".")[0] == "rocm_autopatch"]:
    del sys.modules[name]

from tree import lay_out  # noqa: E402

from rocm_autopatch import trust  # noqa: E402
from rocm_autopatch.support import files  # noqa: E402

# By this word, our entry is told from others, and Docker's engine knows our runtime.
MARK = "rocm-autopatch"
# What AMD's toolkit calls its devices, and where it writes its specification.
AMD_KIND = "amd.com/gpu"
AMD_PLACES = ("etc/cdi/amd.json", "var/run/cdi/amd.json")
OWN_CDI = "etc/cdi/rocm-autopatch.json"
# Podman 4.3 does not look into the directory of this name in /etc, unless it is told to.
OWN_OCI = "usr/share/containers/oci/hooks.d/rocm-autopatch.json"
DOCKER = "etc/docker/daemon.json"
# A container's variables are not for what runs as root on the host: runc gives a hook without an
# env those of the container, LD_PRELOAD among them.
HOOK_ENV = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"]
# A runtime refuses a container whose hook is gone, fails or takes too long. So it calls a shell,
# which always ends with 0, within a second, and writes one line if the hook was not there.
SCRIPT = (
    "h='@HOOK@'; w='is gone'; "
    'if test -x "$h"; then w=$(timeout -s KILL 0.7 "$h" 2>&1); s=$?; '
    'test "$s" != 0 || test "$w" != done || exit 0; '
    'test "$s" != 0 || w="did not end as it should"; w="${w:-ended with status $s}"; '
    'timeout -s KILL 0.2 "$h" undo; fi >/dev/null 2>&1; '
    # crun refuses the container if it can't write the state to the end.
    "timeout -s KILL 0.1 cat >/dev/null 2>&1; "
    # One line, whatever was said.
    'set -f; w=$(echo a container starts without the hook: "$h": $w); '
    'echo "rocm_autopatch: $w" >&2; logger -t rocm_autopatch "$w" >/dev/null 2>&1; exit 0'
)
# Of which Pythons the hook can be mounted, by the names of their zip files: 3.9 to 3.40, and those
# without a global lock.
ZIPS = [f"python3{minor}{kind}.zip" for kind in ("", "t") for minor in range(9, 41)]
# For "mount -a": what is to be mounted, where below the Python's library, and how.
FSTAB = """\
{tree} {zip} none bind,ro,nosuid,nodev,X-mount.mkdir=0755 0 0
rocm-autopatch {zip}/container tmpfs size=2m,nr_inodes=8,mode=0755,nosuid,nodev,noexec 0 0
"""
# For GNU's sed: adds a hook to a config.json, which Docker's engine writes as one line. No quote in
# a string of JSON is without a backslash, so each text below can only be a key.
DOCKER_SED = """\
1{
    $!b
    s/"createContainer":\\[]/"createContainer":[@HOOK@]/
    t
    s/"createContainer":\\[/&@HOOK@,/
    t
    s/"hooks":{}/"hooks":{"createContainer":[@HOOK@]}/
    t
    s/"hooks":{/&"createContainer":[@HOOK@],/
    t
    s/^{"/{"hooks":{"createContainer":[@HOOK@]},"/
    t
}
$q1
"""


class HostError(Exception):
    """What has to be mended: the message says what is wrong and what to do."""


@dataclass(frozen=True)
class Change:
    """A file that is to have other content, or none. ``before`` is None where there was no file."""

    path: Path
    before: bytes | None
    after: bytes | None


def read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file, None where there is no file."""
    text = read(path)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise HostError(f"{path} is no JSON, so it is left as it is: {error}") from error
    if not isinstance(found, dict):
        raise HostError(f"{path} is no object of JSON, so it is left as it is")
    return found


def to_bytes(document: Mapping[str, Any], indent: int | str = 2) -> bytes:
    return (json.dumps(document, indent=indent, ensure_ascii=False) + "\n").encode()


def hook_of(at: Path) -> dict[str, Any]:
    """Our entry, in the words of the OCI's runtime specification."""
    script = SCRIPT.replace("@HOOK@", str(at / "hook"))
    return {"path": "/bin/sh", "args": ["sh", "-c", script, MARK], "env": HOOK_ENV}


def is_ours(hook: Mapping[str, Any]) -> bool:
    return list(hook.get("args") or [])[-1:] == [MARK]


def oci_hook(at: Path) -> dict[str, Any]:
    """For hooks.d of Podman and CRI-O: each container has it."""
    return {
        "version": "1.0.0",
        "hook": hook_of(at),
        "when": {"always": True},
        "stages": ["createContainer"],
    }


def cdi_spec(at: Path) -> dict[str, Any]:
    """For --device rocm-autopatch/inject=on, of each engine that has CDI."""
    edits = {"hooks": [{"hookName": "createContainer", **hook_of(at)}]}
    return {
        "cdiVersion": "0.5.0",
        "kind": "rocm-autopatch/inject",
        "devices": [{"name": "on", "containerEdits": edits}],
    }


def with_amd(spec: dict[str, Any], at: Path | None) -> dict[str, Any]:
    """AMD's specification with our hook for each of its GPUs, or without it if there is no *at*."""
    edits = dict(spec.get("containerEdits") or {})
    hooks = [hook for hook in edits.get("hooks") or [] if not is_ours(hook)]
    if at:
        hooks.append({"hookName": "createContainer", **hook_of(at)})
    edits.pop("hooks", None)
    if hooks:
        edits["hooks"] = hooks
    made = {**spec, "containerEdits": edits}
    # AMD's has none.
    if not edits:
        del made["containerEdits"]
    return made


def with_docker(config: Mapping[str, Any], at: Path) -> dict[str, Any]:
    """The engine's configuration with our runtime in front of the one that is its default."""
    made = dict(config)
    runtimes = dict(made.get("runtimes") or {})
    default = str(made.get("default-runtime") or "runc")
    if default == MARK:
        return {
            **made,
            "runtimes": {**runtimes, MARK: {**runtimes[MARK], "path": str(at / "docker-runtime")}},
        }
    real = runtimes.get(default) or {"path": default}
    if not isinstance(real.get("path"), str):
        raise HostError(
            f"the default runtime of Docker's engine, {default}, is a shim of containerd, which is "
            "not supported: leave out --docker, and use --device rocm-autopatch/inject=on"
        )
    # Before release 23, the engine pastes these words into a script as they are.
    arguments = [real["path"], *(real.get("runtimeArgs") or [])]
    runtimes[MARK] = {"path": str(at / "docker-runtime"), "runtimeArgs": arguments}
    return {**made, "runtimes": runtimes, "default-runtime": MARK}


def without_docker(config: Mapping[str, Any], default: str, used: bool) -> dict[str, Any]:
    """The engine's configuration without us.

    If containers have our runtime by its *name*, that stays, and is their runtime itself.
    """
    made = dict(config)
    runtimes = dict(made.get("runtimes") or {})
    ours = runtimes.pop(MARK, None)
    if ours and used:
        real, *rest = ours.get("runtimeArgs") or ["runc"]
        runtimes[MARK] = {"path": real, **({"runtimeArgs": rest} if rest else {})}
    if made.get("default-runtime") == MARK:
        del made["default-runtime"]
        if default:
            made["default-runtime"] = default
    made.pop("runtimes", None)
    return {**made, "runtimes": runtimes} if runtimes else made


@dataclass(frozen=True)
class Host:
    """Where things are on this machine."""

    at: Path
    root: Path

    @property
    def record(self) -> Path:
        """What was installed: what was asked for, and Docker's default before us."""
        return self.at / "installed.json"

    def amd(self) -> Path | None:
        for place in AMD_PLACES:
            path = self.root / place
            found = read_json(path)
            if found and found.get("kind") == AMD_KIND:
                return path
        return None

    def installed(self) -> dict[str, Any]:
        return read_json(self.record) or {}

    def judge(self, path: Path) -> None:
        """Raise HostError if others could put something else at *path*: root runs it."""
        while not path.exists():
            path = path.parent
        why = trust.directory(str(path)) if path.is_dir() else trust.look(str(path), 1)[1]
        if why:
            raise HostError(f"nothing is installed: {path}: {why}")


def wanted(host: Host, docker: bool, amd: bool) -> Iterator[Change]:
    """What each runtime's files are to be while the hook is installed."""
    for place, made in ((OWN_OCI, oci_hook(host.at)), (OWN_CDI, cdi_spec(host.at))):
        path = host.root / place
        yield Change(path, read(path), to_bytes(made))
    if amd:
        found = host.amd()
        if found is None:
            raise HostError(
                f"there is no specification of AMD's GPUs in {host.root}/cdi or /var/run/cdi: run "
                "amd-ctk cdi generate, or leave out --gpus"
            )
        yield Change(found, read(found), to_bytes(with_amd(read_json(found) or {}, host.at)))
    if docker:
        path = host.root / DOCKER
        yield Change(path, read(path), to_bytes(with_docker(read_json(path) or {}, host.at)))


def unwanted(host: Host) -> Iterator[Change]:
    """What each runtime's files are without us."""
    for place in (OWN_OCI, OWN_CDI):
        path = host.root / place
        if path.exists():
            yield Change(path, read(path), None)
    for place in AMD_PLACES:
        path = host.root / place
        spec = read_json(path) if path.exists() else None
        if spec and any(map(is_ours, (spec.get("containerEdits") or {}).get("hooks") or [])):
            yield Change(path, read(path), to_bytes(with_amd(spec, None)))
    path = host.root / DOCKER
    config = read_json(path)
    if config and MARK in (config.get("runtimes") or {}):
        record = host.installed()
        made = without_docker(config, record.get("docker-default") or "", uses(host, config))
        yield Change(
            path, read(path), to_bytes(made) if made or not record.get("docker-new") else None
        )


def uses(host: Host, config: Mapping[str, Any]) -> bool:
    """Whether containers of Docker's engine have our runtime by its name."""
    data = str(config.get("data-root") or host.root / "var/lib/docker")
    place = Path(data, "containers")
    for path in place.glob("*/hostconfig.json"):
        if f'"Runtime":"{MARK}"'.encode() in (read(path) or b""):
            return True
    return False


def carry_out(changes: list[Change]) -> None:
    """All of them, or none."""
    done: list[Change] = []
    made: list[Path] = []
    try:
        for change in changes:
            if change.after == read(change.path):
                continue
            missing = [path for path in change.path.parents if not path.exists()]
            for path in missing[::-1]:
                path.mkdir(mode=0o755)
                made.append(path)
            done.append(change)
            if change.after is None:
                change.path.unlink()
            else:
                files.write(change.path, change.after)
    except BaseException:
        for change in done[::-1]:
            if change.before is None:
                change.path.unlink(missing_ok=True)
            else:
                files.write(change.path, change.before)
        for path in made[::-1]:
            path.rmdir()
        raise


def lay_out_host(host: Host, to: Path, options: argparse.Namespace) -> None:
    """Fill *to* with all that stands in the host's directory but for the record."""
    tree = to / "tree"
    tree.mkdir(mode=0o755)
    lay_out(options.wheel, tree, options.pythons, f"{host.at}/tree/package", None, 0, "package")
    # Where a container's own facts are mounted.
    (tree / "container").mkdir(mode=0o755)
    os.utime(tree, (0, 0))
    (to / "fstab").mkdir(mode=0o755)
    for name in ZIPS:
        files.write(to / "fstab" / name, FSTAB.format(tree=host.at / "tree", zip=name).encode())
    for name, mode in (("hook", 0o755), ("docker-runtime", 0o755), ("facts.awk", 0o644)):
        shutil.copyfile(HERE / name, to / name)
        (to / name).chmod(mode)
    hook = json.dumps(hook_of(host.at))
    files.write(to / "hook.json", hook.encode())
    escaped = "".join(f"\\{letter}" if letter in "\\&/" else letter for letter in hook)
    files.write(to / "docker.sed", DOCKER_SED.replace("@HOOK@", escaped).encode())
    left_out = read(host.at / "left-out") or b""
    if options.leave_out is not None:
        left_out = "".join(f"{name}\n" for name in options.leave_out).encode()
    files.write(to / "left-out", left_out)


def digest(place: Path) -> str:
    """Of each file, its name, mode and content."""
    made = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        if path.name == "installed.json":
            continue
        made.update(f"{path.relative_to(place)}\0{path.stat().st_mode}\0".encode())
        if path.is_file():
            made.update(hashlib.sha256(path.read_bytes()).digest())
    return made.hexdigest()


def install(host: Host, options: argparse.Namespace) -> None:
    if not zipfile.is_zipfile(options.wheel):
        raise HostError(f"{options.wheel} is no wheel that can be read")
    pythons = []
    for python in options.pythons:
        found = shutil.which(python)
        if not found:
            raise HostError(f"there is no {python}")
        pythons.append(os.path.abspath(found))
    options.pythons = pythons
    # What asks for less takes away what an earlier one has added.
    before = host.installed()
    asked = {"docker": options.docker, "gpus": options.gpus}
    host.judge(host.at)
    changes = list(wanted(host, options.docker, options.gpus))
    kept = {change.path for change in changes}
    changes += [change for change in unwanted(host) if change.path not in kept]
    for change in changes:
        host.judge(change.path)
    record = {
        **asked,
        "docker-default": before.get("docker-default"),
        "docker-new": before.get("docker-new"),
    }
    if options.docker and not before.get("docker"):
        config = read_json(host.root / DOCKER)
        record["docker-new"] = config is None
        record["docker-default"] = (config or {}).get("default-runtime")
    record["made"] = before.get("made") or []
    for path in (host.at, *(change.path for change in changes if change.after is not None)):
        new = [str(one) for one in list(path.parents)[::-1] if not one.exists()]
        record["made"] += [one for one in new if one not in record["made"]]
    host.at.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=host.at.parent, prefix=".rocm-autopatch-") as above:
        made = Path(above, "new")
        made.mkdir(mode=0o755)
        lay_out_host(host, made, options)
        files.write(made / "installed.json", to_bytes(record))
        same = host.at.is_dir() and digest(host.at) == digest(made)
        if not same:
            # Containers that run have the old tree's files by their mount.
            if host.at.exists():
                host.at.rename(Path(above, "old"))
            made.rename(host.at)
        try:
            carry_out(changes)
            if same:
                files.write(host.record, to_bytes(record))
        except BaseException:
            if not same:
                host.at.rename(Path(above, "undone"))
                if Path(above, "old").exists():
                    Path(above, "old").rename(host.at)
            raise
    print(f"{host.at} has the hook. New containers get it:")
    print("  Podman and CRI-O: each of them")
    print("  engines with CDI: those with --device rocm-autopatch/inject=on")
    if options.gpus:
        print(f"  engines with CDI: those with --gpus or --device {AMD_KIND}=...")
    if options.docker:
        print("  Docker's engine: each of them, after: systemctl reload docker")


def remove(host: Host, options: argparse.Namespace) -> None:
    changes = list(unwanted(host))
    used = any(
        change.path == host.root / DOCKER and MARK.encode() in (change.after or b"")
        for change in changes
    )
    made = host.installed().get("made") or []
    # First what names the hook, then the hook.
    carry_out(changes)
    if host.at.exists():
        if not host.record.exists():
            raise HostError(
                f"{host.at} is left as it is: it has no installed.json, so it may be another's"
            )
        shutil.rmtree(host.at)
    for directory in made[::-1]:
        try:
            os.rmdir(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT, errno.EEXIST):
                raise
    print("New containers have no hook." if changes else "There was no hook.")
    if used:
        print(
            f"{host.root / DOCKER} still has the runtime {MARK}, which is the plain runtime now: "
            "there are containers that name it. When they are gone, remove once more."
        )
    if any(change.path == host.root / DOCKER for change in changes):
        print("For Docker's engine, run: systemctl reload docker")


def status(host: Host, options: argparse.Namespace) -> None:
    record = host.installed()
    if not record:
        raise HostError(f"{host.at} has no hook")
    problems = []
    for change in wanted(host, record.get("docker", False), record.get("gpus", False)):
        fine = change.before is not None and change.before == change.after
        if not fine and change.before is not None and change.path.name != Path(DOCKER).name:
            fine = json.loads(change.before) == json.loads(change.after or b"")
        if fine:
            print(f"{change.path}: as installed")
        else:
            problems.append(f"{change.path} is gone or was changed: run install again")
    for path in (host.at, *(host.at / name for name in ("hook", "facts.awk", "fstab", "tree"))):
        try:
            host.judge(path)
            if not path.exists():
                problems.append(f"{path} is gone: run install again")
        except HostError as error:
            problems.append(str(error).removeprefix("nothing is installed: "))
    if problems:
        raise HostError("\n".join(problems))
    print(f"{host.at}: as installed")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--at", type=Path, default="/opt/rocm-autopatch-host", help=argparse.SUPPRESS
    )
    parser.add_argument("--root", type=Path, default="/", help=argparse.SUPPRESS)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, do: Callable[[Host, argparse.Namespace], None], what: str) -> Any:
        made = commands.add_parser(name, help=what, description=what)
        made.set_defaults(do=do)
        return made

    add = command("install", install, "give the hook to new containers")
    add.add_argument("wheel", type=Path)
    add.add_argument(
        "pythons", nargs="*", metavar="python", help="each compiles the package for its own version"
    )
    add.add_argument("--docker", action="store_true", help="to each container of Docker's engine")
    add.add_argument(
        "--gpus",
        action="store_true",
        help="to each that asks for a GPU by AMD's specification of CDI",
    )
    add.add_argument(
        "--leave-out",
        action="append",
        metavar="IMAGE",
        help="not to containers of this image; * is any text; without this option, the list stays",
    )
    command("remove", remove, "take it away")
    command("status", status, "say whether all is as it was installed")
    options = parser.parse_args()
    host = Host(Path(os.path.abspath(options.at)), Path(os.path.abspath(options.root)))
    if os.geteuid():
        sys.exit("only root can do this")
    if not str(host.at).isprintable() or set(str(host.at)) & set(" '\"\\"):
        parser.error("--at: a path without blanks and quotes")
    try:
        options.do(host, options)
    except HostError as error:
        sys.exit(str(error))
    except OSError as error:
        sys.exit(f"{error.filename or host.at}: {error.strerror or error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} can't compile the package: see its lines above")


if __name__ == "__main__":
    main()
