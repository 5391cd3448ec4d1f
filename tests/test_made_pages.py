"""What in docs/ is made from the sources."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.__main__ import read_manifest
from rocm_autopatch import patches
from rocm_autopatch.evidence import SUBJECTS
from rocm_autopatch.policy import load
from tests.conftest import ROOT
from tools import amd_page, evidence_page, experiments_page, naming, patches_table


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


def test_the_figures_of_amd_s_compiler_are_not_stale() -> None:
    page = (ROOT / "docs" / "amd-compiler.md").read_text()
    assert "\n".join(amd_page.page(amd_page.kept())) + "\n" == page
    for row in amd_page.kept():
        assert "failed" in row or f" {row['candidates']}" in page


def test_figures_that_failed_are_no_figures() -> None:
    row = {**amd_page.kept()[0], "candidates": 4711}
    assert " 4711" in "\n".join(amd_page.page([row]))
    assert " 4711" not in "\n".join(amd_page.page([{**row, "failed": "more than 1800 s"}]))


def test_what_was_proven_is_not_stale() -> None:
    """The files of evidence/ can be used, and their page has all of them."""
    page = (ROOT / "docs" / "proven.md").read_text()
    found = evidence_page.kept()
    assert "\n".join(evidence_page.page(found)) + "\n" == page
    for one in found:
        assert Path(one.file).name in page
        assert page.count("| `") == len(SUBJECTS) * len(found)


def test_the_experiments_are_not_stale() -> None:
    page = (ROOT / "docs" / "experiments.md").read_text()
    found = read_manifest()
    assert "\n".join(experiments_page.page(found)) + "\n" == page
    for name, one in found.items():
        assert f"| [`{name}`](#{name}) | {one.purpose} | " in page
        assert f"\n### `{name}`\n`{one.command}`. " in page
        assert one.notes in page


def test_both_breakages_were_found() -> None:
    """They broke real programs before there was any evidence (docs/performance.md)."""
    (h200,) = evidence_page.kept()
    faults = {
        (one["trial"], one["start"], name)
        for name in ("freezing", "multi_kernel")
        for one in h200.subjects[name]["faults"]
    }
    assert ("transformers_generate", "cold", "freezing") in faults
    assert ("transformers_generate", "warm", "multi_kernel") in faults


def test_the_figures_of_names_are_not_stale() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert naming.page(text, naming.measure()) == text
    with pytest.raises(ValueError, match="the page has no lines"):
        naming.page("# Contributing\n", naming.measure())
