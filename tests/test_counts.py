"""docs/ has what users need: figures are result files, what was read of torch is in research/.

``pytest -s tests/test_counts.py`` prints the words of each page, as ``wc -w`` counts them.
"""

from __future__ import annotations

from tests.conftest import ROOT

MOST_PAGES = 27
MOST_WORDS = 45_000


def test_pages_and_words() -> None:
    words = {
        path.name: len(path.read_text(encoding="utf-8").split())
        for path in (ROOT / "docs").glob("*.md")
    }
    longest = sorted(words.items(), key=lambda item: -item[1])
    table = "\n".join(f"{count:6,} {name}" for name, count in longest)
    said = f"{len(words)} pages of at most {MOST_PAGES}, {sum(words.values()):,} words of at most "
    said += f"{MOST_WORDS:,}:\n{table}"
    print(said)
    assert len(words) <= MOST_PAGES, said
    assert sum(words.values()) <= MOST_WORDS, said
