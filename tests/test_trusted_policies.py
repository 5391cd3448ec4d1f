"""Policies are read from regular files alone, and obeyed where nobody else can change them."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rocm_autopatch.cli import main
from rocm_autopatch.policy import PolicyError, load, select
from tests.conftest import Interpreter
from tests.messages import Golden
from tests.programs import program_file

TEXT = "version: 1\nenv: {A: {set: a}}\n"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "team" / "team.yaml"
    file.parent.mkdir(mode=0o755)
    file.write_text(TEXT)
    file.chmod(0o644)
    return file


def refused(file: Path) -> str:
    with pytest.raises(PolicyError) as caught:
        load.policy(file)
    return str(caught.value)


def make(kind: str, file: Path) -> None:
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "directory":
        file.mkdir()
    elif kind == "device":
        file.symlink_to("/dev/zero")
    elif kind == "socket":
        # Its name has to be short.
        here = os.open(file.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{file.name}")
        os.close(here)
    elif kind == "input":
        file.symlink_to("/dev/stdin")


KINDS = ("pipe", "directory", "device", "socket", "input")


@pytest.mark.parametrize("kind", KINDS)
def test_check_reads_regular_files_alone(kind: str, policy: Path, golden: Golden) -> None:
    make(kind, policy)
    done = subprocess.run(
        [sys.executable, "-m", "rocm_autopatch", "check", policy],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    # The finding is on stdout, the count on stderr.
    assert (done.returncode, done.stdout.count("\n")) == (1, 1)
    golden(done.stdout + done.stderr, FILE=policy)


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_and_what_is_in_the_place_too(kind: str, policy: Path, golden: Golden) -> None:
    top = policy.with_name("top.yaml")
    top.write_text("version: 1\nextends: team.yaml\n")
    images = policy.with_name("images.yaml")
    images.write_text("version: 1\nimages: [{image: a, policy: team.yaml}]\n")
    make(kind, policy)
    done = subprocess.run(
        [sys.executable, program_file("trusted_policies/read_both.py"), top, policy.parent],
        input="the input",
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    base, placed, read = done.stdout.splitlines()
    assert base == placed
    golden(base, FILE=policy)
    assert read == "the input"


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_reads_regular_files_alone(
    kind: str, policy: Path, python311: Interpreter, golden: Golden
) -> None:
    make(kind, policy)
    done = python311.run(
        "-c", "print(input())", env={"ROCM_AUTOPATCH_POLICY": str(policy)}, input="the input\n"
    )
    assert done.stdout == "the input\n"
    golden(done.stderr, FILE=policy)


def open_to_others(how: str, file: Path) -> None:
    """Let others change *file*."""
    if how == "file of the group":
        file.chmod(0o664)
    elif how == "file of everybody":
        file.chmod(0o666)
    elif how == "directory of the group":
        file.parent.chmod(0o775)
    elif how == "directory of everybody":
        file.parent.chmod(0o777)
    elif how == "link to a file of the group":
        target = file.with_name("target")
        file.rename(target)
        file.symlink_to("target")
        target.chmod(0o664)


HOW = ("file of the group", "file of everybody", "directory of the group", "directory of everybody")


@pytest.mark.parametrize("how", [*HOW, "link to a file of the group"])
def test_what_others_can_change(
    how: str, policy: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    open_to_others(how, policy)
    objection = refused(policy)
    golden(objection, "start", FILE=policy)
    for name, at in ((str(policy), ()), ("", [policy.parent])):
        with pytest.raises(PolicyError) as caught:
            select.select({}, name, at=at)
        assert str(caught.value) == objection
    # It may be a checkout on a laptop, and right besides.
    assert main(["check", str(policy)]) == 0
    said = capsys.readouterr()
    assert objection.removeprefix(f"{policy}: ") in said.out
    assert said.out.count("\n") == 1
    golden(said.out + said.err, "check", FILE=policy)
    assert main(["policies", "show", str(policy)]) == 1
    # The command in it mends it.
    subprocess.run(objection.rpartition("; run ")[2].split(), check=True)
    assert load.policy(policy).env


def test_a_base_that_others_can_change(
    policy: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    top = policy.with_name("top.yaml")
    top.write_text("version: 1\nextends: team.yaml\n")
    top.chmod(0o644)
    policy.chmod(0o666)
    with pytest.raises(PolicyError) as caught:
        load.layers(load.policy(top))
    golden(str(caught.value), "start", FILE=policy)
    assert main(["check", str(top)]) == 0
    golden(capsys.readouterr().out, "check", FILE=policy)


def test_a_start_says_how_to_mend_it(policy: Path, python311: Interpreter, golden: Golden) -> None:
    policy.chmod(0o664)
    done = python311.run("-c", "print(1)", env={"ROCM_AUTOPATCH_POLICY": str(policy)})
    assert done.stdout == "1\n"
    golden(done.stderr, FILE=policy)


def test_a_link_to_a_good_file(policy: Path) -> None:
    link = policy.with_name("link.yaml")
    link.symlink_to("team.yaml")
    assert load.policy(link).env


def test_the_built_in_policies_are_as_trusted_as_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A checkout with a umask of 002 has to be built from.
    ours = Path(shutil.copytree(load.BUILTIN, tmp_path / "ours"))
    for file in (ours, *ours.iterdir()):
        file.chmod(0o775)
    monkeypatch.setattr(load, "BUILTIN", ours)
    monkeypatch.setattr(load, "IMAGES", ours / "images.yaml")
    assert load.layers(load.top("performance"))
    assert load.images(load.IMAGES)


def test_all_that_is_wrong_in_one_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    file = tmp_path / "team.yaml"
    file.write_text(
        "version: 1\n"
        "extends: [safe, saef, ./none.yaml]\n"
        "name: 3\n"
        "name: team\n"
        "env: {A: {set: 1}, B: {set: !!int 1}}\n"
        "config:\n"
        "  torch._inductor.config:\n"
        "    triton.cudagraphs: {pin: true}\n"
        "    max_autotun: {pin: true}\n"
        "    max_autotune: {default: 3}\n"
        "    epilogue_fusio: {pin: [1]}\n"
        "    freezing: {default: [1]}\n"
        "known_issues: [{issue: a, mitigation: none}]\n"
    )
    assert main(["check", "--torch", "2.13", str(file)]) == 1
    out = capsys.readouterr().out
    errors = [line for line in out.splitlines() if ": remark: " not in line]
    assert all(line.startswith(f"{file}:") for line in errors)
    # The lines of the file.
    assert [int(line[len(f"{file}:") :].partition(":")[0]) for line in errors] == [
        *(2, 2, 3, 4, 5, 5, 8, 9, 10, 11, 11, 12, 13)
    ]
    safe = load.BUILTIN / "safe.yaml"
    pin = safe.read_text().splitlines().index("    triton.cudagraphs:") + 2
    golden(out, FILE=file, PIN=f"{safe}:{pin}:9")
