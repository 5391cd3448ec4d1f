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
def test_check_reads_regular_files_alone(kind: str, policy: Path) -> None:
    make(kind, policy)
    done = subprocess.run(
        [sys.executable, "-m", "rocm_autopatch", "check", policy],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = "No such device or address" if kind == "socket" else "it is not a regular file"
    assert done.stdout == f"{policy}: can't be read: {said}\n"
    assert (done.returncode, done.stderr) == (1, "1 file checked: 1 error\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_base_and_what_is_in_the_place_too(kind: str, policy: Path) -> None:
    top = policy.with_name("top.yaml")
    top.write_text("version: 1\nextends: team.yaml\n")
    images = policy.with_name("images.yaml")
    images.write_text("version: 1\nimages: [{image: a, policy: team.yaml}]\n")
    make(kind, policy)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from rocm_autopatch.policy import PolicyError, load, select\n"
        "top, place = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "for read in (lambda: load.layers(load.policy(top)),\n"
        "             lambda: select.select({'image': 'a'}, site=None if not place else place)):\n"
        "    try:\n"
        "        read()\n"
        "    except PolicyError as error:\n"
        "        print(error)\n"
        "print(sys.stdin.read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, top, policy.parent],
        input="the input",
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{policy}: can't be read: ") for line in lines[:2])
    assert lines[2] == "the input"


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_reads_regular_files_alone(kind: str, policy: Path, python311: Interpreter) -> None:
    make(kind, policy)
    done = python311.run(
        "-c", "print(input())", env={"ROCM_AUTOPATCH_POLICY": str(policy)}, input="the input\n"
    )
    assert done.stdout == "the input\n"
    assert f"{policy}: can't be read: " in done.stderr


def open_to_others(how: str, file: Path) -> str:
    """Let others change *file*; how to undo it."""
    if how == "file of the group":
        file.chmod(0o664)
        return f"its group may write it; run chmod g-w {file}"
    if how == "file of everybody":
        file.chmod(0o666)
        return f"everybody may write it; run chmod o-w {file}"
    if how == "directory of the group":
        file.parent.chmod(0o775)
        return f"its group may write {file.parent}; run chmod g-w {file.parent}"
    if how == "directory of everybody":
        file.parent.chmod(0o777)
        return f"everybody may write {file.parent}; run chmod o-w {file.parent}"
    target = file.with_name("target")
    file.rename(target)
    file.symlink_to("target")
    target.chmod(0o664)
    return f"its group may write {target}; run chmod g-w {target}"


HOW = ("file of the group", "file of everybody", "directory of the group", "directory of everybody")


@pytest.mark.parametrize("how", [*HOW, "link to a file of the group"])
def test_what_others_can_change(
    how: str, policy: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    objection = open_to_others(how, policy)
    assert refused(policy) == f"{policy}: {objection}"
    with pytest.raises(PolicyError, match=r"team\.yaml: .* chmod"):
        select.select({}, str(policy), site=None)
    with pytest.raises(PolicyError, match=r"team\.yaml: .* chmod"):
        select.select({}, site=policy.parent)
    # It may be a checkout on a laptop, and right besides.
    assert main(["check", str(policy)]) == 0
    said = capsys.readouterr()
    golden(said.out, FILE=policy)
    assert objection in said.out
    assert said.err == "1 file checked: no errors, 1 remark\n"
    assert main(["policies", "show", str(policy)]) == 1


def test_a_base_that_others_can_change(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    top = policy.with_name("top.yaml")
    top.write_text("version: 1\nextends: team.yaml\n")
    top.chmod(0o644)
    policy.chmod(0o666)
    with pytest.raises(PolicyError) as caught:
        load.layers(load.policy(top))
    assert str(caught.value) == f"{policy}: everybody may write it; run chmod o-w {policy}"
    assert main(["check", str(top)]) == 0
    assert f"{policy}: remark: a start on this machine would not obey" in capsys.readouterr().out


def test_a_start_says_how_to_mend_it(policy: Path, python311: Interpreter) -> None:
    policy.chmod(0o664)
    done = python311.run("-c", "print(1)", env={"ROCM_AUTOPATCH_POLICY": str(policy)})
    assert done.stdout == "1\n"
    assert f"{policy}: its group may write it; run chmod g-w {policy}" in done.stderr


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


def test_all_that_is_wrong_in_one_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{file}:") for line in lines)
    key = "config.torch._inductor.config"
    missing = (
        "no such policy; built-in policies: capture-guard, debug, no-hipblaslt, performance, safe, "
        "sglang-compile; or give the path of a file"
    )
    safe = load.BUILTIN / "safe.yaml"
    pin = safe.read_text().splitlines().index("    triton.cudagraphs:") + 1
    assert [line[len(f"{file}:") :] for line in lines if "remark" not in line] == [
        f"2:10: saef: {missing}",
        f"2:10: ./none.yaml: {missing}",
        "3:7: name: expected a text, found 3: put it in quotes",
        "4:1: name: given twice, first in line 3",
        "5:16: env.A.set: expected a text, found 1: put it in quotes",
        "5:29: env.B.set: the tag !!int is not allowed, only !!str is",
        f"8:5: {key}.triton.cudagraphs: pinned to True here, but to False in {safe}:{pin}:5; with "
        "insist: true, this pin overrides that one",
        f"9:5: {key}.max_autotun: no such key in torch 2.13: did you mean max_autotune?",
        f"10:5: {key}.max_autotune: 3 is not of type bool in torch 2.13",
        f"11:5: {key}.epilogue_fusio: no such key in torch 2.13: did you mean epilogue_fusion?",
        f"11:27: {key}.epilogue_fusio.pin: expected a plain value, found a list",
        f"12:25: {key}.freezing.default: expected a plain value, found a list",
        f"13:15: none: {missing}",
    ]
