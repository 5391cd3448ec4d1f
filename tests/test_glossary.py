"""docs/glossary.md: each word once, and each place that it names is there."""

from __future__ import annotations

import re

from tests.conftest import ROOT

ROWS = re.findall(
    r"^- \*\*([^*]+)\*\*: .* \(((?:`|\[).*)\)$",
    (ROOT / "docs" / "glossary.md").read_text(),
    re.MULTILINE,
)
WORDS = [word for word, _ in ROWS]


def test_each_word_has_one_meaning() -> None:
    assert len(WORDS) > 40
    assert len(WORDS) == len(set(WORDS))
    listed = (ROOT / "docs" / "glossary.md").read_text().count("\n- ")
    assert len(WORDS) == listed, "a word without its place"


def test_each_place_is_there() -> None:
    named = [name for _, place in ROWS for name in re.findall(r"`([^`]+)`", place)]
    assert len(named) > 40
    for name in named:
        assert (ROOT / name).exists() or (ROOT / "rocm_autopatch" / name).exists(), name
