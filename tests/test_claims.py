"""docs/claims.md: its rows have names that others link to."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import ROOT
from tools import evidence_table

PAGE = (ROOT / "docs" / "claims.md").read_text()
STATUSES = {"borne out", "overstated", "false today", "not tried"}
ROWS = re.findall(
    r"^\| <a id=\"([^\"]+)\"></a>`([^`]+)` \| (.+) \| ([^|]+) \| (.+) \|$", PAGE, re.M
)


def texts() -> list[Path]:
    folders = ("policies", "docs", "rocm_autopatch", "tests", "experiments", "benchmarks", "tools")
    found = [p for folder in folders for p in (ROOT / folder).rglob("*") if p.suffix in SUFFIXES]
    return [*found, *ROOT.glob("*.md")]


SUFFIXES = {".yaml", ".md", ".py"}


def test_every_row_is_one() -> None:
    assert len(ROWS) == PAGE.count("<a id=") > 50
    names = [row[0] for row in ROWS]
    assert len(set(names)) == len(names)
    for anchor, name, claim, status, evidence in ROWS:
        assert anchor == name
        assert status in STATUSES, name
        assert claim, name
        assert evidence, name


def test_links_lead_to_rows() -> None:
    headings = re.findall(r"^## (.+)$", PAGE, re.M)
    names = {row[0] for row in ROWS} | {h.lower().replace(" ", "-") for h in headings}
    linked = {
        (path.name, name)
        for path in texts()
        for name in re.findall(r"claims\.md#([a-z][\w-]*)", path.read_text())
    }
    assert ("safe.yaml", "gemm-backends") in linked
    assert not {(path, name) for path, name in linked if name not in names}


def test_named_checks_exist() -> None:
    script = (ROOT / "experiments" / "live" / "claims.py").read_text()
    checks = set(re.findall(r'@check\("([^"]+)"', script))
    named = re.findall(r"(?:CPU|H200|CPU and H200): (`[^)|;,.]*`)", PAGE)
    assert named
    assert {name for text in named for name in re.findall(r"`([\w-]+)`", text)} <= checks


def test_figures_are_those_of_the_evidence() -> None:
    (evidence,) = evidence_table.kept()
    named = re.findall(r"([\d.]+)[^()|\d]*\(proven: `([\w-]+)` (\w+)\)", PAGE)
    assert len(named) == PAGE.count("(proven: ") > 5
    for said, subject, key in named:
        assert said == evidence_table.figure(evidence.subjects[subject][key]), (subject, key)
