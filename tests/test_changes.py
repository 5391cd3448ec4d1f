"""changes/: one file for each change that a user notices, of which a release makes its section."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from tests.conftest import ROOT
from tools import changelog

FOLDER = ROOT / "changes"
TYPES = {kind.lower() for kind in changelog.KINDS}


def problems(folder: Path) -> list[str]:
    """What is wrong with the files of a folder of changes."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name == "README.md":
            continue
        match = re.fullmatch(r"[a-z0-9-]+\.([a-z]+)\.md", path.name)
        text = path.read_text(encoding="utf-8").strip()
        if match is None or match[1] not in TYPES:
            found.append(f"{path.name}: not WORDS.KIND.md with one of {', '.join(sorted(TYPES))}")
        elif not text.endswith((".", "`")) or text.startswith(("-", "#")):
            found.append(f"{path.name}: sentences, without a heading or a bullet")
    return found


def test_each_change_has_a_known_kind() -> None:
    assert problems(FOLDER) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.mended.md", "One."),
        ("a.md", "One."),
        ("A change.fixed.md", "One."),
        ("a.fixed.md", "- One."),
        ("a.fixed.md", ""),
    ],
)
def test_a_wrong_file_is_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert [line.partition(":")[0] for line in problems(tmp_path)] == [name]


def test_towncrier_knows_the_kinds() -> None:
    made = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["towncrier"]
    assert [one["name"] for one in made["type"]] == [*changelog.KINDS]
    assert {one["directory"] for one in made["type"]} == TYPES
    assert made["start_string"] in changelog.FILE.read_text(encoding="utf-8")


def test_a_release_takes_them(tmp_path: Path) -> None:
    """By towncrier itself: the changelog has the form then, and the files are gone."""
    pytest.importorskip("towncrier")
    for name in ("pyproject.toml", "CHANGELOG.md", "tools/changes.jinja", "changes/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    log = tmp_path / "CHANGELOG.md"
    start = log.read_text(encoding="utf-8").partition("## [Unreleased]")[0]
    log.write_text(f"{start}## [Unreleased]\n\n<!-- A release writes below this line. -->\n")
    (tmp_path / "changes" / "one.added.md").write_text("One thing.\n")
    (tmp_path / "changes" / "two.fixed.md").write_text("Two things,\nin two lines.\n")
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    for version, text in (("0.2.0", "One thing."), ("0.3.0", "Another.")):
        if version == "0.3.0":
            (tmp_path / "changes" / "three.added.md").write_text("Another.\n")
        command = ["towncrier", "build", "--yes", "--version", version, "--date", "2026-12-01"]
        run = [sys.executable, "-m", *command]
        subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)
        made = changelog.section(log.read_text(encoding="utf-8"), version)
        assert made.startswith(f"### Added\n\n- {text}")
        assert [path.name for path in (tmp_path / "changes").iterdir()] == ["README.md"]
    assert list(changelog.sections(log.read_text(encoding="utf-8"))) == [
        *("Unreleased", "0.3.0", "0.2.0")
    ]
    first = changelog.section(log.read_text(encoding="utf-8"), "0.2.0")
    assert first.endswith("### Fixed\n\n- Two things,\n  in two lines.")
