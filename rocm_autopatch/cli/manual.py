"""The pages of the documentation that are installed: found by a name or a heading, as plain text.

A page is Markdown. In a wheel all pages are one compressed file, which takes two thirds of what
they take alone (setup.cfg lists them, and setup.py packs them); in a checkout they are ``docs/``.
A reference is ``page`` or ``page#anchor``, where an anchor is made of a heading as GitHub makes it,
or is the id of an ``<a>``. Messages cite pages by such references.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rocm_autopatch.support.text import text_columns, wrapped

_PACKAGE = Path(__file__).parents[1]
# The text of each page by its name: JSON, packed by bz2.
PACKED = "pages.bz2"
_HEADING = re.compile(r"(#{1,6}) +(.*)")
_ANCHOR = re.compile(r'<a id="([\w-]+)"></a> *')
_FENCE = re.compile(r" *```")
_COMMENT = re.compile(r"<!--.*?-->")
_ITEM = re.compile(r"( *)([-*]|[0-9]+\.) +")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_EMPHASIS = re.compile(r"(\*\*|\*)(?=\S)(.+?)(?<=\S)\1")
_CODE = re.compile(r"(`+[^`]*`+)")
_RULE = re.compile(r"\|[ :|-]+\|? *")


@dataclass(frozen=True)
class PageSection:
    """A page, a part of it from a heading to the next of its level, or a row of a table."""

    page: str
    anchor: str
    """"" for the whole page."""
    title: str
    lines: tuple[str, ...]
    """Markdown."""

    @property
    def reference(self) -> str:
        """How it is named: ``page`` or ``page#anchor``."""
        return f"{self.page}#{self.anchor}" if self.anchor else self.page


@cache
def _page_texts() -> dict[str, str]:
    """The pages by their names; none if this Python was built without bz2."""
    packed = _PACKAGE / PACKED
    if not packed.is_file():
        pages = (_PACKAGE.parent / "docs").glob("*.md")
        return {path.stem: path.read_text(encoding="utf-8") for path in pages}
    try:
        import bz2
    except ImportError:
        return {}
    texts: dict[str, str] = json.loads(bz2.decompress(packed.read_bytes()))
    return texts


def page_names() -> list[str]:
    """The pages that are installed, and can be read."""
    return sorted(_page_texts())


@cache
def page_sections(page: str) -> tuple[PageSection, ...]:
    """The sections of a page: itself first, then those of its headings and of its ``<a id>``."""
    lines = tuple(_page_texts()[page].splitlines())
    headings = [*_headings(lines)]
    title = headings[0][2] if headings else page
    found = [PageSection(page, "", title, lines)]
    seen: dict[str, int] = {}
    for number, level, text in headings:
        ends = (line for line, other, _ in headings if line > number and other <= level)
        anchor = make_anchor(text)
        seen[anchor] = seen.get(anchor, -1) + 1
        anchor += f"-{seen[anchor]}" if seen[anchor] else ""
        if level > 1:
            part = lines[number : next(ends, len(lines))]
            found.append(PageSection(page, anchor, text, part))
    for number, line in enumerate(lines):
        for anchor in _ANCHOR.findall(line):
            found.append(PageSection(page, anchor, title, _around(lines, number)))
    return tuple(found)


