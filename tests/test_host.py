"""deploy/host: what one hook of the host gives to containers, and that it stops none of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MAX, ROOT, SEEN
from tests.host_containers import (
    NUMBER,
    PYTHON,
    SYSTEM_PATH,
    Machine,
    Result,
    put,
    skip_without_containers,
)

ZIP = "python%d%d.zip" % sys.version_info[:2]
BASE = Path(sys.base_prefix).resolve() / "lib"
OURS = f"d {(BASE / ZIP).relative_to('/')}"
# What a program can see of its surroundings. SHLVL and such are a shell's.
SURROUNDINGS = "import json, os, sys; print(json.dumps([dict(os.environ), sys.path, os.getcwd()]))"
FACTS = (
    "import json, rocm_autopatch, os; found = rocm_autopatch.status(); "
    "print(json.dumps([found['facts'].get('image'), found['baseline'], rocm_autopatch.__file__]))"
)


@pytest.fixture(scope="module")
def machine(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    place = tmp_path_factory.mktemp("host")
    skip_without_containers(place)
    made = Machine(place)
    made.add_venv()
    made.host("install", wheel, sys.executable)
    yield made
    made.host("remove")


@pytest.fixture
def own(machine: Machine, tmp_path: Path) -> Machine:
    """A machine whose files a test may change."""
    made = Machine(tmp_path)
    shutil.copytree(machine.at, made.at, symlinks=True)
    for path in (made.at / "hook.json", *(made.at / "fstab").iterdir()):
        path.write_text(path.read_text().replace(str(machine.at), str(made.at)))
    shutil.copytree(machine.layer, made.layer, symlinks=True)
    return made


def seen(done: Result) -> str:
    """What a container prints, which has to start."""
    assert done.status == 0, done.stderr
    return done.stdout.rstrip("\n")


class TestTheHookIsThere:
    @pytest.mark.parametrize("engine", ["podman", "docker", "none"])
    def test_in_a_venv(self, machine: Machine, engine: str) -> None:
        done = machine.run(PYTHON, "-c", SEEN, image={MAX: "1"}, engine=engine)
        assert seen(done) == "None"
        (line,) = done.stderr.splitlines()
        name = "not named" if engine == "none" else "docker.io/rocm/made:1"
        assert line.startswith(f"rocm_autopatch: policy safe applies (image: {name})")
        assert done.logged == ()

    @pytest.mark.parametrize("flag", ["-I", "-E"])
    def test_in_an_isolated_python(self, machine: Machine, flag: str) -> None:
        done = machine.run(PYTHON, flag, "-c", SEEN, image={MAX: "1"})
        assert seen(done) == "None"

    def test_without_an_environment(self, machine: Machine) -> None:
        code = "import sitecustomize, sys; print(sys.modules['rocm_autopatch'].__file__)"
        done = machine.run("env", "-i", PYTHON, "-c", code)
        assert seen(done) == f"{BASE}/{ZIP}/package/rocm_autopatch/__init__.py"

    @pytest.mark.parametrize("runtime", ["runc", "crun"])
    def test_on_a_read_only_root(self, machine: Machine, runtime: str) -> None:
        if not shutil.which(runtime):
            pytest.skip(f"{runtime} is not installed")
        code = f"{SEEN}; print(os.access('/etc', os.W_OK))"
        done = machine.run(*(PYTHON, "-c", code), image={MAX: "1"}, read_only=True, runtime=runtime)
        assert seen(done) == "None\nFalse"
        assert done.logged == ()

    def test_for_another_user(self, machine: Machine) -> None:
        # The container's venv is of the tests' own Python, whichever one PATH has first.
        if not all(parent.stat().st_mode & 0o001 for parent in BASE.parents):
            pytest.skip("another user can't reach the tests' Python")
        done = machine.run(PYTHON, "-c", SEEN, image={MAX: "1"}, user=65534)
        assert seen(done) == "None"

    def test_for_each_python(self, machine: Machine) -> None:
        """All of this machine are in the container. None is left out, and no other path is made."""
        done = machine.run("true")
        made = {line[2:] for line in done.written if line.endswith(".zip")}
        expected = set()
        for version in ("3.9", "3.10", "3.11", "3.12", "3.13"):
            for path in Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(
                f"versions/{version}.*/lib/python{version}/os.py"
            ):
                expected.add(str(path.parents[1] / f"python{version.replace('.', '')}.zip")[1:])
        assert OURS[2:] in made
        assert expected <= made
        old = [path for path in made if path.endswith(("python27.zip", "python36.zip", "38.zip"))]
        assert old == []

    def test_a_command_of_ours(self, machine: Machine) -> None:
        command = (PYTHON, "-m", "rocm_autopatch", "status", "--no-torch", "--json")
        found = json.loads(seen(machine.run(*command)))
        assert (found["active"], found["errors"]) == (True, [])
        assert found["baseline"] == f"{BASE}/{ZIP}/container/baseline"


class TestStart:
    def test_is_of_few_programs(self, own: Machine, tmp_path: Path) -> None:
        """Each takes a millisecond of a container's start."""
        said = tmp_path / "said"
        programs = tmp_path / "programs"
        programs.mkdir()
        for name in ("awk", "cat", "mkdir", "mount", "rmdir", "sh", "timeout", "umount"):
            real = shutil.which(name)
            (programs / name).write_text(f'#!/bin/sh\necho {name} >>{said}\nexec {real} "$@"\n')
            (programs / name).chmod(0o755)
        hook = own.hook()
        hook["env"] = [f"PATH={programs}:{SYSTEM_PATH}", "LC_ALL=C"]
        # With one Python, as most images have it.
        text = (own.at / "hook").read_text()
        start, rest = text.split("libraries='", 1)
        (own.at / "hook").write_text(f"{start}libraries='{BASE}{rest[rest.index(chr(39)) :]}")
        done = own.run(PYTHON, "-c", SEEN, image={MAX: "1", "PATH": "/nowhere/bin"}, hooks=[hook])
        assert seen(done) == "None"
        assert said.read_text().split() == ["timeout", "awk", "mount"]

    def test_of_a_python_of_no_known_number(self, own: Machine) -> None:
        """The hook's table has Pythons up to 3.40."""
        for name in ("python3.40", "python3.41", "python3.14t"):
            (own.layer / f"opt/other/lib/{name}").mkdir(parents=True)
            (own.layer / f"opt/other/lib/{name}/os.py").touch()
        done = own.run("true")
        made = {line for line in done.written if line.startswith("d opt/other/lib/python3")}
        zips = {line.rpartition("/")[2] for line in made if line.endswith(".zip")}
        assert (done.logged, zips) == ((), {"python340.zip", "python314t.zip"})


