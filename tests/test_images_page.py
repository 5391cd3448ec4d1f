"""docs/images.md, made from policies/images.yaml."""

from __future__ import annotations

import subprocess
import sys

from rocm_autopatch.policy import load
from tests.conftest import ROOT


def test_it_is_not_stale() -> None:
    made = subprocess.run(
        [sys.executable, ROOT / "tools" / "images_page.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout == (ROOT / "docs" / "images.md").read_text()


def test_it_has_every_record() -> None:
    page = (ROOT / "docs" / "images.md").read_text()
    for row in load.images():
        assert row.name in page
        for setting in row.sets:
            assert f"| `{setting.name}` | `{setting.value}` | " in page
        for issue in row.known_issues:
            assert issue.text.rstrip(".") in page
