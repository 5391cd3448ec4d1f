"""What in docs/ is made from the sources."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rocm_autopatch import patches
from rocm_autopatch.policy import load
from tests.conftest import ROOT
from tools import patches_table


def test_the_images_are_not_stale() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "tools" / "images_page.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == (ROOT / "docs" / "images.md").read_text()


def test_the_images_have_every_record() -> None:
    page = (ROOT / "docs" / "images.md").read_text()
    for row in load.images():
        assert row.name in page
        for setting in row.sets:
            assert f"| `{setting.name}` | `{setting.value}` | " in page
        for issue in row.known_issues:
            assert issue.text.rstrip(".") in page


def test_the_table_of_patches_is_not_stale() -> None:
    page = (ROOT / "docs" / "patches.md").read_text()
    assert patches_table.page(page) == page
    for name in patches.NAMES:
        assert f"\n| `{name}` | " in page
        assert f"\n## `{name}`: " in page


def test_a_page_without_a_place_for_the_table() -> None:
    with pytest.raises(ValueError, match="the page has no lines"):
        patches_table.page("# Patches\n")