class TestNothingElse:
    def test_is_changed(self, machine: Machine) -> None:
        """No variable, no entry of sys.path, and no file but the place of the mount."""
        image = {"PYTHONPATH": "/srv/plugins", "A": "1"}
        idle = {"ROCM_AUTOPATCH_LOG": "quiet"}
        with_hook = machine.run(PYTHON, "-c", SURROUNDINGS, image=image, env=idle)
        without = machine.run(PYTHON, "-c", SURROUNDINGS, image=image, env=idle, hooks=[])
        assert json.loads(seen(with_hook)) == json.loads(seen(without))
        more = set(with_hook.written) - set(without.written)
        parents = {f"d {parent}" for line in more for parent in Path(line[2:]).parents}
        assert OURS in more
        assert {line for line in more - parents if not line.endswith(".zip")} == set()

    def test_a_container_can_t_write_it(self, machine: Machine) -> None:
        place = f"{BASE}/{ZIP}"
        code = f"echo x >{place}/sitecustomize.py; echo x >{place}/package/x; rm -r {place}/package"
        done = machine.run("sh", "-c", f"{code}; cat {place}/sitecustomize.py")
        assert done.stdout == (ROOT / "sitecustomize_stub/sitecustomize.py").read_text()
        assert sorted(os.listdir(machine.at / "tree/package")) == ["rocm_autopatch"]

    @pytest.mark.parametrize("kind", ["file", "full directory", "link"])
    def test_what_is_at_the_place_stays(self, own: Machine, kind: str) -> None:
        place = own.layer / "opt/other/lib/python3.12"
        place.mkdir(parents=True)
        (place / "os.py").touch()
        zipped = place.parent / "python312.zip"
        if kind == "file":
            zipped.write_text("a zip")
        elif kind == "link":
            zipped.symlink_to("/etc")
        else:
            zipped.mkdir()
            (zipped / "own.py").touch()
        listed = seen(own.run("ls", "-lAR", "/opt/other/lib"))
        assert listed == seen(own.run("ls", "-lAR", "/opt/other/lib", hooks=[]))

    def test_a_volume_stays_as_it_is(self, machine: Machine, tmp_path: Path) -> None:
        library = tmp_path / "lib/python3.12"
        library.mkdir(parents=True)
        (library / "os.py").touch()
        machine.run("true", mounts={"/opt/shared": tmp_path})
        assert os.listdir(tmp_path / "lib") == ["python3.12"]

    def test_a_link_does_not_lead_to_the_host(self, own: Machine, tmp_path: Path) -> None:
        """A hook of this kind runs before the container's root is "/"."""
        library = tmp_path / "outside/lib/python3.12"
        library.mkdir(parents=True)
        (library / "os.py").touch()
        (own.layer / "opt").mkdir(exist_ok=True)
        (own.layer / "opt/evil").symlink_to(tmp_path / "outside")
        done = own.run("true", env={"VIRTUAL_ENV": f"/proc/1/root{tmp_path}/outside"})
        assert done.status == 0
        assert os.listdir(tmp_path / "outside/lib") == ["python3.12"]

    def test_the_container_s_variables_are_not_the_hook_s(
        self, own: Machine, tmp_path: Path
    ) -> None:
        """runc gives them to a hook that has none. LD_PRELOAD would run an image's code as root."""
        said = tmp_path / "said"
        (own.at / "hook").write_text(f"#!/bin/sh\nenv >{said}\n")
        own.run("true", image={"LD_PRELOAD": "/proc/self/cwd/evil.so", "ENV": "x", "BASH_ENV": "y"})
        names = {line.partition("=")[0] for line in said.read_text().splitlines()}
        assert names - {"PWD", "SHLVL", "_", "OLDPWD"} == {"PATH", "LC_ALL"}


