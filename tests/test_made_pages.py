"""What in docs/ is made from the sources."""

from __future__ import annotations

import datetime
import functools
from pathlib import Path

import pytest

from experiments.__main__ import read_manifest
from rocm_autopatch import patches
from rocm_autopatch.evidence import SUBJECTS
from rocm_autopatch.policy import load
from tests.conftest import ROOT
from tools import (
    amd_table,
    evidence_table,
    experiments_page,
    images_page,
    measurements_page,
    naming,
    patches_table,
)


def test_the_images_are_not_stale() -> None:
    page = (ROOT / "docs" / "images.md").read_text()
    assert images_page.page(page) == page
    with pytest.raises(ValueError, match="the page has no lines"):
        images_page.page("# Images\n")


def test_the_images_have_every_record() -> None:
    page = (ROOT / "docs" / "images.md").read_text()
    for row in load.images():
        assert row.name in page
        for setting in row.sets:
            assert f"`{setting.name}={setting.value}`" in page
        for issue in row.known_issues:
            assert issue.text.rstrip(".") in page


def test_the_list_of_patches_is_not_stale() -> None:
    page = (ROOT / "docs" / "patches.md").read_text()
    assert patches_table.page(page) == page
    for name in patches.NAMES:
        assert f"\n- `{name}`: " in page
        assert f"\n## `{name}`: " in page


def test_a_page_without_a_place_for_the_list() -> None:
    with pytest.raises(ValueError, match="the page has no lines"):
        patches_table.page("# Patches\n")


def test_the_measurements_are_not_stale() -> None:
    page = (ROOT / "docs" / "measurements.md").read_text()
    assert "\n".join(measurements_page.page()) + "\n" == page
    for one in measurements_page.read_measurements():
        assert f"\n### {one.title}\n" in page
        assert all(line in page for line in one.says)


def test_each_result_file_has_its_command() -> None:
    """Without one, nobody can repeat it."""
    for one in measurements_page.read_measurements():
        for table in one.tables:
            assert table.command or one.name in read_manifest(), one.name


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("part: Calls", "unexpected keyword argument 'rate'"),
        ("part: Cals", "part is none of Starts, Compiles"),
    ],
)
def test_wrong_result_files(tmp_path: Path, wrong: str, said: str) -> None:
    more = ", rate: 1" if wrong == "part: Calls" else ""
    row = f"{{date: 2026-11-21, machine: a CPU, columns: [a, b], rows: [[c, d]]{more}}}"
    (tmp_path / "x.yaml").write_text(f"title: X\n{wrong}\ntables: [{row}]\n")
    with pytest.raises((TypeError, ValueError), match=said):
        measurements_page.read_measurements(tmp_path)


def test_wrong_tables_of_a_result_file() -> None:
    made = functools.partial(measurements_page.Table, datetime.date(2026, 11, 21), "a CPU")
    with pytest.raises(ValueError, match="a row has not the columns"):
        made(["a", "b"], [["c"]])
    with pytest.raises(ValueError, match="there is no column d"):
        made(["a", "b"], [["c", "c"]], shown=["a", "d"])
    assert [*made(["a", "b"], [["c", "d"]], shown=["b"]).lines()] == ["| b |", "|---|", "| d |"]


def test_figures_that_failed_are_no_figures() -> None:
    base, other = (
        {**amd_table.kept()[0], "arm": arm, "candidates": n, "gpu": "mi300x", "model": "bert"}
        for arm, n in ((amd_table.BASE, 1), ("performance", 4711))
    )
    assert "| performance | 4711.0 | " in "\n".join(amd_table.section([base, other]))
    failed = {**other, "failed": "more than 1800 s"}
    assert "4711" not in "\n".join(amd_table.section([base, failed]))


def test_what_was_proven_is_there() -> None:
    """The files of evidence/ can be used, and the page has all of them."""
    page = (ROOT / "docs" / "measurements.md").read_text()
    found = evidence_table.kept()
    assert found
    for one in found:
        assert f"[`{Path(one.file).name}`](../evidence/" in page
    assert "\n".join(evidence_table.section(found)).count("\n| `") == len(SUBJECTS) * len(found)


def test_the_experiments_are_not_stale() -> None:
    page = (ROOT / "experiments" / "README.md").read_text()
    found = read_manifest()
    assert "\n".join(experiments_page.page(found)) + "\n" == page
    for name, one in found.items():
        assert f"| [`{name}`](#{name}) | {one.purpose} | " in page
        assert f"\n### `{name}`\n`{one.command}`. " in page
        assert one.notes in page


def test_both_breakages_were_found() -> None:
    """They broke real programs before there was any evidence (docs/measurements.md)."""
    (h200,) = evidence_table.kept()
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
