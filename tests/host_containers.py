"""Containers of runc or crun whose root is this machine's own, with a layer above it.

No image is made: a layer in memory takes what is written. The bundle lies where Podman or Docker's
engine would have it, beside what they keep of the container's image.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HIP, ROOT, TORCH, label_torch

HOST = ROOT / "deploy/host/host.py"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PYTHON = "/opt/venv/bin/python3"
NUMBER = "0f" * 32
# $1 what is above this machine's root, $2 the root, $3 how many files the layer above has room for,
# $4 the bundle, $5 where the list of what is in that layer goes, $6 a logger, then the runtime.
START = r"""
set -e
umount /sys/fs/cgroup/unified 2>/dev/null || :
above=$2.above
mkdir -p "$2" "$above" "$2.layer"
# Not where it is: layers of an overlay must not lie in one another.
mount -t tmpfs layer "$2.layer"
test ! -d "$1" || cp -a "$1/." "$2.layer"
mount -t tmpfs -o "size=16m,nr_inodes=$3" above "$above"
mkdir "$above/upper" "$above/work"
mount -t overlay -o "lowerdir=$2.layer:/,upperdir=$above/upper,workdir=$above/work" root "$2"
test "$3" = 0 || for number in $(seq "$3"); do touch "$2/filler$number" 2>/dev/null || break; done
mount --bind "$6" /usr/bin/logger
bundle=$4 list=$5
shift 6
status=0
"$@" -b "$bundle" "made$$" || status=$?
cd "$above/upper"
find . ! -name . -printf '%y %P\n' | sort >"$list"
exit "$status"
"""


@dataclass(frozen=True)
class Result:
    status: int
    stdout: str
    stderr: str
    # What is in the container's own layer, as "d usr/lib/python311.zip".
    written: tuple[str, ...]
    # The lines for the system's log.
    logged: tuple[str, ...]


@dataclass(frozen=True)
class Machine:
    """Where the hook is installed, and what its containers have above this machine's root."""

    place: Path
    layer: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", self.place / "layer")

    @property
    def at(self) -> Path:
        return self.place / "opt"

    def host(
        self, *arguments: str | Path, check: bool = True, prefix: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run deploy/host/host.py for this machine."""
        options = ["--at", self.at, "--root", self.place]
        done = subprocess.run(
            list(map(str, [*prefix, sys.executable, HOST, *options, *arguments])),
            capture_output=True,
            text=True,
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def add_venv(self) -> None:
        """PYTHON in each container: a venv of the tests' own Python, with a label for a torch."""
        made = self.layer / "opt/venv"
        version = "python%d.%d" % sys.version_info[:2]
        base = Path(sys.base_prefix).resolve() / "bin"
        site = made / "lib" / version / "site-packages"
        site.mkdir(parents=True)
        (made / "bin").mkdir()
        (made / "bin/python3").symlink_to(base / version)
        (made / "pyvenv.cfg").write_text(f"home = {base}\ninclude-system-site-packages = false\n")
        label_torch(site, TORCH, HIP)

    def hook(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.at / "hook.json").read_text())
        return found

    def run(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        engine: str = "podman",
        image: Mapping[str, str] | None = None,
        name: str = "docker.io/rocm/made:1",
        labels: Mapping[str, str] | None = None,
        image_labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        hooks: Sequence[Mapping[str, Any]] | None = None,
        mounts: Mapping[str, Path] | None = None,
        read_only: bool = False,
        user: int = 0,
        room: int = 0,
        runtime: str = "runc",
        wrapper: Sequence[str | Path] = (),
    ) -> Result:
        """Start a container as *engine* would: *image* has its ENV, *env* is what a user gives.

        *hooks* stands for those of the installed hook. With *room* for some
        files, the container's layer is full.
        """
        number = uuid.uuid4().hex
        made = self.place / number
        config = {
            "Env": [f"{key}={value}" for key, value in (image or {}).items()],
            "Labels": image_labels or {},
        }
        if engine == "podman":
            bundle = made / "storage/overlay-containers" / number / "userdata"
            root = made / "storage/overlay/layer/merged"
            key = base64.b64encode(f"sha256:{NUMBER}".encode()).decode()
            put(made / f"storage/overlay-images/{NUMBER}/={key}", {"config": config})
            rows = [
                {"id": "other", "image": "", "names": ["{"], "flags": {"n": [1, {"a": "b"}]}},
                {"id": number, "image": NUMBER, "metadata": json.dumps({"image-name": name})},
                {"id": "third", "image": "0e" * 32, "metadata": "{}"},
            ]
            put(bundle.parents[1] / "containers.json", rows)
        elif engine == "docker":
            bundle = made / "run/io.containerd.runtime.v2.task/moby" / number
            root = made / "data/overlay2/layer/merged"
            put(made / f"data/image/overlay2/imagedb/content/sha256/{NUMBER}", {"config": config})
            about = {"Image": name, "Labels": labels or {}, "Env": ["not looked at"]}
            kept = {"Config": about, "Image": f"sha256:{NUMBER}"}
            put(made / "data/containers" / number / "config.v2.json", kept)
        else:
            name = "buildah1234" if engine == "buildah" else "bundle"
            bundle, root = made / name, made / "root"
        bundle.mkdir(parents=True, exist_ok=True)
        subprocess.run(["runc", "spec"], cwd=bundle, check=True)
        spec = json.loads((bundle / "config.json").read_text())
        variables = {"PATH": SYSTEM_PATH, **(image or {}), "HOME": "/", **(env or {})}
        spec["root"] = {"path": str(root), "readonly": read_only}
        spec["process"].update(
            terminal=False,
            user={"uid": user, "gid": user},
            args=list(command),
            env=[f"{key}={value}" for key, value in variables.items()],
        )
        del spec["process"]["rlimits"]
        spec["annotations"] = dict(annotations or {})
        spec["mounts"] += [
            {"destination": to, "source": str(source), "type": "bind", "options": ["bind", "rw"]}
            for to, source in (mounts or {}).items()
        ]
        if not wrapper:
            used = [self.hook()] if hooks is None else list(hooks)
            spec["hooks"] = {"createContainer": used}
        put(bundle / "config.json", spec)
        log = made / "log"
        logger = made / "logger"
        # $1 is -t, $2 the program.
        logger.write_text(f"#!/bin/sh\nprintf '%s: %s\\n' \"$2\" \"$3\" >>'{log}'\n")
        logger.chmod(0o755)
        log.touch()
        written = made / "written"
        program = [runtime, "--root", made / "runtime", "run"]
        done = subprocess.run(
            ["unshare", "-m", "--propagation", "private", "sh", "-c", START, "sh"]
            + [
                str(one)
                for one in (self.layer, root, room, bundle, written, logger, *wrapper, *program)
            ],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        found = written.read_text().splitlines() if written.exists() else ()
        logged = tuple(log.read_text().splitlines())
        shutil.rmtree(made)
        return Result(done.returncode, done.stdout, done.stderr, tuple(found), logged)


def put(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # As Go writes it: without blanks, and with < and & as numbers.
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    path.write_text(text, encoding="utf-8")


def skip_without_containers(place: Path) -> None:
    """Skip where no container can be started."""
    for program in ("runc", "awk", "timeout"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if os.getuid() != 0:
        pytest.skip("starting runc as these tests do needs root")
    done = Machine(place).run("true", hooks=[], engine="none")
    if done.status:
        pytest.skip(f"no container starts here: {done.stderr[-300:]}")