class TestWhoseValue:
    @pytest.mark.parametrize("engine", ["podman", "docker"])
    @pytest.mark.parametrize(
        ("image", "env", "stays"),
        [
            ({MAX: "1"}, {}, None),
            ({MAX: "1"}, {MAX: "0"}, "0"),
            ({}, {MAX: "1"}, "1"),
            ({"A": 'a"<b>\\n\n\t\\', MAX: "1"}, {"A": "other"}, None),
        ],
    )
    def test_is_known(
        self,
        machine: Machine,
        engine: str,
        image: Mapping[str, str],
        env: Mapping[str, str],
        stays: str | None,
    ) -> None:
        done = machine.run(PYTHON, "-c", SEEN, engine=engine, image=image, env=env)
        assert seen(done) == str(stays)
        assert ("a user set it, not the image: " + MAX in done.stderr) == (stays is not None)

    def test_is_not_known_of_a_bundle(self, machine: Machine) -> None:
        done = machine.run(PYTHON, "-c", SEEN, engine="none", env={MAX: "0"})
        assert seen(done) == "None"

    def test_the_baseline_is_the_image_s(self, machine: Machine) -> None:
        image = {"A": "a\\b\n=c", "B": "", "É": "ü\N{GRINNING FACE}", "C": "%s$(id)`id`'"}
        done = machine.run("cat", f"{BASE}/{ZIP}/container/baseline", image=image, env={"D": "1"})
        lines = seen(done).split("\0")
        assert list(filter(None, lines)) == [f"{name}={value}" for name, value in image.items()]

    @pytest.mark.parametrize("name", [NUMBER, f"sha256:{NUMBER}", ""])
    def test_an_image_without_a_name(self, machine: Machine, name: str) -> None:
        assert json.loads(seen(machine.run(PYTHON, "-c", FACTS, name=name)))[0] is None

    def test_an_image_s_own_baseline_is_used(self, own: Machine) -> None:
        place = own.layer / "etc/rocm-autopatch"
        place.mkdir(parents=True)
        (place / "baseline").write_text(f"{MAX}=0\0")
        (place / "image").write_text("docker.io/rocm/base:1\n")
        done = own.run(PYTHON, "-c", FACTS)
        image, baseline, _ = json.loads(seen(done))
        assert baseline == "/etc/rocm-autopatch/baseline"
        assert "docker.io/rocm/base:1" in json.dumps(image)
        assert seen(own.run(PYTHON, "-c", SEEN, image={MAX: "1"})) == "1"

    def test_an_image_s_own_package_is_used(self, own: Machine) -> None:
        (site,) = own.layer.glob("opt/venv/lib/python3*/site-packages")
        shutil.copytree(own.at / "tree/package/rocm_autopatch", site / "rocm_autopatch")
        shutil.copy(ROOT / "rocm_autopatch.pth", site)
        found = json.loads(seen(own.run(PYTHON, "-c", FACTS, image={MAX: "1"})))
        assert found == [
            None,
            "",
            f"{str(site).removeprefix(str(own.layer))}/rocm_autopatch/__init__.py",
        ]


