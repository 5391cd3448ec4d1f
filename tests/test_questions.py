"""tests/data/questions: what users ask, each with the page and the heading that answers it.

A page that is shortened, merged or moved keeps the answers: then the rows name the new place.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

FOLDER = ROOT / "tests" / "data" / "questions"
# There may be more, not less.
AT_LEAST = 60


def read_questions(folder: Path = FOLDER) -> list[dict[str, str]]:
    """The rows of all files."""
    found = []
    for path in sorted(folder.glob("*.yaml")):
        found += yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def parts(text: str) -> dict[str, str]:
    """By heading, what stands below it up to the next heading of its level or a higher one.

    Lines in code are no headings.
    """
    lines = text.splitlines()
    headings: list[tuple[int, int, str]] = []
    in_code = False
    for number, line in enumerate(lines):
        in_code ^= line.lstrip().startswith("```")
        if not in_code and (match := re.match(r"(#+) (.+)", line)):
            headings.append((number, len(match[1]), match[2].strip()))
    found = {}
    for i, (number, level, name) in enumerate(headings):
        ends = (other for other, its, _ in headings[i + 1 :] if its <= level)
        body = lines[number + 1 : next(ends, len(lines))]
        found[name] = "\n".join(line for line in body if not line.startswith("#")).strip()
    return found


def problem(row: dict[str, str], root: Path = ROOT) -> str:
    """What is wrong with a row; nothing if its question has an answer."""
    if set(row) != {"question", "page", "heading"} or not all(row.values()):
        return "not a question, a page and a heading"
    page = root / row["page"]
    if not page.is_file():
        return f"there is no {row['page']}"
    heading = row["heading"].lstrip("# ")
    below = parts(page.read_text(encoding="utf-8")).get(heading)
    if below is None:
        return f"{row['page']} has no heading {heading!r}"
    return "" if len(below.split()) > 10 else f"{row['page']}: nothing stands below {heading!r}"


def test_each_question_has_its_answer() -> None:
    wrong = {row["question"]: problem(row) for row in read_questions() if problem(row)}
    assert wrong == {}


def test_no_question_is_asked_twice() -> None:
    asked = [row["question"] for row in read_questions()]
    assert len(asked) == len(set(asked))


def test_there_are_as_many_as_there_were() -> None:
    assert len(read_questions()) >= AT_LEAST


PAGE = "# A\ntext\n## B\n```\n## C\n```\n### D\n" + "word " * 11 + "\n## E\n## F\nfew words\n"


@pytest.mark.parametrize(
    ("page", "heading", "said"),
    [
        ("a.md", "D", ""),
        ("a.md", "B", ""),
        ("a.md", "## B", ""),
        ("b.md", "B", "there is no b.md"),
        ("a.md", "C", "a.md has no heading 'C'"),
        ("a.md", "E", "a.md: nothing stands below 'E'"),
        ("a.md", "F", "a.md: nothing stands below 'F'"),
        ("a.md", "", "not a question, a page and a heading"),
    ],
)
def test_what_is_no_answer(tmp_path: Path, page: str, heading: str, said: str) -> None:
    (tmp_path / "a.md").write_text(PAGE)
    assert problem({"question": "Why?", "page": page, "heading": heading}, tmp_path) == said
