"""Whose caches a start obeys, where it makes them, and what is on a network file system."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocm_autopatch.startup import cache_place, caches
from tests.conftest import ROOT, Interpreter
from tests.messages import Golden
from tests.running import run_mounted
from tests.test_caches import SHOW, start

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="other users and mounts need root")
NOBODY = 65534
# As Inductor reads its graphs.
READS = """
import os, pickle, sys
print("ready", flush=True)
sys.stdin.readline()
directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "/nowhere")
for above, _, names in os.walk(directory):
    for name in names:
        with open(os.path.join(above, name), "rb") as stream:
            pickle.load(stream)
"""
COMPILES = """
import sys, torch
print("ready", flush=True)
sys.stdin.readline()
torch.compile(lambda x: (x * 2).relu().sum())(torch.ones(8))
"""
# Another user's: it moves the place aside, puts its own there, and has its own pickles in it.
ATTACK = """
place=$1 evil=$2
shift 2
mv "$place" "$place-aside"
for name; do
    mkdir -p "$place/$(dirname "$name")"
    cp "$evil" "$place/$name"
done
"""


class Evil:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[object, tuple[str]]:
        code = f"import os; open({str(self.proof)!r}, 'w').write(str(os.getuid()))"
        return exec, (code,)


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """A directory that other users can get into; pytest's own are for its user alone."""
    directory = Path(tempfile.mkdtemp(prefix=f"rocm-autopatch-{tmp_path.name}-", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


def attacked(
    python: Interpreter, program: str, place: Path, names: list[str], work: Path, **env: str
) -> tuple[bool, str]:
    """Whether code of NOBODY ran as root between a program's start and its compile, and stderr."""
    proof = work / "proof"
    evil = work / "evil"
    evil.write_bytes(pickle.dumps(Evil(proof)))
    with subprocess.Popen(
        [python.path, "-c", program],
        env=python.environment(env),
        cwd=work,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout
        assert running.stdout.readline() == "ready\n"
        # The attack itself has to succeed: what counts is whether the program obeys.
        subprocess.run(
            ["sh", "-ec", ATTACK, "sh", place, evil, *names], user=NOBODY, group=NOBODY, check=True
        )
        _, errors = running.communicate("\n", timeout=300)
    return proof.exists(), errors


@pytest.mark.parametrize("how", ["root", "parent", "group", "from the first start on"])
def test_another_user_has_no_code_run(
    python311: Interpreter, work: Path, golden: Golden, how: str
) -> None:
    """What is in the caches is code, so a start judges the whole way to them."""
    above = work / "team"
    above.mkdir()
    root = above / "root"
    env = {"ROCM_AUTOPATCH_CACHE": str(root), "HOME": str(work)}
    if how == "from the first start on":
        root.mkdir(mode=0o700)
        above.chmod(0o777)
    fields, _, said = start(python311, work, **env)
    place = root
    assert bool(said) == (how == "from the first start on")
    if how == "group":
        os.chown(above, -1, NOBODY)
        above.chmod(0o775)
    elif how == "parent":
        above.chmod(0o777)
    elif how == "root":
        place = Path(fields["place"])
        root.chmod(0o777)
    file = Path(fields["place"], "inductor", "fxgraph", "a", "b")
    names = [str(file.relative_to(place))]
    ran, errors = attacked(python311, READS, place, names, work, **env)
    assert not ran
    (line,) = [line for line in errors.splitlines() if "cache" in line]
    golden(line, WORK=work)


def test_another_user_has_no_code_run_by_torch(torch_python: Interpreter, work: Path) -> None:
    """The same on the real torch, which unpickles graphs."""
    root = work / "root"
    env = {"ROCM_AUTOPATCH_CACHE": str(root), "HOME": str(work)}
    torch_python.run("-c", COMPILES, env=env, input="\n")
    (place,) = root.iterdir()
    kept = [path for path in place.rglob("*") if path.is_file() and not path.suffix]
    names = [str(path.relative_to(place)) for path in kept]
    assert [name for name in names if "fxgraph" in name]
    root.chmod(0o777)
    ran, errors = attacked(torch_python, COMPILES, place, names, work, **env)
    assert not ran
    assert "others may write it" in errors


def test_a_child_that_starts_after_the_others_got_in(python311: Interpreter, work: Path) -> None:
    """What its parent's start has set is taken back, also where the image's values are known."""
    root = work / "root"
    env = {"ROCM_AUTOPATCH_CACHE": str(root), "HOME": str(work), "TRITON_CACHE_DIR": "/own"}
    code = (
        "import os, subprocess, sys\n"
        "os.chmod(sys.argv[1], 0o777)\n"
        "print(subprocess.check_output([sys.executable, '-c', sys.argv[2]], text=True))\n"
    )
    done = python311.run("-c", code, root, SHOW, env=env)
    report, variables = json.loads(done.stdout)
    assert {name: value for name, value in variables.items() if value} == {
        "TRITON_CACHE_DIR": "/own"
    }
    assert "others may write it" in report["caches"]["reason"]
    assert done.stderr.count("no cache is kept") == 1


def test_the_layer_is_judged_at_each_start(
    python311: Interpreter, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, below = work / "root", work / "layer"
    root.mkdir()
    below.mkdir(mode=0o755)
    monkeypatch.setattr(caches, "LAYER", str(below))
    monkeypatch.setattr(cache_place, "LAYER", str(below))
    directory = f"{root}/torch-1"
    (below / "torch-1").mkdir()
    (below / "torch-1" / caches.MARK).write_text("torch 1\n")
    for _ in range(2):
        cache_place.make_place(str(root), directory, {"torch": "1"}, False, "", looks=False)
    assert caches._is_in_order(directory)
    below.chmod(0o777)
    assert not caches._is_in_order(directory)
    with pytest.raises(caches.UnsafePlace, match="everybody may write"):
        cache_place.make_place(str(root), directory, {"torch": "1"}, False, "", looks=False)


def test_a_place_that_others_can_enter(python311: Interpreter, work: Path) -> None:
    """Then a directory in it counts, too."""
    env = {"ROCM_AUTOPATCH_CACHE": str(work / "root")}
    found, _, _ = start(python311, work, **env)
    place = Path(found["place"])
    (place / "inductor").chmod(0o777)
    assert start(python311, work, **env)[2] == []
    place.chmod(0o755)
    found, variables, (line,) = start(python311, work, **env)
    assert variables == {}
    assert f"{place}/inductor: others may write it" in line


class TestAnothersHome:
    """Root with another user's HOME, as by ``sudo -E`` or an image's ENV."""

    @pytest.mark.parametrize("what", ["nothing", "cache", "link", "dangling"])
    def test_nothing_is_made(
        self, python311: Interpreter, work: Path, golden: Golden, what: str
    ) -> None:
        home, target = work / "home", work / "target"
        home.mkdir()
        target.mkdir()
        if what == "cache":
            (home / ".cache").mkdir()
            os.chown(home / ".cache", NOBODY, NOBODY)
        elif what != "nothing":
            (home / ".cache").symlink_to(target if what == "link" else target / "new")
            os.chown(home / ".cache", NOBODY, NOBODY, follow_symlinks=False)
        os.chown(home, NOBODY, NOBODY)
        before = sorted(map(str, work.rglob("*")))
        found, variables, (line,) = start(python311, home)
        assert (variables, sorted(map(str, work.rglob("*")))) == ({}, before)
        assert found["reason"]
        golden(line, WORK=work)

    def test_a_home_that_is_a_mount(self, python311: Interpreter, work: Path) -> None:
        """Whoever has mounted it has not chosen root's caches to be there."""
        home = work / "home"
        home.mkdir()
        script = f'mount -t tmpfs none {home} && chown {NOBODY} {home} && "$@" && ls -A {home}'
        command: list[str | Path] = [
            "unshare",
            "-m",
            "sh",
            "-ec",
            script,
            "sh",
            python311.path,
            "-c",
            SHOW,
        ]
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "ROCM_AUTOPATCH_CACHE": "on"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        (shown,) = done.stdout.splitlines()  # and ls has none
        report, variables = json.loads(shown)
        assert not any(variables.values())
        assert f"{home}: it belongs to user {NOBODY}" in report["caches"]["reason"]
        # A root that somebody has named there is another thing.
        env["ROCM_AUTOPATCH_CACHE"] = f"{home}/root"
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[1:] == ["root"]
        assert json.loads(done.stdout.splitlines()[0])[0]["caches"]["reason"] == ""


def mounted(options: str, directory: Path, *command: str | Path, **env: str) -> tuple[str, str]:
    """What a command prints with a file system of its own at a directory."""
    done = run_mounted(f"mount -t tmpfs {options} none {directory}", *command, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_no_room_for_files(python311: Interpreter, work: Path, golden: Golden) -> None:
    """A file system may have bytes left, and no inodes: a compile that can't write fails."""
    env = {"HOME": str(work), "ROCM_AUTOPATCH_CACHE": str(work)}
    shown, errors = mounted("-o mode=755,nr_inodes=500", work, python311.path, "-c", SHOW, **env)
    assert not any(json.loads(shown)[1].values())
    (line,) = errors.splitlines()
    golden(line, WORK=work, PLACE=Path(json.loads(shown)[0]["caches"]["place"]).name)
    for options in (
        "-o mode=755,nr_inodes=5000",
        "-o mode=755,nr_inodes=0",
    ):  # 0 is without a limit
        shown, errors = mounted(options, work, python311.path, "-c", SHOW, **env)
        assert any(json.loads(shown)[1].values())
        assert errors == ""


def test_status_says_why_starts_keep_nothing(python311: Interpreter, work: Path) -> None:
    env = {"HOME": str(work), "ROCM_AUTOPATCH_CACHE": str(work / "root")}
    command = (python311.path, "-m", "rocm_autopatch", "cache", "status")
    assert "starts use it" in mounted("-o mode=755", work, *command, **env)[0]
    said = mounted("-o ro,mode=755", work, *command, **env)[0]
    assert f"starts keep nothing in it: {work} can't be written" in " ".join(said.split())
    found = json.loads(mounted("-o ro,mode=755", work, *command, "--json", **env)[0])
    assert (found["used"], found["reason"]) == (False, f"{work} can't be written")


def test_a_place_without_its_mark(python311: Interpreter, work: Path) -> None:
    """``cache gc`` removed it beside a running program, which made its directories again."""
    env = {"ROCM_AUTOPATCH_CACHE": str(work / "root")}
    found, variables, _ = start(python311, work, **env)
    place = Path(found["place"])
    mark = (place / caches.MARK).read_bytes()
    shutil.rmtree(place)
    (place / "inductor" / "ab").mkdir(parents=True)
    assert start(python311, work, **env) == (found, variables, [])
    assert (place / caches.MARK).read_bytes() == mark
    assert place.stat().st_mode & 0o777 == 0o700
    assert all(Path(path).is_dir() or Path(path).parent.is_dir() for path in variables.values())
    assert list((place.parent).iterdir()) == [place]


def with_own_tmp(
    work: Path, script: str, python: Interpreter, *arguments: str, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run with an empty /tmp, after a script. What the interpreter needs is still there."""
    old = work / "old"
    old.mkdir(exist_ok=True)
    needed = {str(path) for path in (python.path, os.path.realpath(python.path), ROOT)}
    names = {path.split("/")[2] for path in needed if path.startswith("/tmp/")}
    mounts = "".join(
        f"mkdir /tmp/{name} && mount --bind {old}/{name} /tmp/{name} && " for name in sorted(names)
    )
    script = (
        f"mount --rbind /tmp {old} && mount -t tmpfs -o mode=1777 none /tmp && {mounts}{script}"
    )
    return run_mounted(script, python.path, *arguments, env=env, check=True)


def test_somebody_elses_directory_in_tmp(
    python311: Interpreter, work: Path, golden: Golden
) -> None:
    """What a container has for itself is left out, and the rest is used."""
    env = {"ROCM_AUTOPATCH_CACHE": str(work / "root")}
    found, before, _ = start(python311, work, **env)
    (Path(found["place"]) / "aiter-modules").mkdir()
    own = Path(caches.OWN % 0)
    for script, lines in ((f"mkdir {own} && chown {NOBODY} {own}", 1), ("true", 0)):
        done = with_own_tmp(work, script, python311, "-c", SHOW, **env)
        variables = {name: value for name, value in json.loads(done.stdout)[1].items() if value}
        said = done.stderr.splitlines()
        assert len(said) == lines
        if said:
            golden(said[0])
            assert variables == before
        else:
            assert variables.pop("AITER_JIT_DIR").startswith(f"{own}/")
            assert variables == before


# A program that compiles: it leaves a file in two of the caches.
FILLS = """
import os
for name, part in (("TRITON_CACHE_DIR", "K/k.hsaco"), ("TRITON_CACHE_DIR", "K/__grp__k.json")):
    path = os.environ[name] + "/" + part
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as stream:
        stream.write('{"child_paths": {"k.hsaco": "%s/K/k.hsaco"}}' % os.environ[name])
"""


class TestNetwork:
    """The root, or what a user names, is on a network file system.

    A test can't mount one. But the kernel's list of mounts can be another one for a process.
    """

    def run_on_network(
        self, python: Interpreter, work: Path, *arguments: str | Path, **env: str
    ) -> subprocess.CompletedProcess[str]:
        with open("/proc/self/mountinfo") as stream:
            lines = stream.read()
        listed = work / "mountinfo"
        listed.write_text(f"{lines}999 1 0:99 / {work}/nfs rw - nfs4 server:/home rw\n")
        (work / "nfs").mkdir(exist_ok=True)
        # exec keeps the process, so what is mounted over its own file stays in front of it.
        script = f"mount --bind {listed} /proc/$$/mountinfo"
        return with_own_tmp(work, script, python, *map(str, arguments), **env)

    def test_what_is_compiled_stays_on_the_node(
        self, python311: Interpreter, work: Path, golden: Golden
    ) -> None:
        root = work / "nfs" / "root"
        env = {"ROCM_AUTOPATCH_CACHE": str(root)}
        # Through a link, as home directories often are.
        (work / "home").symlink_to(work / "nfs")
        for name in (root, work / "home" / "root"):
            done = self.run_on_network(
                python311, work, "-c", SHOW, **{**env, "ROCM_AUTOPATCH_CACHE": str(name)}
            )
            report, variables = json.loads(done.stdout)
            node = report["caches"]["node"]
            assert node.startswith("/tmp/rocm-autopatch-0/")
            assert {name for name, value in variables.items() if value} == {
                name
                for name, _, use, since in caches.PARTS
                if use != caches.PRIVATE and since <= (2, 13)
            }
            assert all(value.startswith(f"{node}/") for value in variables.values() if value)
            (line,) = done.stderr.splitlines()
            golden(line.replace(node, "<NODE>"), name.parent.name, WORK=work)
        # Nothing but the place is written there.
        done = self.run_on_network(python311, work, "-c", FILLS, **env)
        (place,) = root.iterdir()
        assert [path.name for path in place.rglob("*") if path.is_file()] == [caches.MARK]

    def test_warm_adds_to_the_root_and_others_get_links(
        self, python311: Interpreter, work: Path, golden: Golden
    ) -> None:
        env = {"ROCM_AUTOPATCH_CACHE": str(work / "nfs" / "root")}
        words = ("-m", "rocm_autopatch", "cache", "warm", "--", python311.path, "-c", FILLS)
        self.run_on_network(python311, work, *words, **env)
        (place,) = (work / "nfs" / "root").iterdir()
        group = place / "triton" / "K" / "__grp__k.json"
        assert json.loads(group.read_text())["child_paths"]["k.hsaco"] == (
            f"{place}/triton/K/k.hsaco"
        )
        # Another container has links, and paths of its own.
        code = (
            "import os; d = os.environ['TRITON_CACHE_DIR'] + '/K/'\n"
            "print(os.readlink(d + 'k.hsaco'), open(d + '__grp__k.json').read(), d, sep='\\n')"
        )
        link, text, directory = self.run_on_network(
            python311, work, "-c", code, **env
        ).stdout.splitlines()
        assert link == str(place / "triton" / "K" / "k.hsaco")
        assert json.loads(text)["child_paths"]["k.hsaco"] == directory + "k.hsaco"
        for action in ("status", "pack"):
            more = (work / "a.tar.gz",) if action == "pack" else ()
            command = ("-m", "rocm_autopatch", "cache", action, *more)
            done = self.run_on_network(python311, work, *command, **env)
            assert "2 files" in done.stdout

    def test_a_variable_of_the_user(
        self, python311: Interpreter, work: Path, golden: Golden
    ) -> None:
        env = {"HOME": str(work), "TRITON_CACHE_DIR": str(work / "nfs" / "mine")}
        on = self.run_on_network(
            python311, work, "-c", SHOW, ROCM_AUTOPATCH_CACHE=str(work / "root"), **env
        )
        (line,) = on.stderr.splitlines()
        golden(line, WORK=work)
        assert json.loads(on.stdout)[1]["TRITON_CACHE_DIR"] == env["TRITON_CACHE_DIR"]
        # Without caches of ours, the report has it.
        code = "import rocm_autopatch; print(*rocm_autopatch.status()['notes'], sep='\\n')"
        for given, notes in ((env, 1), ({}, 0)):
            done = self.run_on_network(python311, work, "-c", code, **given)
            assert done.stdout.count("mine: on a network file system") == notes


@pytest.mark.parametrize(
    "command",
    [
        ("status", "--no-torch"),
        ("explain", "caches", "--no-torch"),
        ("cache", "status"),
        ("cache", "path"),
        ("probe",),
        ("policies",),
    ],
    ids=" ".join,
)
def test_a_command_that_only_looks_writes_nothing(
    python311: Interpreter, work: Path, command: tuple[str, ...]
) -> None:
    env = {
        "HOME": str(work),
        "XDG_CACHE_HOME": "",
        "TMPDIR": str(work),
        "ROCM_AUTOPATCH_POLICY": "performance",
    }
    done = python311.run("-m", "rocm_autopatch", *command, env=env, check=False)
    assert "Traceback" not in done.stderr
    assert list(work.rglob("*")) == []
    if command[0] == "status":
        # It says what a start would do.
        assert f"{work}/.cache/rocm-autopatch/torch-" in "".join(done.stdout.split())
    python311.run("-c", "pass", env=env)
    assert len(list(work.rglob("*"))) > 10


def test_status_with_torch_writes_nothing(torch_python: Interpreter, work: Path) -> None:
    env = {
        "HOME": str(work),
        "XDG_CACHE_HOME": "",
        "TMPDIR": str(work),
        "ROCM_AUTOPATCH_CACHE": "on",
        "ROCM_AUTOPATCH_POLICY": "performance",
    }
    torch_python.run("-m", "rocm_autopatch", "status", env=env)
    assert list(work.rglob("*")) == []


def test_a_link_that_leads_nowhere(python311: Interpreter, tmp_path: Path) -> None:
    """What looks says the same as a start."""
    (tmp_path / "root").symlink_to(tmp_path / "nowhere")
    env = {"ROCM_AUTOPATCH_CACHE": str(tmp_path / "root"), "HOME": str(tmp_path)}
    started = python311.run("-c", "pass", env=env).stderr
    said = python311.run("-m", "rocm_autopatch", "cache", "status", env=env, check=False)
    assert "root: a link that leads nowhere" in started
    assert "root: a link that leads nowhere" in " ".join(said.stdout.split())


def test_a_home_that_is_set_to_nothing(python311: Interpreter) -> None:
    env = {"ROCM_AUTOPATCH_CACHE": "on", "HOME": "", "XDG_CACHE_HOME": ""}
    said = python311.run("-c", "pass", env=env).stderr
    assert "no cache is kept: this user has no home directory" in said
    assert not Path("/.cache/rocm-autopatch").exists()