class TestLeftOut:
    @pytest.mark.parametrize("word", ["off", "False", " 0 ", "no"])
    def test_by_the_switch(self, machine: Machine, word: str) -> None:
        self.check(machine.run("true", env={"ROCM_AUTOPATCH": word}))

    @pytest.mark.parametrize("word", ["off", "false", "disabled"])
    def test_by_an_annotation(self, machine: Machine, word: str) -> None:
        self.check(machine.run("true", annotations={"rocm-autopatch/inject": word}))

    def test_by_a_label_of_docker_s(self, machine: Machine) -> None:
        self.check(machine.run("true", engine="docker", labels={"rocm-autopatch/inject": "off"}))

    @pytest.mark.parametrize("engine", ["podman", "docker"])
    def test_by_a_label_of_the_image(self, machine: Machine, engine: str) -> None:
        labels = {"rocm-autopatch/inject": "off"}
        self.check(machine.run("true", engine=engine, image_labels=labels))

    @pytest.mark.parametrize(
        ("pattern", "name", "is_left_out"),
        [
            ("rocm/made:1", "docker.io/rocm/made:1", True),
            ("rocm/*", "docker.io/rocm/made:1", True),
            ("*:1", "docker.io/rocm/made:1", True),
            ("docker.io/*made*", "docker.io/rocm/made:1", True),
            ("postgres:*", "docker.io/library/postgres:16", True),
            ("rocm/made", "docker.io/rocm/made:1", False),
            ("rocm/mad.:1", "docker.io/rocm/made:1", False),
            ("*made*made*", "docker.io/rocm/made:1", False),
            ("# *", "docker.io/rocm/made:1", False),
        ],
    )
    def test_by_the_list(self, own: Machine, pattern: str, name: str, is_left_out: bool) -> None:
        (own.at / "left-out").write_text(f"\n# a remark\nother:1\n{pattern}\n")
        done = own.run("true", name=name)
        assert done.status == 0
        assert (OURS not in done.written) == is_left_out

    def test_a_step_of_docker_s_build(self, machine: Machine) -> None:
        """Or each image that is built would have the empty place of the mount."""
        self.check(machine.run("true", engine="docker", name=f"sha256:{NUMBER}"))

    def test_a_step_of_buildah_s(self, machine: Machine) -> None:
        self.check(machine.run("true", engine="buildah"))

    def test_an_image_without_python(self, machine: Machine, tmp_path: Path) -> None:
        """Nothing happens in it, and nothing is said."""
        busybox = shutil.which("busybox")
        if not busybox or b"/ld-" in Path(busybox).read_bytes():
            pytest.skip("no busybox is installed that needs no library")
        for name in ("bin", "proc", "sys", "dev"):
            (tmp_path / "root" / name).mkdir(parents=True)
        shutil.copy(busybox, tmp_path / "root/bin/busybox")
        subprocess.run(["runc", "spec"], cwd=tmp_path, check=True)
        spec = json.loads((tmp_path / "config.json").read_text())
        spec["root"] = {"path": "root", "readonly": False}
        spec["process"].update(terminal=False, args=["/bin/busybox", "find", "/", "-xdev"])
        del spec["process"]["rlimits"]
        spec["hooks"] = {"createContainer": [machine.hook()]}
        (tmp_path / "config.json").write_text(json.dumps(spec))
        command = ["runc", "--root", str(tmp_path / "state"), "run", f"test-{os.getpid()}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        listed = sorted(done.stdout.split())
        assert listed == ["/", "/bin", "/bin/busybox", "/dev", "/proc", "/sys"]

    def check(self, done: Result) -> None:
        assert done.status == 0, done.stderr
        assert [line for line in done.written if line.endswith(".zip")] == []
        assert done.logged == ()


FAULTS = {
    "exit 1": ("#!/bin/sh\necho wrong\nexit 1\n", "wrong"),
    "killed": ("#!/bin/sh\nkill -KILL $$\n", "ended with status 137"),
    "10 s": ("#!/bin/sh\nexec sleep 10\n", "ended with status 137"),
    "10 s, deaf": ("#!/bin/sh\ntrap '' TERM\nsleep 10\nsleep 10\n", "ended with status 137"),
    "no program": ("#!/nowhere\n", "No such file"),
    "damaged": ("\0\0\0\n", "did not end as it should"),
    "half of it": ("#!/bin/sh\nset -eu\n", "did not end as it should"),
}


class TestAFaultOfOurs:
    @pytest.mark.parametrize("runtime", ["runc", "crun"])
    @pytest.mark.parametrize("fault", [*FAULTS, "gone", "all gone", "not executable"])
    def test_stops_no_container(self, own: Machine, fault: str, runtime: str) -> None:
        if not shutil.which(runtime):
            pytest.skip(f"{runtime} is not installed")
        hook = own.hook()
        says = "is gone"
        if fault in FAULTS:
            text, says = FAULTS[fault]
            (own.at / "hook").write_text(text)
        elif fault == "gone":
            (own.at / "hook").unlink()
        elif fault == "all gone":
            shutil.rmtree(own.at)
        else:
            (own.at / "hook").chmod(0o644)
        began = time.monotonic()
        done = own.run("echo", "started", hooks=[hook], runtime=runtime)
        took = time.monotonic() - began
        assert seen(done) == "started"
        assert [line for line in done.written if line.endswith(".zip")] == []
        (line,) = done.logged
        assert line.startswith("rocm_autopatch: a container starts without the hook: ")
        assert says in line
        # The hook's second, and what a container takes on a busy machine.
        assert took < 6

    def test_a_hook_that_hangs_when_it_has_mounted(self, own: Machine) -> None:
        """What it has made is undone: by another process, because it was killed."""
        text = (own.at / "hook").read_text()
        (own.at / "hook").write_text(text.removesuffix('echo "done"\n') + "sleep 10\n")
        done = own.run(PYTHON, "-c", SEEN, image={MAX: "1"})
        assert seen(done) == "1"
        assert [line for line in done.written if line.endswith(".zip")] == []
        assert len(done.logged) == 1

    def test_the_state_is_read_to_its_end(self, own: Machine) -> None:
        """crun refuses a container if it can't write it: "writing to pipe: Broken pipe"."""
        (own.at / "hook").write_text("#!/bin/sh\nexit 1\n")
        # More than a pipe holds, so it is written while the hook runs and after its end.
        script = '{ head -c 300000 /dev/zero; echo "wrote: $?"; } | "$@" 2>&1'
        script = script.replace('"; }', '" >&2; }')
        hook = own.hook()
        done = subprocess.run(
            ["sh", "-c", script, "sh", hook["path"], *hook["args"][1:]],
            env={"PATH": SYSTEM_PATH},
            capture_output=True,
            text=True,
        )
        assert "wrote: 0" in done.stderr

    def test_a_full_disk(self, own: Machine) -> None:
        done = own.run("echo", "started", room=64)
        assert seen(done) == "started"
        assert [line for line in done.written if line.endswith(".zip")] == []
        (line,) = done.logged
        assert "can't mount" in line

    def test_a_python_too_few(self, own: Machine) -> None:
        """If one of several can't be served, none is: whole or not at all."""
        text = (own.at / "hook").read_text()
        broken = text.replace('"rbind,$options" "$first"', '"rbind,$options" /nowhere')
        assert broken != text
        (own.at / "hook").write_text(broken)
        done = own.run(PYTHON, "-c", SEEN, image={MAX: "1"})
        assert seen(done) == "1"
        assert [line for line in done.written if line.endswith(".zip")] == []
        assert len(done.logged) == 1

    @pytest.mark.parametrize("text", ["", "{", "[]", '{"root":{}}', '{"process":{"env":7}}'])
    def test_a_strange_config(self, machine: Machine, tmp_path: Path, text: str) -> None:
        """The hook itself: no runtime would start such a bundle."""
        (tmp_path / "config.json").write_text(text)
        state = json.dumps({"bundle": str(tmp_path)})
        hook = machine.hook()
        done = subprocess.run(
            ["unshare", "-m", *hook["args"]],
            env={"PATH": SYSTEM_PATH},
            input=state,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0
        assert len(done.stderr.splitlines()) == 1
        assert os.listdir(tmp_path) == ["config.json"]


AMD = {
    "cdiVersion": "0.6.0",
    "kind": "amd.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/kfd"}]}}],
    "containerEdits": {},
}


