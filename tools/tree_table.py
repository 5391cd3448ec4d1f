"""Make the list of folders in docs/design.md from the first sentence of each docstring.

python tools/tree_table.py docs/design.md
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "rocm_autopatch"
BEGIN, END = "<!-- This list is made by make docs. -->\n", "<!-- End of the list. -->\n"


def page(text: str, package: Path = PACKAGE) -> str:
    """The text of the page with the list as it is today. Raises ValueError if it has no place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return before + begin + "".join(f"{line}\n" for line in rows(package)) + end + after


def rows(package: Path = PACKAGE) -> Iterator[str]:
    """The lines of the list."""
    for path in sorted(package.glob("*/__init__.py")):
        yield f"- `{path.parent.name}/`: {first_sentence(path)}"


def first_sentence(path: Path) -> str:
    """The first sentence of a file's docstring; nothing if it has none."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph)[0]
    return sentence.rstrip(".").replace("``", "`")


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
