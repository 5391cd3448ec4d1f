"""rocm-autopatch bake: what is fixed, when it is used, and that a bad plan is never used."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import (
    HIP,
    MAX,
    REPORT,
    Interpreter,
    copy_interpreter,
    label_torch,
    make_hooked,
    make_venv,
    pip,
    run_with_site,
)
from tests.messages import Golden, line_on
from tests.names import MI30X_IMAGE
from tests.running import last_said

LOADED = "import sys; print(*[n for n in sys.modules if n.startswith('rocm_autopatch')])"
POLICY = "version: 1\nname: team\nenv: {TEAM: {set: 'baked', why: ours}}\n"


def report(python: Interpreter, *flags: str, **env: str) -> dict[str, Any]:
    env = {"ROCM_AUTOPATCH_LOG": "quiet", **env}
    report: dict[str, Any] = json.loads(python.value(REPORT, *flags, env=env))
    return report


def bake(
    python: Interpreter, *arguments: str | Path, check: bool = True, **env: str
) -> subprocess.CompletedProcess[str]:
    return python.run("-m", "rocm_autopatch", "bake", *arguments, check=check, env=env)


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Interpreter:
    """A hooked environment to copy: an installation takes longer."""
    return make_hooked(tmp_path_factory.mktemp("bake"), wheel)


@pytest.fixture
def place(base: Interpreter, tmp_path: Path) -> Interpreter:
    root = tmp_path / "venv"
    shutil.copytree(base.path.parent.parent, root, symlinks=True)
    return Interpreter(root / "bin" / "python")


def plan_of(python: Interpreter) -> Path:
    return python.site_packages / "rocm_autopatch" / "baked.plan"


class TestUsed:
    def test_does_what_the_unbaked_start_does(self, place: Interpreter) -> None:
        env = {MAX: "1", "ROCM_AUTOPATCH_IMAGE": MI30X_IMAGE}
        unbaked = report(place, **env)
        done = json.loads(bake(place, "--image", MI30X_IMAGE, "--json").stdout)
        assert done["path"] == str(plan_of(place))
        # The image was fixed, so nobody need name it any more.
        for more in (env, {MAX: "1"}):
            baked = report(place, **more)
            assert (baked.pop("baked"), unbaked["baked"]) == (done["path"], "")
            assert baked.pop("reason") == f"baked, images.yaml lists {MI30X_IMAGE}"
            source = baked["facts"]["image"].pop("source")
            assert source == "rocm-autopatch bake --image"
            assert baked["contradictions"] == unbaked["contradictions"]
            for key in ("env", "config", "compile_modes", "patches", "policies", "known_issues"):
                assert baked[key] == unbaked[key]
        assert place.value(LOADED, env={MAX: "1"}) == "rocm_autopatch rocm_autopatch.startup"

    def test_a_policy_of_ones_own_needs_no_yaml_at_start(
        self, place: Interpreter, tmp_path: Path
    ) -> None:
        policy = tmp_path / "team.yaml"
        policy.write_text(POLICY)
        said = bake(place, "--policy", policy).stdout
        assert f"baked, ROCM_AUTOPATCH_POLICY={policy}" in said
        assert "team.yaml" in said.partition("used until one of these files changes")[2]
        assert "layers: safe < team" in said
        show = "import os; print(os.environ['TEAM'])\n" + LOADED
        assert place.value(show) == "baked\nrocm_autopatch rocm_autopatch.startup"
        # As an image's ENV would have it, too.
        bake(place, ROCM_AUTOPATCH_POLICY=str(policy))
        assert report(place)["baked"] == ""
        assert report(place, ROCM_AUTOPATCH_POLICY=str(policy))["baked"]

    def test_the_site_s_own_policies(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        site = tmp_path / "site"
        site.mkdir()
        (site / "a.yaml").write_text(POLICY)
        code = "import os; print(os.environ['TEAM'])\n" + LOADED
        steps = f'"{place.path}" -m rocm_autopatch bake >&2 && exec "{place.path}" -c "$0"'
        done = run_with_site(site, "sh", "-c", steps, code)
        assert done.stdout == "baked\nrocm_autopatch rocm_autopatch.startup\n", done.stderr
        # What was baked with these files is not used without them.
        assert "TEAM" not in place.value("import os; print(*os.environ)")
        (note,) = report(place)["notes"]
        golden(note)

    def test_wishes_go_past_it(self, place: Interpreter, golden: Golden) -> None:
        bake(place, "--image", MI30X_IMAGE)
        for name, value, policies in (
            ("ROCM_AUTOPATCH_POLICY", "performance", ["safe", "performance"]),
            ("ROCM_AUTOPATCH_IMAGE", "rocm/sgl-dev:other", ["safe"]),
            ("ROCM_AUTOPATCH_ASSUME", "torch=2.6.0", ["safe"]),
        ):
            env = {name: value, MAX: "1"}
            seen = report(place, **env)
            assert (seen["baked"], seen["policies"]) == ("", policies)
            golden(seen["notes"][0], name)
            # It is what somebody asked for, so it is no matter for stderr.
            (line,) = place.run("-c", "pass", env=env).stderr.splitlines()
            assert "baked" not in line

    def test_switches_stay_open(self, place: Interpreter) -> None:
        bake(place)
        show = f"import os; print(os.environ.get({MAX!r}))"
        assert place.value(show, env={MAX: "1"}) == "None"
        assert place.value(show, env={MAX: "1", "ROCM_AUTOPATCH": "off"}) == "1"
        assert place.value(show, env={MAX: "1", "ROCM_AUTOPATCH": "observe"}) == "1"
        assert place.value(show, env={MAX: "1", "ROCM_AUTOPATCH_KEEP": MAX}) == "1"

    def test_a_layer_that_asks_for_the_gpu(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "team.yaml"
        policy.write_text(POLICY + "when: {gfx: gfx942}\n")
        said = bake(place, "--policy", policy, GPU_ARCH="gfx942").stdout
        golden(line_on(said, "GPU"), "bake")
        assert report(place, GPU_ARCH="gfx942")["policies"] == ["safe", "team"]
        other = report(place)
        assert other["policies"] == ["safe"]
        (note,) = other["notes"]
        golden(note, "note")

    def test_a_record_that_asks_for_a_gpu_that_is_not_here(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        site = tmp_path / "site"
        site.mkdir()
        (site / "images.yaml").write_text(
            "version: 1\nimages:\n- {name: mi300, when: {gfx: gfx942, rocm: '>=7.0'},"
            " env: {OURS: {set: mi300}}}\n"
        )
        code = "import os, rocm_autopatch as r; print(os.environ.get('OURS'), r._RECORD['notes'])"
        start = f'"{place.path}" -c "$0"'
        steps = f'"{place.path}" -m rocm_autopatch bake >&2; {start}; GPU_ARCH=gfx942 {start}'
        done = run_with_site(site, "sh", "-c", steps, code)
        golden(line_on(done.stderr, "GPU"), "bake")
        first, second = done.stdout.splitlines()
        assert first == "None []"
        value, _, note = second.partition(" ")
        assert value == "mi300"
        golden(note, "note")
        assert "rocm 7.0" in done.stderr

    def test_a_torch_that_the_site_adds_late(self, wheel: Path, tmp_path: Path) -> None:
        # A venv's .pth files are read before the system's site-packages are on sys.path.
        system = copy_interpreter(tmp_path / "system")
        label_torch(system.site_packages, "2.13.0+rocm7.0", HIP)
        made = make_venv(tmp_path / "venv", str(system.path), "--system-site-packages")
        pip(made, "install", wheel)
        bake(made)
        assert report(made)["baked"]

    def test_a_torch_that_no_start_finds(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        # site reads .pth files by name: this one comes after ours.
        late = tmp_path / "late"
        late.mkdir()
        (place.site_packages / "torch").rename(late / "torch")
        pth = place.site_packages / "zz.pth"
        pth.write_text(f"{late}\n")
        done = bake(place, check=False)
        assert done.returncode == 1
        assert not plan_of(place).exists()
        golden(last_said(done.stderr))
        # Nor is another torch baked than the one that starts find.
        label_torch(tmp_path / "early", "2.12.0+rocm7.0", HIP)
        (place.site_packages / "aa.pth").write_text(f"{tmp_path}/early\n")
        bake(place)
        assert report(place)["facts"]["torch"]["value"] == "2.12.0+rocm7.0"
        (place.site_packages / "aa.pth").unlink()
        # As the message says.
        pth.rename(place.site_packages / "aa.pth")
        bake(place)
        assert report(place)["baked"]


def unused(place: Interpreter, **env: str) -> str:
    """Why the plan is not used, which a start and the report say."""
    first, _ = place.run("-c", "pass", env={MAX: "1", **env}).stderr.splitlines()
    seen = report(place, **{MAX: "1", **env})
    assert (seen["baked"], seen["active"]) == ("", True)
    (note,) = seen["notes"]
    assert note in first
    # The second line says what the unbaked way did.
    return first


class TestStale:
    def test_torch(self, place: Interpreter, tmp_path: Path, golden: Golden) -> None:
        bake(place)
        label_torch(place.site_packages, "2.14.0+rocm7.2", HIP)
        golden(unused(place), "another version")
        bake(place)
        assert report(place)["baked"]
        other = label_torch(tmp_path / "other", "2.14.0+rocm7.2", HIP)
        golden(unused(place, PYTHONPATH=str(other)), "another place")

    def test_a_process_that_does_not_look_where_torch_is(
        self, place: Interpreter, tmp_path: Path
    ) -> None:
        """It is as the image was made, so there is nothing to bake again."""
        other = tmp_path / "other"
        other.mkdir()
        (place.site_packages / "torch").rename(other / "torch")
        path = {"PYTHONPATH": str(other)}
        bake(place, PYTHONPATH=str(other))
        assert report(place, **path)["baked"]
        for flags, env in ((("-I",), path), (("-E",), path), ((), {}), ((), {"PYTHONPATH": "/x"})):
            assert place.run(*flags, "-c", "pass", env=env).stderr == ""
            seen = report(place, *flags, **env)
            assert (seen["active"], seen["errors"]) == (False, [])
            (note,) = seen["notes"]
            assert "it was baked for another sys.path: no torch/version.py is found" in note
        # One of the system's, which the variable hides.
        label_torch(place.site_packages, "2.12.0+rocm7.0", HIP)
        (line,) = place.run("-I", "-c", "pass", env={MAX: "1", **path}).stderr.splitlines()
        assert "policy safe applies" in line
        # It is gone, or another one is before it: then the plan is for nobody.
        (other / "torch").rename(tmp_path / "torch")
        first, _ = place.run("-c", "pass", env={MAX: "1", **path}).stderr.splitlines()
        assert first.endswith("run rocm-autopatch bake again")
        (tmp_path / "torch").rename(other / "torch")
        env = {MAX: "1", "PYTHONPATH": f"{place.site_packages}:{other}"}
        first, _ = place.run("-c", "pass", env=env).stderr.splitlines()
        assert first.endswith("run rocm-autopatch bake again")

    def test_torch_is_gone(self, place: Interpreter) -> None:
        bake(place)
        shutil.rmtree(place.site_packages / "torch")
        seen = report(place, **{MAX: "1"})
        assert seen["active"] is False
        assert seen["reason"].startswith("no torch found")

    def test_a_torch_without_rocm(self, place: Interpreter) -> None:
        bake(place)
        label_torch(place.site_packages, "2.14.0+cu130", None, "13.0")
        show = f"import os; print(os.environ.get({MAX!r}))"
        assert place.value(show, env={MAX: "1"}) == "1"

    def test_policy(self, place: Interpreter, tmp_path: Path, golden: Golden) -> None:
        base, policy = tmp_path / "base.yaml", tmp_path / "team.yaml"
        base.write_text("version: 1\n")
        policy.write_text(POLICY + "extends: base.yaml\n")
        for file in (policy, base):
            bake(place, "--policy", policy)
            assert report(place)["policies"] == ["base", "team"]
            times = os.stat(file)
            file.write_text(file.read_text().replace("version: 1", "version: 1 "))
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            golden(unused(place), file.stem)

    def test_a_policy_beyond_what_is_read_of_it(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "team.yaml"
        policy.write_text(POLICY + "# long\n" * 15_000 + "description: one\n")
        bake(place, "--policy", policy)
        assert report(place)["baked"]
        policy.write_text(policy.read_text().replace("description: one", "description: two"))
        golden(unused(place))

    def test_a_policy_that_is_gone(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "team.yaml"
        policy.write_text(POLICY)
        bake(place, "--policy", policy)
        policy.unlink()
        golden(unused(place))

    def test_what_bake_was_given_no_longer_applies(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        policy = tmp_path / "team.yaml"
        policy.write_text(POLICY)
        image = ("--image", MI30X_IMAGE)
        for name, options in (
            ("policy", ("--policy", policy)),
            ("image", image),
            ("both", (*image, "--policy", policy)),
        ):
            bake(place, *options)
            assert report(place)["baked"]
            file = place.site_packages / "torch" / "version.py"
            file.write_text(file.read_text() + "#\n")
            golden(place.run("-c", "pass", env={MAX: "1"}).stderr, name)
            seen = report(place)
            assert "team" not in seen["policies"]
            golden(seen["notes"][0], f"{name}, note")

    def test_a_check_in_a_dockerfile(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        """Another policy is in force than was asked for."""
        policy = tmp_path / "team.yaml"
        policy.write_text(POLICY)
        bake(place, "--policy", policy)
        check = ("-m", "rocm_autopatch", "status", "--check")
        assert place.run(*check).returncode == 0
        wish = place.run(*check, env={"ROCM_AUTOPATCH_POLICY": "debug"}, check=False)
        assert wish.returncode == 0
        assert "debug applies" in wish.stdout
        policy.unlink()
        done = place.run(*check, check=False)
        assert done.returncode == 1
        golden(done.stderr)

    def test_the_package(self, place: Interpreter, golden: Golden) -> None:
        bake(place)
        file = place.site_packages / "rocm_autopatch" / "plans" / "id"
        file.write_text("another build")
        golden(unused(place))


class TestDamaged:
    def said(self, place: Interpreter) -> str:
        """What a start says of the plan, "" if it is used; what the program sees is the same."""
        show = (
            f"import os, rocm_autopatch as r; print(os.environ.get({MAX!r}), r.status()['baked'])"
        )
        done = place.run("-c", show, env={MAX: "1"})
        value, baked = done.stdout.rstrip("\n").split(" ")
        assert value == "None"
        # The last line says what was applied.
        *said, _ = done.stderr.splitlines()
        assert len(said) == (0 if baked else 1)
        return "".join(said)

    def test_truncated(self, place: Interpreter, golden: Golden) -> None:
        bake(place)
        assert not self.said(place)
        plan = plan_of(place)
        data = plan.read_bytes()
        said = set()
        lengths = (0, 1, 21, 22, 29, 30, 31, len(data) // 2, len(data) - 1)
        for written in (*(data[:length] for length in lengths), data + b"\0"):
            plan.write_bytes(written)
            said.add(self.said(place))
        (line,) = said
        golden(line)

    def test_corrupt(self, place: Interpreter, golden: Golden) -> None:
        bake(place)
        plan = plan_of(place)
        data = plan.read_bytes()
        chance = random.Random(5)
        said = set()
        for _ in range(25):
            at = chance.randrange(len(data))
            plan.write_bytes(
                data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
            )
            said.add(self.said(place))
        (line,) = said
        golden(line)

    def test_of_another_release(self, place: Interpreter, golden: Golden) -> None:
        bake(place)
        plan = plan_of(place)
        line, end, rest = plan.read_bytes().partition(b"\n")
        plan.write_bytes(line + b"9" + end + rest)
        golden(self.said(place))

    def test_writable_by_all(self, place: Interpreter, golden: Golden) -> None:
        bake(place)
        plan_of(place).chmod(0o666)
        golden(self.said(place))

    def test_a_directory(self, place: Interpreter, golden: Golden) -> None:
        plan_of(place).mkdir()
        golden(self.said(place))


class TestWriting:
    def test_nothing_is_left_by_uninstall(self, place: Interpreter) -> None:
        bake(place)
        bake(place)
        place.run("-c", "pass")
        pip(place, "uninstall", "-y", "rocm_autopatch")
        assert not list(place.site_packages.glob("rocm_autopatch*"))

    @pytest.mark.parametrize("policy", ["version: 2\n", pytest.param(None, id="no such file")])
    def test_a_wrong_policy(
        self, place: Interpreter, tmp_path: Path, policy: str | None, golden: Golden
    ) -> None:
        bake(place)
        before = plan_of(place).read_bytes()
        file = tmp_path / "team.yaml"
        if policy is not None:
            file.write_text(policy)
        done = bake(place, "--policy", file, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr)
        assert plan_of(place).read_bytes() == before

    def test_no_such_name(self, place: Interpreter, golden: Golden) -> None:
        done = bake(place, "--policy", "sfae", check=False)
        assert done.returncode == 1
        golden(done.stderr)

    def test_a_directory_that_is_not_there(
        self, place: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        out = tmp_path / "absent" / "plan"
        done = bake(place, "--out", out, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        golden(last_said(done.stderr))

    def test_a_disk_that_is_full(self, place: Interpreter, tmp_path: Path, golden: Golden) -> None:
        if os.getuid() != 0:
            pytest.skip("mounting needs root")
        site = tmp_path / "site"
        site.mkdir()
        (site / "README").write_text("none")
        steps = (
            "mkdir /etc/full && mount -t tmpfs -o size=8k none /etc/full && "
            "head -c 8192 /dev/zero > /etc/full/zeros; "
            f'"{place.path}" -m rocm_autopatch bake --out /etc/full/plan; echo $?; ls /etc/full -A'
        )
        done = run_with_site(site, "sh", "-c", steps)
        assert done.stdout == "1\nzeros\n"
        golden(last_said(done.stderr))

    def test_out(self, place: Interpreter, tmp_path: Path, golden: Golden) -> None:
        done = bake(place, "--out", tmp_path / "plan")
        assert (tmp_path / "plan").stat().st_mode & 0o777 == 0o644
        assert str(plan_of(place)) in done.stderr
        golden(done.stderr)
        assert not plan_of(place).exists()

    def test_where_nothing_applies(self, place: Interpreter, golden: Golden) -> None:
        label_torch(place.site_packages, "2.14.0+cpu", None)
        done = bake(place, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr)

    def test_no_image_reference(self, place: Interpreter, golden: Golden) -> None:
        done = bake(place, "--image", "not an image", check=False)
        assert (done.returncode, done.stdout) == (2, "")
        golden(last_said(done.stderr))
        assert not plan_of(place).exists()

    def test_a_relative_path_in_the_environment(self, place: Interpreter, golden: Golden) -> None:
        done = bake(place, check=False, ROCM_AUTOPATCH_POLICY="./team.yaml")
        assert done.returncode == 1
        golden(done.stderr)

    def test_starts_see_the_old_plan_or_the_new_one(self, place: Interpreter) -> None:
        bake(place)
        done = threading.Event()

        def again() -> None:
            while not done.is_set():
                bake(place)

        thread = threading.Thread(target=again)
        thread.start()
        try:
            for _ in range(40):
                assert report(place)["notes"] == []
        finally:
            done.set()
            thread.join()
        left = {path.name for path in plan_of(place).parent.iterdir() if path.name[0] == "."}
        assert left == set()


def test_not_from_a_checkout(golden: Golden) -> None:
    python = Interpreter(Path(sys.executable))
    env = {"ROCM_AUTOPATCH_ASSUME": "accelerator=rocm"}
    done = bake(python, check=False, **env)
    assert done.returncode == 1
    golden(done.stderr)