@pytest.fixture
def bare(tmp_path: Path) -> Machine:
    """A machine without the hook."""
    if os.getuid() != 0:
        pytest.skip("deploy/host/host.py is for root")
    return Machine(tmp_path)


def snapshot(place: Path) -> dict[str, tuple[int, int, bytes]]:
    """Each file by name: which one it is, when it was written, what is in it."""
    found = {}
    for path in place.rglob("*"):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(place))] = (status.st_ino, status.st_mtime_ns, data)
    return found


class TestInstall:
    def test_and_remove(self, bare: Machine, wheel: Path) -> None:
        put(bare.place / "etc/cdi/amd.json", AMD)
        put(bare.place / "etc/docker/daemon.json", {"log-level": "warn"})
        before = {name: row[2] for name, row in snapshot(bare.place).items()}
        bare.host("install", wheel, sys.executable, "--docker", "--gpus", "--leave-out", "a:*")
        assert (bare.at / "left-out").read_text() == "a:*\n"
        assert bare.host("status").returncode == 0
        bare.host("remove")
        after = {name: row[2] for name, row in snapshot(bare.place).items()}
        # As AMD's tool and people write it.
        for name in ("etc/cdi/amd.json", "etc/docker/daemon.json"):
            now, was = json.loads(after.pop(name)), json.loads(before.pop(name))
            was.pop("containerEdits", None)
            assert now == was
        assert after == before
        assert "There was no hook." in bare.host("remove").stdout

    def test_twice_changes_nothing(self, bare: Machine, wheel: Path) -> None:
        arguments = ("install", wheel, sys.executable, "--docker")
        bare.host(*arguments)
        first = snapshot(bare.place)
        bare.host(*arguments)
        second = snapshot(bare.place)
        record = "opt/installed.json"
        assert first.pop(record)[2] == second.pop(record)[2]
        # The directory was written in, for the record.
        assert first.pop("opt")[0] == second.pop("opt")[0]
        assert first == second

    def test_the_list_stays(self, bare: Machine, wheel: Path) -> None:
        bare.host("install", wheel, "--leave-out", "a", "--leave-out", "b")
        bare.host("install", wheel, sys.executable)
        assert (bare.at / "left-out").read_text() == "a\nb\n"

    def test_with_less_takes_the_rest_away(self, bare: Machine, wheel: Path) -> None:
        bare.host("install", wheel, "--docker")
        bare.host("install", wheel)
        assert not (bare.place / "etc/docker/daemon.json").exists()
        assert bare.host("status").returncode == 0

    @pytest.mark.parametrize("place", ["etc/cdi/rocm-autopatch.json", "etc/docker/daemon.json"])
    def test_whole_or_not_at_all(self, bare: Machine, wheel: Path, place: str) -> None:
        """What can't be written there takes all else back."""
        (bare.place / place).mkdir(parents=True)
        before = snapshot(bare.place)
        done = bare.host("install", wheel, "--docker", check=False)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
        assert place in done.stderr
        assert snapshot(bare.place).keys() == before.keys()

    def test_whole_or_not_at_all_of_another_release(self, bare: Machine, wheel: Path) -> None:
        bare.host("install", wheel)
        (bare.place / "etc/docker/daemon.json").mkdir(parents=True)
        before = snapshot(bare.at)
        assert bare.host("install", wheel, sys.executable, "--docker", check=False).returncode == 1
        assert snapshot(bare.at) == before

    def test_for_root_only(self, bare: Machine, wheel: Path) -> None:
        reach = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        if subprocess.run([*reach, sys.executable, "-c", ""]).returncode:
            reach += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        for command in (("install", wheel), ("remove",), ("status",)):
            done = bare.host(*command, check=False, prefix=reach)
            assert (done.returncode, done.stderr) == (1, "only root can do this\n")
        assert list(bare.place.iterdir()) == []

    @pytest.mark.parametrize("place", ["opt", "etc/cdi", "usr/share/containers"])
    def test_where_others_may_write(self, bare: Machine, wheel: Path, place: str) -> None:
        path = bare.place / place
        path.mkdir(parents=True)
        path.chmod(0o777)
        done = bare.host("install", wheel, check=False)
        assert done.returncode == 1
        assert f"{path}: others may write it; run chmod go-w {path}" in done.stderr
        assert not (bare.at / "hook").exists()

    def test_what_others_can_change_later_is_told(self, bare: Machine, wheel: Path) -> None:
        bare.host("install", wheel)
        (bare.at / "hook").chmod(0o757)
        done = bare.host("status", check=False)
        assert done.returncode == 1
        assert f"run chmod o-w {bare.at}/hook" in done.stderr

    def test_what_is_gone_is_told(self, bare: Machine, wheel: Path) -> None:
        put(bare.place / "etc/cdi/amd.json", AMD)
        bare.host("install", wheel, "--gpus")
        # As when AMD's tool writes it anew.
        put(bare.place / "etc/cdi/amd.json", AMD)
        done = bare.host("status", check=False)
        assert done.returncode == 1
        assert (
            f"{bare.place}/etc/cdi/amd.json is gone or was changed: run install again"
            in done.stderr
        )

    @pytest.mark.parametrize(
        ("arguments", "status", "says"),
        [
            (("install", "nothing.whl"), 1, "nothing.whl is no wheel that can be read"),
            (("install", "WHEEL", "python7"), 1, "there is no python7"),
            (("install", "WHEEL", "--gpus"), 1, "run amd-ctk cdi generate, or leave out --gpus"),
            (("status",), 1, "has no hook"),
            ((), 2, "usage:"),
            (("install",), 2, "usage:"),
        ],
    )
    def test_what_is_wrong(
        self, bare: Machine, wheel: Path, arguments: tuple[str, ...], status: int, says: str
    ) -> None:
        given = [str(wheel) if one == "WHEEL" else one for one in arguments]
        done = bare.host(*given, check=False)
        assert (done.returncode, says in done.stderr) == (status, True), done.stderr
        assert "Traceback" not in done.stderr
        assert list(bare.place.iterdir()) == []

    def test_another_s_directory_stays(self, bare: Machine) -> None:
        (bare.at).mkdir()
        (bare.at / "file").touch()
        done = bare.host("remove", check=False)
        assert done.returncode == 1
        assert (bare.at / "file").exists()

    def test_a_config_that_is_no_json_stays(self, bare: Machine, wheel: Path) -> None:
        path = bare.place / "etc/docker/daemon.json"
        path.parent.mkdir(parents=True)
        path.write_text("{,}")
        done = bare.host("install", wheel, "--docker", check=False)
        assert done.returncode == 1
        assert f"{path} is no JSON, so it is left as it is" in done.stderr
        assert path.read_text() == "{,}"
        assert not bare.at.exists()