def _headings(lines: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """The line, the level and the text of each heading."""
    code = False
    for number, line in enumerate(lines):
        code ^= bool(_FENCE.match(line))
        found = _HEADING.match(line)
        if found and not code:
            yield number, len(found[1]), _plain_text(found[2])


def _around(lines: Sequence[str], number: int) -> tuple[str, ...]:
    """What a line with an anchor belongs to: a row with its table's head, or a paragraph."""
    if lines[number].startswith("|"):
        first = number
        while first and lines[first - 1].startswith("|"):
            first -= 1
        return (*lines[first : first + 2], lines[number])
    last = number
    while last < len(lines) and lines[last].strip():
        last += 1
    return tuple(lines[number:last])


def make_anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")


def split_reference(text: str) -> tuple[str, str]:
    """The page and the anchor that *text* names, as messages, links and people write them.

    ``docs/watchdog.md#phases``, ``watchdog#phases`` and ``watchdog phases`` are the same.
    """
    page, *rest = re.split(r"[\s#]+", text.strip())
    return page.removeprefix("docs/").removesuffix(".md"), make_anchor(" ".join(rest))


def find_sections(text: str) -> list[PageSection]:
    """The sections that *text* may mean: one if it names one; none if nothing is near."""
    page, anchor = split_reference(text)
    if page in page_names():
        sections = page_sections(page)
        exact = [one for one in sections if one.anchor == anchor]
        return exact[:1] or _by_words(sections, anchor)
    every = [one for name in page_names() for one in page_sections(name)]
    return _by_words(every, make_anchor(" ".join(text.split())))


def _by_words(sections: Sequence[PageSection], anchor: str) -> list[PageSection]:
    """The sections whose titles have these words."""
    titles = [(one, make_anchor(one.title) if one.title else "") for one in sections]
    exact = [one for one, title in titles if anchor in (title, one.anchor)]
    words = anchor.split("-")
    near = [one for one, title in titles if all(word in title.split("-") for word in words)]
    found = exact or near
    # A row of a table has the title of its page.
    return [one for one in found if one.anchor in ("", make_anchor(one.title), anchor)] or found


def section_lines(section: PageSection) -> Iterator[str]:
    """A section as plain text, at most text_columns() wide."""
    return _block_lines([*section.lines], section.page)


def _block_lines(lines: list[str], page: str) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line, first = lines[at], at
        if _FENCE.match(line):
            at = _until(lines, at + 1, lambda one: bool(_FENCE.match(one))) + 1
            yield from (f"    {one}".rstrip() for one in lines[first + 1 : at - 1])
        elif line.startswith("|"):
            at = _until(lines, at, lambda one: not one.startswith("|"))
            yield from _table_lines(lines[first:at], page)
        elif line.startswith(">"):
            at = _until(lines, at, lambda one: not one.startswith(">"))
            inner = [re.sub("^> ?", "", one) for one in lines[first:at]]
            yield from (f"| {one}".rstrip() for one in _block_lines(inner, page))
        elif _HEADING.match(line):
            at += 1
            text = inline_text(line.lstrip("# "), page)
            level = len(line) - len(line.lstrip("#"))
            yield text.upper() if level == 1 else text
            yield ("=" if level == 1 else "-") * len(text)
        elif not _COMMENT.sub("", line).strip():
            at += 1
            if not line.strip():
                yield ""
        else:
            at = _until(lines, at + 1, _begins_block)
            yield from _paragraph_lines(lines[first:at], page)


def _until(lines: Sequence[str], at: int, ends: Callable[[str], bool]) -> int:
    while at < len(lines) and not ends(lines[at]):
        at += 1
    return at


def _begins_block(line: str) -> bool:
    return not line.strip() or bool(
        _FENCE.match(line) or _ITEM.match(line) or _HEADING.match(line) or line[:1] in "|>"
    )


def _paragraph_lines(lines: Sequence[str], page: str) -> Iterator[str]:
    item = _ITEM.match(lines[0])
    first = item[0] if item else " " * (len(lines[0]) - len(lines[0].lstrip()))
    text = " ".join([lines[0][len(first) :], *(one.strip() for one in lines[1:])])
    yield from wrapped(inline_text(text, page), first, " " * len(first), break_long_words=False)


def _table_lines(lines: Sequence[str], page: str) -> Iterator[str]:
    rows = [_cells(one, page) for one in lines if not _RULE.fullmatch(one)]
    head, *rest = rows
    widths = [max(len(row[at]) if at < len(row) else 0 for row in rows) for at in range(len(head))]
    if sum(widths) + 2 * len(widths) <= text_columns() - 2:
        shown = rows if any(head) else rest
        for row in shown:
            yield ("  " + "  ".join(map(str.ljust, row, widths))).rstrip()
        return
    for cells in rest:
        yield from wrapped(cells[0], "  ", "    ", break_long_words=False)
        for name, cell in zip(head[1:], cells[1:]):
            text = f"{name}: {cell}" if name and len(head) > 2 else cell
            yield from wrapped(text, "      ", "        ", break_long_words=False) if cell else ()


def _cells(line: str, page: str) -> list[str]:
    inner = line.strip().strip("|") if not line.rstrip().endswith("\\|") else line.strip()[1:]
    return [inline_text(one.strip(), page) for one in re.split(r"(?<!\\)\|", inner)]


def inline_text(text: str, page: str) -> str:
    """Markdown of a paragraph on *page* as text: a link to a page that is installed is followed by
    its reference in brackets."""
    text = _ANCHOR.sub("", _COMMENT.sub("", text))
    return _plain_text(_LINK.sub(lambda found: _link_text(found[1], found[2], page), text))


def _link_text(text: str, target: str, page: str) -> str:
    if "://" in target:
        return text if target == text else f"{text} ({target})"
    name, _, anchor = target.partition("#")
    name = name[:-3] if name.endswith(".md") else name or page
    if name not in page_names():
        return text
    reference = f"{name}#{anchor}" if anchor else name
    return text if text.strip("`").lower() == reference else f"{text} [{reference}]"


def _plain_text(text: str) -> str:
    """Without emphasis, which may go around code, and is not looked for in it."""
    code = _CODE.findall(text)
    text = _EMPHASIS.sub(r"\2", _CODE.sub("\0", text))
    return re.sub("\0", lambda _: code.pop(0), text).replace("\\|", "|")


def page_headings(page: str) -> list[str]:
    """The titles of a page's sections of the second level."""
    lines = page_sections(page)[0].lines
    return [text for _, level, text in _headings(lines) if level == 2]


def listed_pages() -> Iterator[str]:
    """A line for each page: its name and its title."""
    width = max(map(len, page_names()), default=0)
    for name in page_names():
        title = page_sections(name)[0].title
        yield from wrapped(f"{name:{width}}  {title}", "  ", " " * (width + 4))
