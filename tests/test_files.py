"""What commands write is there whole or not at all, and never through a link."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rocm_autopatch.support import files
from tests.conftest import Interpreter
from tests.running import QUIET, run_command

IMAGE = ("--image", "team/image:1")


def commands(out: Path) -> dict[str, tuple[str | Path, ...]]:
    """What writes to *out*, by command."""
    directory = out.parent / "directory"
    directory.mkdir(exist_ok=True)
    return {
        "bake": ("bake", "--out", out),
        "probe": ("probe", "--record", out, *IMAGE),
        "report": ("report", directory, "--html", out),
    }


@pytest.mark.parametrize("name", ["bake", "probe", "report"])
class TestCommands:
    def write_to(
        self, python: Interpreter, name: str, out: Path, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return run_command(python, *commands(out)[name], **options)

    def test_a_link_is_not_followed(
        self, python311: Interpreter, name: str, tmp_path: Path
    ) -> None:
        theirs, out = tmp_path / "theirs", tmp_path / "out"
        theirs.write_text("version: 1\nimages: []\n")
        before = theirs.read_bytes()
        out.symlink_to(theirs)
        done = self.write_to(python311, name, out)
        assert "can't be written" not in done.stderr
        assert theirs.read_bytes() == before
        assert not out.is_symlink()
        assert out.stat().st_size

    def test_what_is_no_file_stays(self, python311: Interpreter, name: str, tmp_path: Path) -> None:
        out = tmp_path / "out"
        if name == "probe":
            pytest.skip("it is read first, as an images file")
        os.mkfifo(out)
        done = self.write_to(python311, name, out)
        assert done.returncode == 1
        assert "is not a regular file" in done.stderr.replace(
            "Invalid argument", "is not a regular file"
        )
        assert out.is_fifo()

    def test_what_is_there_stays_where_the_disk_is_full(
        self, python311: Interpreter, name: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        # The interpreters that a probe starts have their answers to write.
        most = 500_000 if name == "probe" else 900
        out.write_text("version: 1\nimages: []\n# " + "x" * most + "\n")
        before = out.read_bytes()

        def small() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

        done = self.write_to(python311, name, out, preexec_fn=small)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert out.read_bytes() == before
        assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".out")] == []


def test_run_follows_no_link(python311: Interpreter, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    for name in ("processes.jsonl", "trace"):
        directory = tmp_path / f"report-{name}"
        directory.mkdir()
        if name == "trace":
            theirs.unlink()
            theirs.mkdir()
        else:
            theirs.write_text("")
        (directory / name).symlink_to(theirs)
        done = python311.run(
            *("-m", "rocm_autopatch", "run", "--report", directory, "--", "true"),
            env=QUIET,
            check=False,
        )
        assert done.returncode == 1
        assert "nothing was run" in done.stderr


def test_a_distributions_list_is_whole(fresh: Interpreter, tmp_path: Path) -> None:
    """bake adds its file to the list that pip removes by, and keeps the list's mode."""
    (record,) = fresh.site_packages.glob("rocm_autopatch-*.dist-info/RECORD")
    record.chmod(0o640)
    before = record.read_text()
    fresh.run("-m", "rocm_autopatch", "bake", env=QUIET)
    assert record.read_text() == before + "rocm_autopatch/baked.plan,,\n"
    assert record.stat().st_mode & 0o777 == 0o640


def test_a_page_and_its_mode(tmp_path: Path) -> None:
    files.write(tmp_path / "x", b"1")
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644
    files.write(tmp_path / "x", b"2", 0o600)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="regular"):
        files.write(Path("/dev/null"), b"3")
    assert not Path("/dev/null").is_file()
    (tmp_path / "link").symlink_to("/dev/null")
    with pytest.raises(OSError, match="regular"):
        files.write(tmp_path / "link", b"3")
    assert sorted(os.listdir(tmp_path)) == ["link", "x"]