class TestEngines:
    def test_each_has_variables_of_its_own(self, bare: Machine, wheel: Path) -> None:
        put(bare.place / "etc/cdi/amd.json", AMD)
        bare.host("install", wheel, "--gpus")
        oci = json.loads(
            (bare.place / "usr/share/containers/oci/hooks.d/rocm-autopatch.json").read_text()
        )
        cdi = json.loads((bare.place / "etc/cdi/rocm-autopatch.json").read_text())
        amd = json.loads((bare.place / "etc/cdi/amd.json").read_text())
        hooks = [
            oci["hook"],
            cdi["devices"][0]["containerEdits"]["hooks"][0],
            amd["containerEdits"]["hooks"][0],
            json.loads((bare.at / "hook.json").read_text()),
        ]
        for hook in hooks:
            # A runtime's own time limit, or a missing file, would stop the container.
            assert (hook["path"], "timeout" in hook) == ("/bin/sh", False)
            assert [line.partition("=")[0] for line in hook["env"]] == ["PATH", "LC_ALL"]
            assert hook["args"][-1] == "rocm-autopatch"
        assert amd["devices"] == AMD["devices"]

    @pytest.mark.parametrize(
        "hooks",
        [
            None,
            {},
            {"prestart": [{"path": "/bin/true"}]},
            {"createContainer": []},
            {"createContainer": [{"path": "/bin/true"}], "poststop": [{"path": "/bin/true"}]},
        ],
    )
    def test_docker_s_runtime_adds_the_hook(
        self, bare: Machine, wheel: Path, hooks: dict[str, Any] | None
    ) -> None:
        bare.host("install", wheel, "--docker")
        bundle = bare.place / "bundle"
        env = ['A="hooks":{"createContainer":[', "B=\\"]
        spec: dict[str, Any] = {"ociVersion": "1", "process": {"env": env}}
        if hooks is not None:
            spec["hooks"] = hooks
        spec["annotations"] = {"hooks": "{", "createContainer": "["}
        put(bundle / "config.json", spec)
        done = self.runtime(bare, "--root", "x", "create", "--bundle", bundle, "id")
        assert done.stdout == f"--root x create --bundle {bundle} id\n"
        found = json.loads((bundle / "config.json").read_text())
        added = found["hooks"]["createContainer"].pop(0)
        assert added == json.loads((bare.at / "hook.json").read_text())
        expected = {**(hooks or {}), "createContainer": (hooks or {}).get("createContainer", [])}
        assert found.pop("hooks") == expected
        spec.pop("hooks", None)
        assert found == spec
        assert os.listdir(bundle) == ["config.json"]

    @pytest.mark.parametrize("fault", ["gone", "empty", "two lines", "docker.sed", "full"])
    def test_docker_s_runtime_starts_the_container(
        self, bare: Machine, wheel: Path, fault: str
    ) -> None:
        bare.host("install", wheel, "--docker")
        bundle = bare.place / "bundle"
        bundle.mkdir()
        texts = {"empty": "", "two lines": '{"ociVersion":"1",\n"hooks":{}}\n'}
        if fault != "gone":
            (bundle / "config.json").write_text(texts.get(fault, '{"ociVersion":"1"}'))
        if fault == "docker.sed":
            (bare.at / "docker.sed").unlink()
        before = [path.read_text() for path in bundle.glob("config.json")]
        # What is written to a file fails, as on a full disk.
        full = ["prlimit", "--fsize=0"] if fault == "full" else []
        done = self.runtime(bare, "create", "--bundle", bundle, "id", prefix=full)
        assert (done.returncode, done.stdout) == (0, f"create --bundle {bundle} id\n")
        assert [path.read_text() for path in bundle.iterdir()] == before

    def test_docker_s_runtime_leaves_other_calls_alone(self, bare: Machine, wheel: Path) -> None:
        bare.host("install", wheel, "--docker")
        put(bare.place / "config.json", {"ociVersion": "1"})
        done = self.runtime(bare, "exec", "--bundle", bare.place, "a b", "", "*")
        assert done.stdout == f"exec --bundle {bare.place} a b  *\n"
        assert "hooks" not in (bare.place / "config.json").read_text()

    def test_docker_s_default_runtime_stays_behind(self, bare: Machine, wheel: Path) -> None:
        path = bare.place / "etc/docker/daemon.json"
        amd = {"path": "amd-container-runtime", "runtimeArgs": ["--x"]}
        put(path, {"default-runtime": "amd", "runtimes": {"amd": amd}})
        bare.host("install", wheel, "--docker")
        found = json.loads(path.read_text())
        assert found["default-runtime"] == "rocm-autopatch"
        assert found["runtimes"]["rocm-autopatch"] == {
            "path": f"{bare.at}/docker-runtime",
            "runtimeArgs": ["amd-container-runtime", "--x"],
        }
        bare.host("remove")
        assert json.loads(path.read_text()) == {
            "default-runtime": "amd",
            "runtimes": {"amd": amd},
        }

    def test_a_container_that_names_our_runtime_still_starts(
        self, bare: Machine, wheel: Path
    ) -> None:
        path = bare.place / "etc/docker/daemon.json"
        put(path, {"data-root": str(bare.place / "data")})
        bare.host("install", wheel, "--docker")
        put(bare.place / "data/containers/x/hostconfig.json", {"Runtime": "rocm-autopatch"})
        done = bare.host("remove")
        assert "there are containers that name it" in done.stdout
        found = json.loads(path.read_text())
        assert found["runtimes"] == {"rocm-autopatch": {"path": "runc"}}
        assert "default-runtime" not in found
        shutil.rmtree(bare.place / "data")
        bare.host("remove")
        assert json.loads(path.read_text()) == {"data-root": str(bare.place / "data")}

    def runtime(
        self, bare: Machine, *words: str | Path, prefix: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*prefix, bare.at / "docker-runtime", "echo", *words],
            capture_output=True,
            text=True,
            # A write beyond a limit fails then, and ends no process.
            restore_signals=False,
        )


