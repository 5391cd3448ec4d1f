"""The picture of the tree in docs/design.md is made from the docstrings of folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import tree_table


def test_it_is_not_stale() -> None:
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    assert tree_table.page(page) == page
    for folder in (ROOT / "rocm_autopatch").glob("*/__init__.py"):
        assert f"\n- `{folder.parent.name}/`: " in page


def test_it_has_the_first_sentence(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text('"""One ``thing``\nhere. Another.\n\nMore."""\n')
    assert list(tree_table.rows(tmp_path)) == ["- `room/`: One `thing` here"]


def test_a_page_without_a_place_for_it() -> None:
    with pytest.raises(ValueError, match="the page has no lines"):
        tree_table.page("# Design\n")
