"""One root for all caches, at a start: which directory, which variables, and when there is none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rocm_autopatch
from rocm_autopatch import startup
from rocm_autopatch.measure.ab import runner
from rocm_autopatch.patches import moved_configs
from rocm_autopatch.startup import caches, kfd, layer
from tests.conftest import OLD_AND_NEW, Interpreter, label_torch
from tests.messages import Golden
from tests.programs import program_file
from tests.running import run_mounted

SHOW = """
import json, os, rocm_autopatch
from rocm_autopatch.startup.caches import PARTS
report = rocm_autopatch.status()
print(json.dumps([report, {name: os.environ.get(name) for name, *_ in PARTS}]))
"""


def start(
    python: Interpreter, home: Path, **env: str
) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The report's caches, the caches' variables, and the lines on stderr about them."""
    given = {"XDG_CACHE_HOME": "", "HOME": str(home), "ROCM_AUTOPATCH_CACHE": "on", **env}
    done = python.run("-c", SHOW, env=given)
    report, variables = json.loads(done.stdout)
    said = [line for line in done.stderr.splitlines() if "cache" in line]
    return report["caches"], {name: value for name, value in variables.items() if value}, said


def policy(directory: Path, use: str) -> Path:
    file = directory / "team.yaml"
    file.write_text(f"version: 1\nextends: safe\ncaches: {use}\n")
    file.chmod(0o644)
    return file


@OLD_AND_NEW
def test_on(python: Interpreter, tmp_path: Path) -> None:
    found, variables, said = start(python, tmp_path)
    root = tmp_path / ".cache" / "rocm-autopatch"
    assert (found["use"], found["root"], found["reason"]) == ("on", str(root), "")
    place = Path(found["place"])
    assert place.parent == root
    assert place.name.startswith("torch-2.13.0+rocm7.0_no-gpu_cpython-3")
    assert place.stat().st_mode & 0o777 == 0o700
    assert variables == {
        name: f"{place}/{part}"
        for name, part, use, since in caches.PARTS
        if use != caches.PRIVATE and since <= (2, 13)
    }
    # What does not make its directory itself finds it.
    assert all(Path(path).is_dir() or Path(path).parent.is_dir() for path in variables.values())
    fields = dict(
        line.split(" ", 1) for line in (place / caches.MARK).read_text().splitlines() if line
    )
    assert fields == found["of"]
    assert fields["policy"] == "safe"
    assert said == []
    # A second start changes nothing, and is a use.
    os.utime(place, (0, 0))
    assert start(python, tmp_path)[:2] == (found, variables)
    assert place.stat().st_mtime > 0
    assert os.listdir(root) == [place.name]


def test_off(python311: Interpreter, tmp_path: Path) -> None:
    for off in ("off", ""):
        found, variables, _ = start(python311, tmp_path, ROCM_AUTOPATCH_CACHE=off)
        assert (found["use"], found["place"], variables) == ("off", "", {})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("use", "variable", "root"),
    [
        ("on", "", "home"),
        ("{use: on, why: because}", "", "home"),
        ("OWN", "", "own"),
        ("OWN", "on", "own"),
        ("OWN", "require", "own"),
        ("OWN", "off", ""),
        ("off", "on", "home"),
        ("off", "OTHER", "other"),
        ("OWN", "OTHER", "other"),
        ("[off, {use: on, until: '2.5'}]", "", ""),
        ("[off, {use: on, since: '2.5'}]", "", "home"),
        ("{use: on, proven: graphs}", "", ""),
    ],
)
def test_who_says_where(
    python311: Interpreter, tmp_path: Path, use: str, variable: str, root: str
) -> None:
    """The variable decides over the policy. If it only wants caches, the policy says where."""
    roots = {"": "", "home": str(tmp_path / ".cache" / "rocm-autopatch")}
    roots.update(own=str(tmp_path / "own"), other=str(tmp_path / "a" / "other"))
    file = policy(tmp_path, use.replace("OWN", roots["own"]))
    variable = variable.replace("OTHER", roots["other"])
    given = {"ROCM_AUTOPATCH_CACHE": variable, "ROCM_AUTOPATCH_POLICY": str(file)}
    found, _, said = start(python311, tmp_path, **given)
    assert (found["root"], said) == (roots[root], [])
    if found["use"] != "off":
        assert found["layer"] == ("ROCM_AUTOPATCH_CACHE" if variable else "team")


