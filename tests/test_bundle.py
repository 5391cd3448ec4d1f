"""rocm-autopatch bundle: one file for a bug report, without secrets."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.cli import bundle as command
from rocm_autopatch.support import masking
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.running import run_command

TOP = "rocm-autopatch-bundle/"
QUICK = ("--no-torch",)


def members(archive: Path) -> dict[str, str]:
    """What is in an archive, in its order."""
    with tarfile.open(archive) as opened:
        found = opened.getmembers()
        assert all(one.isfile() and one.name.startswith(TOP) for one in found)
        assert {(one.mtime, one.uid, one.gid, one.uname, one.gname) for one in found} == {
            (0, 0, 0, "", "")
        }
        texts = [opened.extractfile(one) for one in found]
        return {
            one.name.removeprefix(TOP): text.read().decode()
            for one, text in zip(found, texts)
            if text is not None
        }


def test_what_is_in_it(python311: Interpreter, tmp_path: Path) -> None:
    """Also the probe, and a compile report."""
    policy = tmp_path / "team.yaml"
    policy.write_text(
        "version: 1\nname: team\nenv: {VLLM_USE_V1: {default: '1'}}\n# why it is so\n"
    )
    report = tmp_path / "report"
    script = tmp_path / "program.py"
    script.write_text("print(1)\n")
    ran = run_command(python311, "run", "--report", report, "--", python311.path, script)
    assert ran.returncode == 0
    env = {"ROCM_AUTOPATCH_POLICY": str(policy), "MIOPEN_FIND_MODE": "1"}
    file = tmp_path / "bug.tar.gz"
    done = run_command(python311, "bundle", file, "--report", report, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    found = members(file)
    assert list(found) == [
        *("manifest.json", "README.txt", "image.json"),
        *("policies/01-safe.yaml", "policies/02-team.yaml", "probe.json", "probe.txt"),
        *("report.json", "report.txt", "status.json", "status.txt", "versions.txt"),
    ]
    assert file.stat().st_mode & 0o777 == 0o600
    status = json.loads(found["status.json"])
    assert status["policies"] == ["safe", "team"]
    assert status["digest_parts"]["variables"] == {"MIOPEN_FIND_MODE": "1"}
    assert found["status.txt"].startswith("safe < team applies")
    assert found["policies/02-team.yaml"].startswith(f"# {policy}\nversion: 1\nname: team\n")
    assert "# why it is so" in found["policies/02-team.yaml"]
    assert json.loads(found["probe.json"])["policies"] == ["safe", "team"]
    assert "\nrocm_autopatch==" in "\n" + found["versions.txt"].replace("-", "_")
    assert json.loads(found["image.json"])["machine"]["device"]
    assert "processes" in json.loads(found["report.json"])
    manifest = json.loads(found["manifest.json"])
    assert manifest["left_out"] == {}
    sizes = {one["path"]: one["bytes"] for one in manifest["files"]}
    # All but the manifest itself.
    assert sizes == {
        name: len(text.encode()) for name, text in found.items() if name != "manifest.json"
    }
    # What it lists is what is in it.
    listed = [line.split() for line in done.stdout.splitlines()[:-2]]
    assert [name for _, name in listed] == list(found)
    assert [int(size.replace(",", "")) for size, _ in listed] == [
        len(text.encode()) for text in found.values()
    ]
    assert done.stdout.splitlines()[-2] == (
        f"{file}: 12 files, {file.stat().st_size:,} bytes. Nothing was sent."
    )


TOKEN = "hf_abcdefghijklmnopqrst"
SECRETS = ("hunter2", TOKEN, "abc123xyz", "open-sesame", "folded-sesame", "tail-sesame", "u-sesame")


@pytest.mark.parametrize("broken", ["", "  bad: [\n"])
def test_secrets(python311: Interpreter, tmp_path: Path, broken: str) -> None:
    """In variables, paths, names and policies, also in a policy that can't be read."""
    place = tmp_path / f"site-{TOKEN}"
    place.mkdir()
    policy = place / f"{TOKEN}.yaml"
    policy.write_text(
        "version: 1\nextends: safe\nenv:\n"
        "  VLLM_API_KEY: {delete: true, why: 'was abc123xyz'}\n"
        "  CACHE_URL: {set: 'redis://u:hunter2@h/0'}\n"
        "  MY_TOKEN: {set: 'open-sesame', why: so}\n"
        "  DB_PASSWORD:\n    set: >-\n      folded-sesame\n    why: so\n"
        "  FIRST: {default: one, why: 'not open-sesame'}\n"
        "  A_SECRET: {\n    set: tail-sesame}\n" + broken
    )
    (place / "a.yaml").write_text("version: 1\nenv: {X_TOKEN: {set: u-sesame}, Y: {set: kept-y}}\n")
    env = {
        "ROCM_AUTOPATCH_POLICY": str(policy),
        "ROCM_AUTOPATCH_SITE": str(place),
        "VLLM_API_KEY": "abc123xyz",
        "SOME_ID": TOKEN,
        "ROCM_AUTOPATCH_IMAGE": f"registry/{TOKEN}:x",
        "MIOPEN_URL": "http://u:hunter2@h",
    }
    file = tmp_path / "bug.tar.gz"
    done = run_command(python311, "bundle", file, *QUICK, env=env)
    assert done.returncode == 0, done.stderr
    found = members(file)
    for name, text in [*found.items(), *((name, name) for name in found), ("stdout", done.stdout)]:
        for secret in SECRETS:
            assert secret not in text.replace(str(file), ""), (name, secret)
    shown = "".join(text for name, text in found.items() if name.startswith("policies/"))
    assert masking.MASK in shown
    assert "FIRST: {default: one" in shown
    assert "aggressive_fusion" in shown or broken
    if broken:
        assert "reading the policies" in json.loads(found["manifest.json"])["left_out"]