@pytest.mark.parametrize("awk", ["mawk", "gawk", "original-awk", "busybox awk"])
def test_each_awk_reads_the_same(tmp_path: Path, awk: str) -> None:
    program = awk.split()
    if not shutil.which(program[0]):
        pytest.skip(f"{awk} is not installed")
    env = ["PATH=/a/bin", 'A=<&>\\z\n"q" \u00e9 \U0001f600', "E=", "T=\t\x01", "1=2"]
    spec = {
        "process": {"args": ["/b/bin/python3"], "env": env},
        "root": {"path": "/nowhere"},
        "mounts": [{"destination": "/proc", "options": ["ro"]}, {"destination": "/data"}],
        "annotations": {"io.kubernetes.cri.image-name": "rocm/vllm:1"},
    }
    image = {"config": {"Env": env}}
    bundle = tmp_path / "run/moby/0f"
    put(bundle / "config.json", {**spec, "root": {"path": f"{tmp_path}/data/overlay2/x/merged"}})
    put(tmp_path / "data/containers/0f/config.v2.json", {"Image": "sha256:0a", "Config": {}})
    put(tmp_path / "data/image/overlay2/imagedb/content/sha256/0a", image)
    done = subprocess.run(
        [*program, "-v", "left_out=/nowhere", "-f", ROOT / "deploy/host/facts.awk"],
        input=json.dumps({"ociVersion": "1", "bundle": str(bundle), "annotations": {}}),
        env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [row for row in rows if row[0] != "baseline"] == [
        ["root", f"{tmp_path}/data/overlay2/x/merged"],
        ["library", "/a/lib"],
        ["library", "/a/lib64"],
        ["library", "/b/lib"],
        ["library", "/b/lib64"],
        ["volume", "/proc"],
        ["volume", "/data"],
        ["image", "rocm/vllm:1"],
    ]
    (baseline,) = [row[1] for row in rows if row[0] == "baseline"]
    written = subprocess.run(["sh", "-c", 'printf %b "$1"', "sh", baseline], capture_output=True)
    assert list(filter(None, written.stdout.decode().split("\0"))) == env
