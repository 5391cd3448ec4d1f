"""What docs/security.md says, in real starts; SECURITY.md names the tests of the rest."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch import trust
from tests.conftest import MAX, Interpreter, make_hooked
from tests.messages import Golden, line_on
from tests.names import POINTWISE, SITE_DIRECTORY

NAMED = "/etc/team/named.yaml"
# What a start obeys, and a text that shows whether it did.
FILES = {
    f"{SITE_DIRECTORY}/image": "team/image:1\n",
    f"{SITE_DIRECTORY}/baseline": f"{POINTWISE}=0\0",
    f"{SITE_DIRECTORY}/team.yaml": "version: 1\nenv: {OURS: {set: obeyed}}\n",
    f"{SITE_DIRECTORY}/images.yaml": (
        "version: 1\nimages: [{name: x, when: {torch: '>=2'}, env: {OURS: {set: obeyed}}}]\n"
    ),
    NAMED: "version: 1\nenv: {OURS: {set: obeyed}}\n",
}
SHOW = f"""
import json, os, sys
found = {{"OURS": os.environ.get("OURS"), "POINTWISE": os.environ.get({POINTWISE!r})}}
found["input"] = sys.stdin.read()
import rocm_autopatch
report = rocm_autopatch.status()
found["image"] = report["facts"].get("image", {{}}).get("value")
found["notes"], found["errors"] = report["notes"], report["errors"]
print(json.dumps(found))
"""
# A file that a stranger owns, or may write or replace; $F is the file, $D its directory.
UNSAFE = {
    "mode 666": 'chmod 666 "$F"',
    "mode 664": 'chmod 664 "$F"',
    "of nobody": 'chown 65534 "$F"',
    "directory of mode 777": 'chmod 777 "$D"',
    "directory of mode 775": 'chmod 775 "$D"',
    "directory of nobody": 'chown 65534 "$D"',
    "link in a directory of mode 777": (
        'mkdir /etc/good /etc/open && mv "$F" /etc/good/f.yaml && chmod 777 /etc/open && '
        'ln -s ../good/f.yaml /etc/open/f.yaml && ln -s /etc/open/f.yaml "$F"'
    ),
    "link of nobody": (
        'mkdir -m 1777 /etc/tmp && mv "$F" /etc/f.yaml && ln -s ../f.yaml /etc/tmp/f.yaml && '
        'chown -h 65534 /etc/tmp/f.yaml && ln -s /etc/tmp/f.yaml "$F"'
    ),
    "of nobody, in a sticky directory": 'chmod 1777 "$D" && chown 65534 "$F"',
    "a user's, mounted, open to all": (
        'chown 1234 /etc/copy && chmod 666 /etc/copy && mount --bind /etc/copy "$F"'
    ),
    "pipe": 'rm "$F" && mkfifo "$F"',
    "device": 'rm "$F" && ln -s /dev/zero "$F"',
    "input": 'rm "$F" && ln -s /dev/stdin "$F"',
    "directory": 'rm "$F" && mkdir "$F"',
}
# A file that nobody in here can change, though its modes or owner look so.
SAFE = {
    "plain": ":",
    "ConfigMap with fsGroup": (
        'mount -t tmpfs -o mode=777 none "$D" && mkdir -m 777 "$D/..2026" && '
        'mv /etc/copy "$D/..2026/$N" && chmod 644 "$D/..2026/$N" && ln -s ..2026 "$D/..data" && '
        'ln -s "..data/$N" "$D/$N" && chown -hR :2000 "$D" && mount -o remount,ro "$D"'
    ),
    "read-only mount of nobody": (
        'mount -t tmpfs -o mode=755 none "$D" && mv /etc/copy "$D/$N" && '
        'chown 65534 "$D/$N" && chmod 666 "$D/$N" && mount -o remount,ro "$D"'
    ),
    "bind mount of a user's directory": (
        'mkdir /etc/theirs && mv /etc/copy "/etc/theirs/$N" && chown -R 1234 /etc/theirs && '
        'mount --bind /etc/theirs "$D"'
    ),
    "bind mount of a user's file": 'chown 1234 /etc/copy && mount --bind /etc/copy "$F"',
    "sticky directory": 'chmod 1777 "$D"',
    "link to a good file": 'mv "$F" /etc/f.yaml && ln -s ../f.yaml "$F"',
}


def start(python: Interpreter, tmp_path: Path, file: str, way: str) -> tuple[dict[str, Any], str]:
    """What a start found and wrote to stderr where *file* alone is in an /etc of its own, and *way*
    was done to it."""
    if os.getuid() != 0:
        pytest.skip("mounting over /etc needs root")
    (tmp_path / "text").write_text(FILES[file])
    script = (
        "set -e; F=$1 D=${1%/*} N=${1##*/} TEXT=$2; shift 2; umask 022; "
        'mount -t tmpfs -o mode=755 none /etc; mkdir "$D"; cp "$TEXT" "$F"; cp "$TEXT" /etc/copy; '
        f'{way}; exec "$@"'
    )
    env = {MAX: "1", POINTWISE: "1", "PATH": os.environ["PATH"]}
    if file == NAMED:
        env["ROCM_AUTOPATCH_POLICY"] = NAMED
    done = subprocess.run(
        [
            "unshare",
            "-m",
            "sh",
            "-c",
            script,
            "sh",
            file,
            tmp_path / "text",
            python.path,
            "-c",
            SHOW,
        ],
        input="the input",
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def obeyed(file: str, found: dict[str, Any]) -> bool:
    if file.endswith("/image"):
        assert found["image"] in (None, "team/image:1")
        return bool(found["image"])
    if file.endswith("/baseline"):
        # A user's own is left alone where it is known to be one.
        assert found["POINTWISE"] in (None, "1")
        return bool(found["POINTWISE"] == "1")
    assert found["OURS"] in (None, "obeyed")
    return bool(found["OURS"])


@pytest.mark.parametrize("file", FILES)
class TestAStart:
    @pytest.mark.parametrize("way", UNSAFE)
    def test_obeys_no_file_of_a_stranger_s(
        self, python311: Interpreter, tmp_path: Path, file: str, way: str
    ) -> None:
        found, said = start(python311, tmp_path, file, UNSAFE[way])
        assert not obeyed(file, found)
        assert found["input"] == "the input"
        lines = [line for line in said.splitlines() if "rocm-autopatch status" not in line]
        (line,) = [line for line in lines if "a user set them" not in line]
        where = ("/etc/open" if "777" in way else "/etc/tmp/f.yaml") if "link" in way else file
        assert (os.path.dirname(file) if way.startswith("directory of") else where) in line
        reasons = (
            *("-w", "belongs to user 65534", "is not a regular file", "No such device"),
            "it is a directory",
        )
        assert any(reason in line for reason in reasons), line

    @pytest.mark.parametrize("way", SAFE)
    def test_obeys_what_nobody_here_can_change(
        self, python311: Interpreter, tmp_path: Path, file: str, way: str
    ) -> None:
        found, said = start(python311, tmp_path, file, SAFE[way])
        assert obeyed(file, found), said
        assert found["errors"] == []


def test_the_table_names_tests() -> None:
    here = Path(__file__).parent
    table = (here.parent / "SECURITY.md").read_text().partition("## What is tested")[2]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    file = ""
    for row in rows:
        for name in re.findall(r"`(test_[^`]*)`", row):
            words = name.split("::")
            if words[0].endswith(".py"):
                file = words.pop(0)
            source = (here / file).read_text()
            for word in words:
                assert re.search(rf"\b(class|def) {word}\b", source), name


def test_the_input_is_not_a_policy(python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
    for name in ("/dev/stdin", "/proc/self/fd/0"):
        env = {"ROCM_AUTOPATCH_POLICY": name}
        done = python311.run("-c", "print(input())", env=env, input="version: 1\n")
        assert done.stdout == "version: 1\n"
        golden(done.stderr, name)


def test_an_image_can_t_write_to_the_terminal(python311: Interpreter, tmp_path: Path) -> None:
    way = "printf 'team/\\033]0;x\\007\\033[2J\\302\\233:1\\n' >\"$F\""
    _, said = start(python311, tmp_path, f"{SITE_DIRECTORY}/image", way)
    assert "\\x1b]0;x\\x07\\x1b[2J\\x9b" in said
    assert all(line.isprintable() for line in said.splitlines())


def test_the_report_in_the_process_is_not_masked(python311: Interpreter, tmp_path: Path) -> None:
    policy = tmp_path / "team.yaml"
    policy.write_text("version: 1\nenv: {VLLM_API_KEY: {delete: true}}\n")
    policy.chmod(0o644)
    code = "import rocm_autopatch; print(rocm_autopatch.status()['env'][-1]['before'])"
    env = {"ROCM_AUTOPATCH_POLICY": str(policy), "VLLM_API_KEY": "sesame"}
    assert python311.value(code, env=env) == "sesame"


# A torch that is enough for the compile report and for a profile.
STANDS_IN = {
    "__init__.py": (
        "from torch import _logging, autograd, profiler, version\n"
        "class _TorchCompileInductorWrapper:\n"
        "    def __init__(self, mode, options, dynamic): self.apply_mode(mode)\n"
        "    def apply_mode(self, mode): self.config = {}\n"
    ),
    "_logging/__init__.py": "from torch._logging import _internal\n",
    "_logging/_internal.py": (
        "class LazyTraceHandler:\n"
        "    def emit(self, record): pass\n"
        "    def handleError(self, record): pass\n"
    ),
    "autograd/__init__.py": "from torch.autograd import profiler\n",
    "autograd/profiler.py": "class profile:\n    def _prepare_trace(self): pass\n",
    "profiler/__init__.py": (
        "def supported_activities(): return []\n"
        "class profile:\n"
        "    def __init__(self, activities): pass\n"
        "    def start(self): pass\n"
        "    def stop(self): pass\n"
        "    def export_chrome_trace(self, path):\n"
        "        with open(path, 'w') as stream: stream.write('{}')\n"
    ),
}


@pytest.fixture(scope="module")
def traced(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """An interpreter with a stand-in of torch that can be traced and profiled."""
    made = make_hooked(tmp_path_factory.mktemp("traced-"), wheel)
    for name, text in STANDS_IN.items():
        file = made.site_packages / "torch" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return made


class TestWhatAStartWrites:
    def run_reported(
        self, python: Interpreter, directory: Path, *flags: str, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        env = {
            "ROCM_AUTOPATCH_REPORT": str(directory / "report"),
            "ROCM_AUTOPATCH_PROFILE": str(directory / "profile.json"),
        }
        program = "import torch; torch._TorchCompileInductorWrapper('default', {}, None); print(1)"
        arguments = ("-c", program, "--api-key", "sesame", "API_KEY=tulip")
        done = python.run(*flags, *arguments, env=env, **options)
        assert done.stdout == "1\n"
        return done

    def test_where_it_is_asked_to(self, traced: Interpreter, tmp_path: Path) -> None:
        self.run_reported(traced, tmp_path)
        assert sorted(os.listdir(tmp_path)) == ["profile.json", "report"]
        assert sorted(os.listdir(tmp_path / "report")) == ["processes.jsonl", "trace"]

    def test_no_secret_of_the_command(self, traced: Interpreter, tmp_path: Path) -> None:
        self.run_reported(traced, tmp_path)
        lines = (tmp_path / "report/processes.jsonl").read_text().splitlines()
        row, asked = map(json.loads, lines)
        assert asked == {"pid": row["pid"], "mode": "default", "given": "default"}
        assert row["command"][-3:] == ["--api-key", "(masked)", "API_KEY=(masked)"]

    @pytest.mark.parametrize("flag", ["-E", "-I"])
    def test_nothing_under_E_and_I(self, traced: Interpreter, flag: str, tmp_path: Path) -> None:
        self.run_reported(traced, tmp_path, flag)
        assert os.listdir(tmp_path) == []

    @pytest.mark.skipif(os.getuid() != 0, reason="running for another user needs root")
    @pytest.mark.parametrize("which", ["user", "group"])
    def test_nothing_for_another_user(
        self, traced: Interpreter, which: str, tmp_path: Path
    ) -> None:
        def other() -> None:
            # As set-uid and set-gid programs of root's run.
            os.setresgid(65534, 0, 0) if which == "group" else os.setresuid(65534, 0, 0)

        self.run_reported(traced, tmp_path, preexec_fn=other)
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("name", ["report", "report/processes.jsonl", "report/trace"])
    def test_no_report_through_a_link(
        self, traced: Interpreter, name: str, tmp_path: Path, golden: Golden
    ) -> None:
        theirs = tmp_path / "theirs"
        link = tmp_path / "here" / name
        link.parent.mkdir(parents=True)
        if name.endswith(".jsonl"):
            theirs.write_text("theirs\n")
        else:
            theirs.mkdir()
        link.symlink_to(theirs)
        done = self.run_reported(traced, tmp_path / "here")
        golden(line_on(done.stderr, "compile report"))
        if theirs.is_dir():
            assert os.listdir(theirs) == []
        else:
            assert theirs.read_text() == "theirs\n"
        # Nor does torch write its trace there.
        seen = "import os, torch; print(os.environ.get('TORCH_TRACE'))"
        env = {"ROCM_AUTOPATCH_REPORT": str(tmp_path / "here" / "report")}
        assert traced.value(seen, env=env) == "None"

    def test_no_report_into_a_pipe(
        self, traced: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        (tmp_path / "report").mkdir()
        os.mkfifo(tmp_path / "report" / "processes.jsonl")
        done = self.run_reported(traced, tmp_path, timeout=60)
        golden(line_on(done.stderr, "compile report"))

    def test_no_profile_through_a_link(self, traced: Interpreter, tmp_path: Path) -> None:
        theirs = tmp_path / "theirs"
        theirs.write_text("theirs\n")
        for name, kept in (("profile.json", "{}"), (".part-profile.json", None)):
            here = tmp_path / name.strip(".")
            here.mkdir()
            (here / name).symlink_to(theirs)
            self.run_reported(traced, here)
            assert theirs.read_text() == "theirs\n"
            profile = here / "profile.json"
            assert not profile.is_symlink()
            assert (profile.read_text() if profile.exists() else None) == kept


class TestBesideOurCode:
    @pytest.fixture
    def baked(self, python311: Interpreter, tmp_path: Path) -> Interpreter:
        root = tmp_path / "venv"
        shutil.copytree(python311.path.parent.parent, root, symlinks=True)
        made = Interpreter(root / "bin" / "python")
        # Its own, to be told from the default.
        made.run("-m", "rocm_autopatch", "bake", env={"ROCM_AUTOPATCH_POLICY": "debug"})
        return made

    def policies(self, python: Interpreter) -> tuple[list[str], bool, str]:
        code = (
            "import json, sys, rocm_autopatch as r\n"
            "found = r.status()\n"
            "print(json.dumps([found['policies'], bool(found['baked']), sys.stdin.read()]))"
        )
        env = {"ROCM_AUTOPATCH_POLICY": "debug"}
        done = python.run("-c", code, env=env, input="the input", timeout=60)
        policies, baked, read = json.loads(done.stdout)
        assert read == "the input"
        return policies, baked, done.stderr

    @pytest.mark.parametrize("way", ["664", "646", "666", "620", "pipe", "device", "input"])
    def test_a_plan_that_others_may_write(self, baked: Interpreter, way: str) -> None:
        file = baked.site_packages / "rocm_autopatch" / "baked.plan"
        policies, used, said = self.policies(baked)
        assert used
        assert "baked plan" not in said
        replace(file, way)
        same, used, said = self.policies(baked)
        assert (same, used) == (policies, False)
        assert said.count("the baked plan is not used: ") == 1

    @pytest.mark.parametrize("way", ["pipe", "device", "input"])
    @pytest.mark.parametrize("name", ["rocm_autopatch/plans/debug.plan", "torch/version.py"])
    def test_what_is_no_file_is_not_read(self, baked: Interpreter, name: str, way: str) -> None:
        (baked.site_packages / "rocm_autopatch" / "baked.plan").unlink()
        assert self.policies(baked)[0]
        replace(baked.site_packages / name, way)
        policies, _, said = self.policies(baked)
        if name == "torch/version.py":
            assert policies == []
            assert "no policy is applied: no __version__ in " in said
        else:
            assert policies == []
            assert said.count("no policy is applied: ") == 1
            assert "debug.plan can't be read, is damaged" in said

    def test_torch_is_not_judged(self, baked: Interpreter) -> None:
        (baked.site_packages / "rocm_autopatch" / "baked.plan").unlink()
        before = self.policies(baked)
        version = baked.site_packages / "torch" / "version.py"
        version.chmod(0o666)
        version.parent.chmod(0o777)
        assert self.policies(baked) == before
        assert before[0]


def replace(file: Path, way: str) -> None:
    """Give *file* a mode, or put something else in its place."""
    if way.isdigit():
        file.chmod(int(way, 8))
        return
    file.unlink()
    if way == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero" if way == "device" else "/dev/stdin")


class TestTheFileThatIsJudged:
    """It is the one that is read."""

    @pytest.fixture
    def open_to_all(self, tmp_path: Path) -> Path:
        file = tmp_path / "open" / "team.yaml"
        (file.parent / "inner").mkdir(parents=True)
        file.write_text("open to all")
        file.chmod(0o666)
        return file

    @pytest.fixture
    def good(self, tmp_path: Path) -> Path:
        file = tmp_path / "good" / "team.yaml"
        file.parent.mkdir()
        file.write_text("good")
        file.chmod(0o644)
        return file

    @pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
    def test_behind_a_link_and_up(
        self,
        relative: bool,
        good: Path,
        open_to_all: Path,
        monkeypatch: pytest.MonkeyPatch,
        golden: Golden,
    ) -> None:
        (good.parent / "link").symlink_to(open_to_all.parent / "inner")
        monkeypatch.chdir(good.parent)
        name = "link/../team.yaml" if relative else f"{good.parent}/link/../team.yaml"
        data, why = trust.look(name, 100)
        assert data == b"open to all"
        assert why
        golden(why)
        # And the other way round.
        (open_to_all.parent / "link").symlink_to(good.parent / "link")
        assert trust.read("team.yaml", 100) == b"good"
        (open_to_all.parent / "back").symlink_to(good.parent)
        assert trust.read(f"{open_to_all.parent}/back/../good/team.yaml", 100) == b"good"

    def test_what_was_opened_is_another_file_by_now(
        self, good: Path, open_to_all: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
    ) -> None:
        opened = os.open

        def replaced(path: str, flags: int, *more: int) -> int:
            descriptor = opened(path, flags, *more)
            if path == str(good.parent / "link.yaml"):
                os.unlink(path)
                os.symlink(good, path)
            return descriptor

        (good.parent / "link.yaml").symlink_to(open_to_all)
        monkeypatch.setattr(os, "open", replaced)
        with pytest.raises(PermissionError) as caught:
            trust.read(str(good.parent / "link.yaml"), 100)
        golden(str(caught.value))