def test_values_below_a_name() -> None:
    text = (
        "a: 1\nMY_TOKEN:\n  set: x\n\n  why: y\nb: 2\n"
        "env: {A_KEY: {set: x}, B: 1}\n- 'API_KEY' : v\nn: {\n  X_SECRET: v,\n  c: 3}\n"
    )
    shown = [line for line, _ in command._split_yaml(text) if line is not None]
    assert shown == [
        *("a: 1", "MY_TOKEN: (masked)", "b: 2", "env: {A_KEY: (masked)"),
        *("- 'API_KEY' : (masked)", "n: {", "  X_SECRET: (masked)", "  c: 3}"),
    ]


class TestTheFile:
    def test_one_that_is_there_stays(
        self, python311: Interpreter, tmp_path: Path, golden: Golden
    ) -> None:
        file = tmp_path / "bug.tar.gz"
        file.write_text("mine")
        done = run_command(python311, "bundle", file, *QUICK)
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr)
        assert file.read_text() == "mine"
        link = tmp_path / "link"
        link.symlink_to("nowhere")
        assert run_command(python311, "bundle", link, *QUICK).returncode == 1
        done = run_command(python311, "bundle", file, *QUICK, "--force")
        assert done.returncode == 0
        assert "status.json" in members(file)
        assert sorted(one.name for one in tmp_path.iterdir()) == ["bug.tar.gz", "link"]

    def test_one_that_came_meanwhile(self, tmp_path: Path) -> None:
        file = tmp_path / "bug.tar.gz"
        file.write_text("mine")
        with pytest.raises(FileExistsError):
            command._write_archive(file, b"ours", False)
        assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [
            ("bug.tar.gz", "mine")
        ]

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
    def test_nothing_half_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(os, "link", fail)
        with pytest.raises(type(error)):
            command._write_archive(tmp_path / "bug.tar.gz", b"ours", False)
        assert [*tmp_path.iterdir()] == []

    def test_no_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> None:
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", fail)
        file = tmp_path / "bug.tar.gz"
        command._write_archive(file, b"ours", False)
        assert file.read_bytes() == b"ours"
        with pytest.raises(FileExistsError):
            command._write_archive(file, b"others", False)
        assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"ours"]

    def test_no_directory(self, python311: Interpreter, tmp_path: Path, golden: Golden) -> None:
        done = run_command(python311, "bundle", tmp_path / "no" / "bug.tar.gz", *QUICK)
        assert (done.returncode, done.stdout) == (1, "")
        golden(done.stderr)
        done = run_command(python311, "bundle", "/proc/bug.tar.gz", *QUICK)
        assert (done.returncode, done.stdout) == (1, "")
        assert "/proc/bug.tar.gz can't be written" in done.stderr

    def test_its_own_name(self, python311: Interpreter, tmp_path: Path) -> None:
        done = run_command(python311, "bundle", *QUICK, "--json", cwd=tmp_path)
        (file,) = tmp_path.iterdir()
        listed = json.loads(done.stdout)
        assert listed["file"] == file.name
        assert listed["bytes"] == file.stat().st_size
        assert [one["name"] for one in listed["files"]] == list(members(file))
        assert {one["name"] for one in listed["left_out"]} == {"probe", "report"}


def test_without_torch_and_pyyaml(
    bare: Interpreter, python311: Interpreter, tmp_path: Path
) -> None:
    """As in an overlay of the wheel alone, beside no torch."""
    package = tmp_path / "package"
    shutil.copytree(python311.site_packages / "rocm_autopatch", package / "rocm_autopatch")
    for info in python311.site_packages.glob("rocm_autopatch-*.dist-info"):
        shutil.copytree(info, package / info.name)
    policy = tmp_path / "team.yaml"
    policy.write_text("version: 1\nenv: {MY_TOKEN: {set: open-sesame}}\n")
    env = {"PYTHONPATH": str(package), "ROCM_AUTOPATCH_POLICY": str(policy)}
    file = tmp_path / "bug.tar.gz"
    done = run_command(bare, "bundle", file, *QUICK, env=env)
    assert done.returncode == 0, done.stderr
    found = members(file)
    assert "open-sesame" not in "".join(found.values())
    assert {"status.json", "versions.txt", "image.json"} <= found.keys()
    # It can be read with nothing but the standard library.
    assert json.loads(found["manifest.json"])["files"]


def test_the_same_order_each_time(python311: Interpreter, tmp_path: Path) -> None:
    names = []
    for number in range(2):
        file = tmp_path / f"{number}.tar.gz"
        run_command(python311, "bundle", file, *QUICK)
        names.append(list(members(file)))
    assert names[0] == names[1]
    assert names[0] == ["manifest.json", *sorted(names[0][1:])]
    with io.BytesIO(file.read_bytes()) as raw:
        # gzip's own time, too
        assert raw.read()[4:8] == b"\0\0\0\0"