def test_a_user_decides(python311: Interpreter, tmp_path: Path) -> None:
    own = {"TORCHINDUCTOR_CACHE_DIR": "/own", "VLLM_CACHE_ROOT": "/mine"}
    _, variables, _ = start(python311, tmp_path, **own)
    assert {name: variables[name] for name in own} == own
    kept = {"ROCM_AUTOPATCH_KEEP": "TRITON_CACHE_DIR"}
    assert "TRITON_CACHE_DIR" not in start(python311, tmp_path, **kept)[1]
    # A policy that names a variable decides over the root.
    file = tmp_path / "team.yaml"
    file.write_text("version: 1\ncaches: on\nenv: {TRITON_CACHE_DIR: {default: /team}}\n")
    given = {"ROCM_AUTOPATCH_POLICY": str(file), "ROCM_AUTOPATCH_CACHE": ""}
    assert start(python311, tmp_path, **given)[1]["TRITON_CACHE_DIR"] == "/team"


def test_an_entry_like_any_other(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    """``explain`` knows it, and ROCM_AUTOPATCH_KEEP leaves it out."""
    root = tmp_path / "own"
    for use in (str(root), "off"):
        file = policy(tmp_path, use)
        # A path of any length stands on one line.
        env = {"ROCM_AUTOPATCH_POLICY": str(file), "HOME": str(tmp_path), "COLUMNS": "500"}
        done = python311.run("-m", "rocm_autopatch", "explain", "caches", "--no-torch", env=env)
        golden(re.sub(r"/torch-[^']*", "/PLACE", done.stdout), Path(use).name, TMP=tmp_path)
    env = {"ROCM_AUTOPATCH_POLICY": str(policy(tmp_path, "on")), "ROCM_AUTOPATCH_CACHE": ""}
    found, variables, said = start(python311, tmp_path, ROCM_AUTOPATCH_KEEP="a, caches", **env)
    assert (found["reason"], found["place"], variables, said) == ("ROCM_AUTOPATCH_KEEP", "", {}, [])
    report = ("-m", "rocm_autopatch", "status", "--no-torch", "--json")
    given = {**env, "ROCM_AUTOPATCH_KEEP": "caches", "HOME": str(tmp_path)}
    notes = json.loads(python311.run(*report, env=given).stdout)["notes"]
    assert not [note for note in notes if "ROCM_AUTOPATCH_KEEP" in note]


def test_not_for_runs_with_caches_of_their_own(python311: Interpreter, tmp_path: Path) -> None:
    """``ab`` and ``prove`` start with empty caches, whatever a policy says."""
    own = runner.own_caches(tmp_path / "run")
    given = {**own, "ROCM_AUTOPATCH_POLICY": str(policy(tmp_path, "on"))}
    found, variables, _ = start(python311, tmp_path, **given)
    assert (found["use"], found["place"]) == ("off", "")
    assert variables == {name: own[name] for name in runner.CACHES}


def test_another_policy_or_torch_has_another_place(fresh: Interpreter, tmp_path: Path) -> None:
    places = [start(fresh, tmp_path)[0]["place"]]
    for name in ("performance", "debug"):
        places.append(start(fresh, tmp_path, ROCM_AUTOPATCH_POLICY=name)[0]["place"])
    for line in ("", "__version__ = '3.4.0'\n", "from os import *\n__version__ = '3.5.1'\n"):
        label_torch(fresh.site_packages, "2.9.1+rocm6.4", "6.4.43484")
        triton = fresh.site_packages / "triton"
        triton.mkdir(exist_ok=True)
        (triton / "__init__.py").write_text(line)
        found, _, _ = start(fresh, tmp_path)
        assert found["of"]["triton"] == line.partition("= ")[2].strip("'\n")
        places.append(found["place"])
    assert len(set(places)) == len(places)
    # Why a policy says something changes nothing that is compiled.
    names = set()
    for why in ("one", "two"):
        file = tmp_path / "team.yaml"
        file.write_text(f"version: 1\nextends: safe\nenv: {{NAME: {{set: a, why: {why}}}}}\n")
        names.add(start(fresh, tmp_path, ROCM_AUTOPATCH_POLICY=str(file))[0]["place"])
    assert len(names) == 1


def test_children(python311: Interpreter, fresh: Interpreter, tmp_path: Path) -> None:
    """A child has its parent's place; with another torch, a place of its own."""
    label_torch(fresh.site_packages, "2.9.1+rocm6.4", "6.4.43484")
    code = "import subprocess, sys; print(subprocess.check_output(sys.argv[1:], text=True))"
    for child, same in ((python311, True), (fresh, False)):
        show = "import os; print(os.environ['TRITON_CACHE_DIR'])"
        env = {"XDG_CACHE_HOME": "", "HOME": str(tmp_path), "ROCM_AUTOPATCH_CACHE": "on"}
        own = start(python311, tmp_path)[1]["TRITON_CACHE_DIR"]
        found = python311.run("-c", code, child.path, "-c", show, env=env).stdout.strip()
        assert (found == own) == same
        assert found == start(child, tmp_path)[1]["TRITON_CACHE_DIR"]
    # A framework may have put it deeper in our place. That is not ours to change.
    deeper = own.rpartition("/")[0] + "/vllm/x/triton"
    assert start(fresh, tmp_path, TRITON_CACHE_DIR=deeper)[1]["TRITON_CACHE_DIR"] == deeper


class TestRefused:
    @pytest.mark.parametrize("what", ["root", "above", "place", "file", "link"])
    def test_who_may_write(
        self, python311: Interpreter, tmp_path: Path, golden: Golden, what: str
    ) -> None:
        root = tmp_path / "root"
        env = {"ROCM_AUTOPATCH_CACHE": str(root)}
        found, *_ = start(python311, tmp_path, **env)
        place = Path(found["place"])
        if what == "root":
            shutil.rmtree(root)
            root.mkdir()
            root.chmod(0o777)
        elif what == "above":
            shutil.rmtree(root)
            tmp_path.chmod(0o777)
        elif what == "place":
            place.chmod(0o770)
        elif what == "file":
            shutil.rmtree(root)
            root.touch()
        else:
            os.rename(place, tmp_path / "aside")
            os.chown(tmp_path / "aside", 12345, -1)
            place.symlink_to(tmp_path / "aside")
        found, variables, (line,) = start(python311, tmp_path, **env)
        assert variables == {}
        assert line.endswith(found["reason"])
        golden(line, ROOT=root, TMP=tmp_path, PLACE=place.name)

    def test_no_place_for_it(self, python311: Interpreter, golden: Golden, tmp_path: Path) -> None:
        for root in ("/proc/caches", "/dev/null/x"):
            _, variables, (line,) = start(python311, tmp_path, ROCM_AUTOPATCH_CACHE=root)
            assert variables == {}
            golden(line)
        _, variables, (line,) = start(python311, Path("relative"))
        assert variables == {}
        golden(line)

    def test_slashes_of_a_root(self, python311: Interpreter, tmp_path: Path) -> None:
        """A place has one name, by which gc and status know it."""
        for root in (f"/{tmp_path}", f"{tmp_path}//"):
            found, *_ = start(python311, tmp_path, ROCM_AUTOPATCH_CACHE=root)
            assert found["root"] == str(tmp_path)
            assert found["place"].startswith(f"{tmp_path}/torch-")

    def test_lookups_are_not_watched_then(self, python311: Interpreter, tmp_path: Path) -> None:
        """Else a miss would be counted, and be an error under ``require``."""
        module = "torch._inductor.codecache"
        code = f"from rocm_autopatch import startup; print({module!r} in startup.waiting)"
        for root, watched in ((str(tmp_path), "True"), ("/proc/caches", "False")):
            assert python311.value(code, env={"ROCM_AUTOPATCH_CACHE": root}) == watched

    def test_a_word_that_it_does_not_know(
        self, python311: Interpreter, golden: Golden, tmp_path: Path
    ) -> None:
        _, variables, (line,) = start(python311, tmp_path, ROCM_AUTOPATCH_CACHE="yes")
        assert variables == {}
        golden(line)

    def test_a_caller_who_is_another_user(self, python311: Interpreter, tmp_path: Path) -> None:
        env = {"XDG_CACHE_HOME": "", "HOME": str(tmp_path), "ROCM_AUTOPATCH_CACHE": "on"}
        python311.run("-E", "-c", "pass", env=env)
        assert os.listdir(tmp_path) == []

    def test_observe(self, python311: Interpreter, tmp_path: Path) -> None:
        found, variables, _ = start(python311, tmp_path, ROCM_AUTOPATCH="observe")
        assert (variables, os.listdir(tmp_path)) == ({}, [])
        assert found["place"]


def test_a_umask_that_lets_everybody_write(python311: Interpreter, tmp_path: Path) -> None:
    command = f"umask 0; HOME={tmp_path} ROCM_AUTOPATCH_CACHE=on {python311.path} -c pass"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found, _, said = start(python311, tmp_path)
    assert said == []
    assert Path(found["place"]).stat().st_mode & 0o777 == 0o700


def test_many_at_once(python311: Interpreter, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ROCM_AUTOPATCH_CACHE": "on"}
    code = "import os; print(os.environ['TRITON_CACHE_DIR'])"
    running = [
        subprocess.Popen(
            [python311.path, "-c", code],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(50)
    ]
    ended = [process.communicate() for process in running]
    assert len(set(ended)) == 1
    assert len(os.listdir(tmp_path / ".cache" / "rocm-autopatch")) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="mounts need root")
class TestLayer:
    """An image's layer, or a volume, has a place that was filled before."""

    def start_above(
        self, python: Interpreter, home: Path, below: Path, *more: str
    ) -> tuple[dict[str, Any], dict[str, str], list[str]]:
        script = (
            f"mount -t tmpfs none /usr/local/share && mkdir -p {caches.LAYER} && "
            f"mount --bind -o ro {below} {caches.LAYER} && "
            f"{'; '.join([*more, 'true'])}"
        )
        env = {"HOME": str(home), "ROCM_AUTOPATCH_CACHE": "on"}
        done = run_mounted(script, python.path, "-c", SHOW, env=env)
        assert done.returncode == 0, done.stderr
        report, variables = json.loads(done.stdout)
        return report["caches"], variables, done.stderr.splitlines()

    def filled(self, python: Interpreter, directory: Path) -> Path:
        place = Path(start(python, directory)[0]["place"])
        for name in ("inductor/ab/cab.py", "inductor/ab/x.best_config", "triton/K/k.hsaco"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(name)
        for name in ("aiter-modules/module_x.so", "miopen/a.udb.txt", "tunableop/results0.csv"):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(name)
        below = directory / "below"
        os.rename(place.parent, below)
        # What an earlier run of the tests has left.
        shutil.rmtree(caches.own(str(place)), ignore_errors=True)
        below.chmod(0o755)
        return below

    def test_links_and_copies(self, python311: Interpreter, tmp_path: Path) -> None:
        below = self.filled(python311, tmp_path)
        # The layer was filled in another directory.
        (kernel,) = below.rglob("k.hsaco")
        group = {"child_paths": {"k.hsaco": "/of/a/builder/triton/K/k.hsaco"}}
        (kernel.parent / "__grp__k.json").write_text(json.dumps(group))
        found, variables, said = self.start_above(python311, tmp_path, below)
        assert said == []
        place = Path(found["place"])
        child = json.loads((place / "triton/K/__grp__k.json").read_text())["child_paths"]["k.hsaco"]
        assert child == f"{place}/triton/K/k.hsaco"
        links = {
            str(path.relative_to(place)): os.readlink(path)
            for path in place.rglob("*")
            if path.is_symlink()
        }
        at = f"{caches.LAYER}/{place.name}"
        names = ("inductor/ab/cab.py", "triton/K/k.hsaco", "aiter-modules/module_x.so")
        assert links == {name: f"{at}/{name}" for name in names}
        # What programs change in its place is a copy, which they may write.
        for name in ("inductor/ab/x.best_config", "miopen/a.udb.txt", "tunableop/results0.csv"):
            assert (place / name).read_text() == name
        # Now that it is filled, aiter has a directory of its own, in this container.
        own = Path(variables["AITER_JIT_DIR"])
        assert own == Path(caches.own(str(place)), "aiter-modules")
        assert os.readlink(own / "module_x.so") == f"{place}/aiter-modules/module_x.so"
        assert variables["AITER_ROOT_DIR"] is None
        # The next start makes no links again.
        (place / names[0]).unlink()
        self.start_above(python311, tmp_path, below)
        assert not (place / names[0]).is_symlink()

    @pytest.mark.parametrize("other", [{"torch": "2.9.1", "gpu": "gfx942-304"}, {"digest": "0"}])
    def test_another_place(
        self, python311: Interpreter, tmp_path: Path, golden: Golden, other: dict[str, str]
    ) -> None:
        below = self.filled(python311, tmp_path)
        (only,) = below.iterdir()
        lines = (only / caches.MARK).read_text().splitlines()
        fields = {**dict(line.split(" ", 1) for line in lines if " " in line), **other}
        (only / caches.MARK).write_text("".join(f"{k} {v}\n" for k, v in fields.items()))
        os.rename(only, below / "torch-1")
        (below / "no-place").mkdir()
        found, _, (line,) = self.start_above(python311, tmp_path, below)
        golden(line)
        assert not [path for path in Path(found["place"]).rglob("*") if path.is_symlink()]
        # It is said where the place is made, and not at each start.
        assert self.start_above(python311, tmp_path, below)[2] == []

    def test_others_may_write_it(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        below = self.filled(python311, tmp_path)
        (only,) = below.iterdir()
        only.chmod(0o777)
        # Mounted read-only, nobody in here can write it.
        assert self.start_above(python311, tmp_path, below)[2] == []
        shutil.rmtree(tmp_path / ".cache")
        again = f"mount -o remount,rw,bind {caches.LAYER}"
        found, _, (line,) = self.start_above(python311, tmp_path, below, again)
        golden(line, PLACE=only.name)
        assert not Path(found["place"]).exists()

    def test_a_root_that_nobody_can_write(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        below = self.filled(python311, tmp_path)
        again = f"mount --bind {tmp_path} {tmp_path}"
        done = self.start_above(
            python311, tmp_path, below, again, f"mount -o remount,ro,bind {tmp_path}"
        )
        (line,) = done[2]
        golden(line, TMP=tmp_path)
        assert not any(done[1].values())


def test_network_file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"""\
22 1 0:20 / / rw - overlay overlay rw
23 22 0:21 / /data rw,relatime shared:1 - nfs4 server:/x rw
24 23 0:22 / /data/local rw - ext4 /dev/sda rw
25 22 0:23 / /a\\040b rw - lustre x rw
26 22 0:24 / /twice rw - nfs4 server:/x rw
27 22 0:25 / /twice rw - ext4 /dev/sdb rw
28 22 0:26 / /union rw - fuse.mergerfs /disk rw
29 22 0:27 /bound /disk rw - nfs server:/x rw
30 22 0:28 / /union/a rw - ext4 /disk rw
31 22 0:29 /disk /bound rw - ext4 /dev/sdc rw
"""
    monkeypatch.setattr(caches, "_read", lambda *_: lines)
    found = {path: caches._is_network(path) for path in ("/root", "/data", "/data/x", "/database")}
    assert found == {"/root": False, "/data": True, "/data/x": True, "/database": False}
    assert not caches._is_network("/data/local/y")
    assert caches._is_network("/a b/c")
    assert not caches._is_network("/twice/x")
    assert caches._is_network("/disk/x")
    assert not caches._is_network("/bound")
    assert not caches._is_network("/")
    # A machine without a disk; something over it; a root that is none.
    for root, over, network in (
        (b"/", b"", True),
        (b"/exports/node", b"", True),
        (b"/", b"\n3 1 0:3 /images/x / ro - ext4 x ro", False),
        (b"/x", b"\n3 1 0:3 / / ro - ext4 x ro", False),
    ):
        root_line = b"1 0 0:1 %s / rw - nfs server:/x rw" % root
        lines = b"2 1 0:2 / /tmp rw - tmpfs / rw\n" + root_line + over
        for path in ("/", "/root/x"):
            assert caches._is_network(path) is network
        assert not caches._is_network("/tmp/x")
    lines = b"23 22 0:21 / /data rw - nfs4 server:/x rw"
    assert not caches._is_network("/root")
    assert not caches._is_network("data/x", plain=True)
    lines = b""
    assert not caches._is_network("/root")


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        (
            "simd_count 1216\nsimd_per_cu 4\ngfx_target_version 90402\ndevice_id 29857\n",
            ("gfx942", 29857, 304),
        ),
        ("gfx_target_version 90010\n", ("gfx90a", 0, 0)),
        ("simd_count 0\ngfx_target_version 0\n", None),
        ("gfx_target_version 91602\n", None),
        ("gfx_target_version " + "9" * 30 + "\n", None),
        ("gfx_target_version x\n\nsimd_per_cu 0", None),
    ],
)
def test_gpu(properties: str, expected: tuple[str, int, int] | None) -> None:
    assert kfd.gpu(properties.encode()) == expected


def test_a_name_is_short_and_plain() -> None:
    fields = dict.fromkeys(
        ("torch", "triton", "hip", "gpu", "python", "policy", "digest"), "ä/" * 99
    )
    found = caches.name(fields)
    assert len(found) < 250
    assert found.isascii()
    assert "/" not in found
    assert caches.name({**fields, "digest": ""}) != found


def test_a_copy_of_gigabytes_has_little_in_memory(tmp_path: Path) -> None:
    (tmp_path / "below" / "vllm").mkdir(parents=True)
    content = os.urandom(1 << 20) * 3 + b"end"
    (tmp_path / "below" / "vllm" / "model").write_bytes(content)
    (tmp_path / "new").mkdir()
    layer.link_layer(str(tmp_path / "below"), str(tmp_path / "new"), str(tmp_path / "new"))
    assert (tmp_path / "new" / "vllm" / "model").read_bytes() == content


def test_group_files_of_a_layer_have_the_paths_of_the_place(tmp_path: Path) -> None:
    """Also where the layer itself was filled, or seeded, in another directory."""
    below, new = tmp_path / "below", tmp_path / "new"
    group = {
        "child_paths": {
            "k.json": "/some/body/place/triton/0/KEY/k.json",
            "k.hsaco": f"{below}/triton/0/KEY/k.hsaco",
            "other": "/some/body/place/triton/0/OTHER/k",
        },
        "name": "KEY",
    }
    kernel = below / "triton" / "0" / "KEY"
    kernel.mkdir(parents=True)
    # Whoever filled the layer has written its files.
    odd = [b"[" * 100_000, b'"' * 7, b'{"child_paths": {"k": "\\"/x/KEY/k"}}', b""]
    for number, text in enumerate(odd):
        (kernel / f"__grp__{number}.json").write_bytes(text)
    (kernel / "__grp__k.json").write_text(json.dumps(group))
    (kernel / "k.hsaco").touch()
    new.mkdir()
    layer.link_layer(str(below), str(new), "/the/place")
    made = new / "triton" / "0" / "KEY"
    assert (made / "__grp__0.json").read_bytes() == odd[0]
    assert json.loads((made / "__grp__k.json").read_text()) == {
        "child_paths": {
            "k.json": "/the/place/triton/0/KEY/k.json",
            "k.hsaco": "/the/place/triton/0/KEY/k.hsaco",
            "other": "/some/body/place/triton/0/OTHER/k",
        },
        "name": "KEY",
    }
    assert (made / "k.hsaco").readlink() == kernel / "k.hsaco"


@pytest.mark.parametrize("given", ["a//b", "a/b/", "./a/b", "a/c/../b"])
def test_a_root_is_named_as_torch_names_it(
    python311: Interpreter, tmp_path: Path, given: str
) -> None:
    """torch 2.13 writes what it makes of the path into its variable, which children have."""
    (tmp_path / "a").mkdir()
    for env in ({"XDG_CACHE_HOME": f"{tmp_path}/{given}"}, {"HOME": f"/{tmp_path}/{given}"}):
        for _ in range(2):
            found, variables, said = start(python311, tmp_path, **env)
            assert said == []
            assert Path(found["root"]).parent in (tmp_path / "a/b", tmp_path / "a/b/.cache")
            assert found["root"] == os.path.abspath(found["root"])
            assert all(value.startswith(found["root"] + "/") for value in variables.values())
    found, _, said = start(python311, tmp_path, ROCM_AUTOPATCH_CACHE=f"{tmp_path}//{given}")
    assert (found["root"], said) == (f"{tmp_path}/a/b", [])


@pytest.mark.parametrize(("torch", "count"), [("2.7.1+rocm6.3", 0), ("2.16.0", 1)])
def test_a_torch_that_keeps_configs_in_another_way(
    monkeypatch: pytest.MonkeyPatch, torch: str, count: int
) -> None:
    """A line says so, but where no graph has paths of them."""
    said: list[str] = []
    monkeypatch.setitem(rocm_autopatch._RECORD, "caches", {"of": {"torch": torch}})
    monkeypatch.setattr(startup, "fail", lambda part, text: said.append(text))
    moved_configs.keep_configs(ModuleType("codecache"))
    assert len(said) == count


COMPILES = program_file("caches/compiles.py")


class TestMisses:
    """On the real torch: hits are counted, a miss is explained, and it may be an error."""

    def compile_once(
        self, python: Interpreter, home: Path, *arguments: str, use: str = "on", **more: str
    ) -> tuple[list[Any], list[str]]:
        env = {"HOME": str(home), "XDG_CACHE_HOME": "", "ROCM_AUTOPATCH_CACHE": use, **more}
        done = python.run(COMPILES, *arguments, env=env)
        said = [line for line in done.stderr.splitlines() if "caches" in line]
        return json.loads(done.stdout), said

    def test_what_has_changed(
        self, torch_python: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        # Where nothing was compiled, there is nothing to compare with.
        assert self.compile_once(torch_python, tmp_path, "2") == (["", 0, 1], [])
        found, (line,) = self.compile_once(torch_python, tmp_path, "2", "freezing", "size_asserts")
        assert found == ["", 0, 1]
        (place,) = (tmp_path / ".cache" / "rocm-autopatch").iterdir()
        golden(line, PLACE=place)
        # Now it is there, too.
        more = ("2", "freezing", "size_asserts")
        assert self.compile_once(torch_python, tmp_path, *more) == (["", 1, 0], [])

    def test_nothing_to_say(self, torch_python: Interpreter, tmp_path: Path) -> None:
        assert self.compile_once(torch_python, tmp_path, "2") == (["", 0, 1], [])
        assert self.compile_once(torch_python, tmp_path, "2") == (["", 1, 0], [])
        # Another graph is nothing to wonder about.
        assert self.compile_once(torch_python, tmp_path, "3") == (["", 0, 1], [])

    def test_the_compile_report_has_it(
        self, torch_python: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        env = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "ROCM_AUTOPATCH_CACHE": "on"}
        self.compile_once(torch_python, tmp_path, "2")
        reports = []
        for number, more in enumerate(((), ("freezing",))):
            report = tmp_path / f"report-{number}"
            command = ("-m", "rocm_autopatch", "run", "--report", report, "--")
            torch_python.run(*command, torch_python.path, COMPILES, "2", *more, env=env)
            read = ("-m", "rocm_autopatch", "report", report, "--json")
            reports.append(json.loads(torch_python.run(*read, env=env).stdout))
        hit, miss = ([graph["cache"] for graph in one["graphs"]] for one in reports)
        assert (hit, miss) == (["hit"], ["miss"])
        assert not [one for one in reports[0]["advice"] if one["kind"] == "cache key changed"]
        (graph,) = reports[1]["graphs"]
        assert graph["changed"] == ["inductor_config[freezing] is True, and was False"]
        (advice,) = [one for one in reports[1]["advice"] if one["kind"] == "cache key changed"]
        golden(f"{advice['seen']}\n{advice['do']}")
        assert len(advice["places"]) == 1

    def test_require(self, torch_python: Interpreter, tmp_path: Path, golden: Golden) -> None:
        found, said = self.compile_once(torch_python, tmp_path, "2", use="require")
        (place,) = (tmp_path / ".cache" / "rocm-autopatch").iterdir()
        assert (found[1:], said) == ([0, 1], [])
        golden(re.sub(r"graph f\w+", "graph KEY", found[0]), "nothing there", PLACE=place)
        # It was not compiled.
        assert not list(place.rglob("*.so"))
        self.compile_once(torch_python, tmp_path, "2")
        assert self.compile_once(torch_python, tmp_path, "2", use="require") == (["", 1, 0], [])
        found, _ = self.compile_once(torch_python, tmp_path, "2", "freezing", use="require")
        golden(re.sub(r"graph f\w+", "graph KEY", found[0]), "another key", PLACE=place)

    @pytest.mark.parametrize(
        "why", ["turned off", "forced off", "kept in none", "no root", "left alone", "late"]
    )
    def test_a_compile_without_a_lookup(
        self, torch_python: Interpreter, tmp_path: Path, golden: Golden, why: str
    ) -> None:
        """It is an error under ``require`` alone, and each of these compiles."""
        env = {
            "turned off": {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0"},
            "forced off": {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"},
            "no root": {"HOME": ""},
            "left alone": {"ROCM_AUTOPATCH_KEEP": "caches"},
            # The watchdog waits for the module that compiles graphs, too.
            "late": {"ROCM_AUTOPATCH_POLICY": "safe", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0"},
        }.get(why, {})
        env["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path / "inductor")
        keys = {"kept in none": ["post_grad_custom_post_pass"], "late": ["eager"]}.get(why, [])
        (said, *_), _ = self.compile_once(torch_python, tmp_path, "2", *keys, use="require", **env)
        golden(said, "")
        assert not list(tmp_path.rglob("*.so"))
        assert self.compile_once(torch_python, tmp_path, "2", *keys, **env)[0][0] == ""

    def test_a_user_s_own_directory_is_named(
        self, torch_python: Interpreter, tmp_path: Path
    ) -> None:
        env = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "mine")}
        (said, *_), _ = self.compile_once(torch_python, tmp_path, "2", use="require", **env)
        assert f"is not in the caches in {tmp_path}/mine: no such graph" in said

    def test_what_was_kept_is_damaged(self, torch_python: Interpreter, tmp_path: Path) -> None:
        self.compile_once(torch_python, tmp_path, "2")
        (place,) = (tmp_path / ".cache" / "rocm-autopatch").iterdir()
        kept = [path for path in (place / "keys").rglob("*") if path.is_file()]
        assert len(kept) == 2
        for path in kept:
            path.write_bytes(os.urandom(1000))
        found, said = self.compile_once(torch_python, tmp_path, "2", "freezing")
        assert (found, said) == (["", 0, 1], [])
        shutil.rmtree(place / "keys")
        (place / "keys").touch()
        assert self.compile_once(torch_python, tmp_path, "3")[0] == ["", 0, 1]
