"""What is released: equal archives of two builders, what a tag needs, the changelog's form."""

from __future__ import annotations

import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_packaging import members
from tools import changelog, dist, readme

LOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2026-12-01

### Added
- Two.

### Fixed
- Three.

## [0.1.0] - 2026-11-23
### Added
- One.
"""


@pytest.mark.slow
def test_two_builders_get_the_same_archives(wheel: Path, tmp_path: Path) -> None:
    first, second = dist.build(ROOT, tmp_path, 1_700_000_000)
    dist.compare(first, second)
    (built,) = first.glob("*.whl")  # from the sdist
    assert members(built) == members(wheel)
    (sdist,) = first.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert {(entry.mtime, entry.uname) for entry in archive} == {(1_700_000_000, "")}
        assert {oct(entry.mode) for entry in archive} == {"0o644", "0o755"}


def archives(place: Path, text: str = "text", mode: int = 0o644) -> Path:
    """A wheel and an sdist of one file each."""
    place.mkdir()
    (place / "file").write_text(text)
    (place / "file").chmod(mode)
    os.utime(place / "file", (0, 1_700_000_000))
    with zipfile.ZipFile(place / "a.whl", "w") as wheel:
        wheel.write(place / "file", "file")
    with tarfile.open(place / "a.tar.gz", "w:gz") as sdist:
        sdist.add(place / "file", "file")
    (place / "file").unlink()
    return place


def test_archives_that_differ(tmp_path: Path) -> None:
    one = archives(tmp_path / "one")
    with pytest.raises(dist.DistError) as text:
        dist.compare(one, archives(tmp_path / "text", text="other"))
    assert [line.split(":")[:2] for line in str(text.value).splitlines()] == [
        ["two builds differ"],
        ["a.tar.gz", " file"],
        ["a.whl", " file"],
    ]
    with pytest.raises(dist.DistError, match=r"a\.whl: file: .*0o100644.* and .*0o100600"):
        dist.compare(one, archives(tmp_path / "mode", mode=0o600))
    packed = archives(tmp_path / "packed")
    (packed / "a.tar.gz").write_bytes((packed / "a.tar.gz").read_bytes() + b"\0")
    (packed / "a.whl").write_bytes((one / "a.whl").read_bytes())
    with pytest.raises(dist.DistError, match="packed in another way"):
        dist.compare(one, packed)
    (packed / "a.whl").unlink()
    with pytest.raises(dist.DistError, match="other files"):
        dist.compare(one, packed)


def test_links_of_the_readme_on_an_index(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("[a](docs/a.md#b) [b](#b) [c](https://example.org/c)\n")
    setup = tmp_path / "setup.cfg"
    setup.write_text("[metadata]\nversion = 0.2.0\n")
    assert readme.for_index(tmp_path) == (tmp_path / "README.md").read_text()
    setup.write_text(setup.read_text() + "project_urls =\n    Source = https://example.org/x\n")
    whole = "[a](https://example.org/x/blob/v0.2.0/docs/a.md#b)"
    assert readme.for_index(tmp_path) == f"{whole} [b](#b) [c](https://example.org/c)\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository as it is right before a release of 0.2.0."""
    (tmp_path / "setup.cfg").write_text(
        "[metadata]\nname = x\nversion = 0.2.0\nproject_urls =\n    Source = https://example.org/x\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(LOG)
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(place: Path, *arguments: str) -> None:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "tag.gpgSign=false")
    subprocess.run(["git", *who, *arguments], cwd=place, check=True)


def commit(place: Path) -> None:
    git(place, "add", ".")
    git(place, "commit", "-q", "-m", "x")


def test_a_commit_without_a_tag_needs_nothing(repository: Path) -> None:
    (repository / "setup.cfg").write_text("[metadata]\nversion = 9\n")
    assert list(dist.release_problems(repository)) == []


def test_a_tag_that_is_right(repository: Path) -> None:
    git(repository, "tag", "v0.2.0")
    assert list(dist.release_problems(repository)) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        ("setup.cfg", "0.2.0", "0.2.1", "setup.cfg has version 0.2.1, the tag is v0.2.0"),
        ("setup.cfg", "project_urls", "other", "setup.cfg has no project_urls"),
        ("CHANGELOG.md", "0.2.0", "0.1.1", "CHANGELOG.md: it has nothing about 0.2.0"),
        ("CHANGELOG.md", "### Fixed", "### Mended", "CHANGELOG.md: line 10: 'Mended' is none of"),
    ],
)
def test_a_tag_that_is_wrong(repository: Path, file: str, old: str, new: str, problem: str) -> None:
    (repository / file).write_text((repository / file).read_text().replace(old, new))
    commit(repository)
    git(repository, "tag", "v0.2.0")
    problems = list(dist.release_problems(repository))
    assert [line for line in problems if line.startswith(problem)]


def test_a_release_of_what_is_not_committed(repository: Path) -> None:
    git(repository, "tag", "v0.2.0")
    (repository / "more").touch()
    assert list(dist.release_problems(repository)) == [
        "there are changes that are not committed: git status"
    ]


def test_sources_are_what_git_has_or_would_take(repository: Path) -> None:
    (repository / ".gitignore").write_text("ignored\n")
    for name in ("ignored", "new"):
        (repository / name).touch()
    (repository / "CHANGELOG.md").unlink()
    assert dist.sources(repository) == [".gitignore", "new", "setup.cfg"]


def test_our_changelog_has_the_form() -> None:
    assert next(iter(changelog.sections(changelog.FILE.read_text()))) == changelog.UNRELEASED


def test_a_section() -> None:
    assert changelog.section(LOG, "0.1.0") == "### Added\n- One."
    assert changelog.section(LOG, "0.2.0").endswith("- Three.")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("## [Unreleased]\n", "", "the first section is not"),
        ("[0.1.0] - 2026-11-23", "[0.1.0]", "line 13: 0.1.0 has no date"),
        ("[0.1.0] - 2026-11-23", "[0.1.0] - 2026-11-31", "line 13: 0.1.0 has no date"),
        ("[0.1.0]", "0.1.0", "line 13: expected ## "),
        ("[0.1.0]", "[first]", "line 13: 'first' is no version"),
        ("[0.1.0]", "[0.2.1]", "line 13: 0.2.1 stands below 0.2.0"),
        ("[0.1.0] - 2026-11-23", "[Unreleased]", "line 13: .Unreleased. stands first"),
        ("## [0.1.0] - 2026-11-23\n### Added", "### Added", "line 13: Added stands twice in 0.2.0"),
        ("### Added\n- One", "- One", "line 14: a change stands under none of"),
    ],
)
def test_a_changelog_of_another_form(old: str, new: str, problem: str) -> None:
    text = LOG.replace(old, new, 1)
    assert text != LOG
    with pytest.raises(changelog.ChangelogError, match=problem):
        changelog.sections(text)
