"""Whether a site is whole: each link leads somewhere, and nothing is loaded from elsewhere.

Sphinx checks the links that we write. This reads what came out, the theme's own links included.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# What a browser loads by itself, by element and attribute.
LOADS = {
    ("audio", "src"),
    ("embed", "src"),
    ("iframe", "src"),
    ("img", "src"),
    ("input", "src"),
    ("link", "href"),
    ("object", "data"),
    ("script", "src"),
    ("source", "src"),
    ("track", "src"),
    ("video", "poster"),
    ("video", "src"),
}
IN_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s]+)""")


class Page(HTMLParser):
    """What a page links to, what it loads, and the ids that links may lead to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """HTMLParser calls this."""
        for name, given in attrs:
            value = given or ""
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif (tag, name) in LOADS:
                self.loads.add(value)
            elif tag in ("a", "area") and name == "href":
                self.links.add(value)
            elif name == "srcset":
                self.loads.update(part.split()[0] for part in value.split(",") if part.strip())
            elif name == "style":
                self.loads.update(IN_CSS.findall(value))


class Site:
    """The files beneath a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @cached_property
    def pages(self) -> dict[Path, Page]:
        """The pages by their paths."""
        return {path: Page(path) for path in sorted(self.root.rglob("*.html"))}

    def missing(self, source: Path, link: str) -> str:
        """What a link from *source* lacks, "" if it leads somewhere."""
        parts = urlsplit(link)
        target = source
        if parts.path:
            target = (source.parent / unquote(parts.path)).resolve()
        if not target.is_relative_to(self.root) or not target.is_file():
            return "there is no such file"
        fragment = unquote(parts.fragment)
        page = self.pages.get(target)
        if fragment and page is not None and fragment not in page.ids:
            return "the page has no such place"
        return ""


def is_outside(link: str) -> bool:
    """Whether a link leads out of the site. What stands in the page itself does not."""
    parts = urlsplit(link)
    return parts.scheme != "data" and bool(parts.scheme or parts.netloc)


def problems(root: Path) -> Iterator[str]:
    """What is wrong with the site beneath *root*, a line each."""
    site = Site(root)
    if not site.pages:
        yield f"{root}: no page"
    for path, page in site.pages.items():
        name = path.relative_to(site.root)
        for link in sorted(page.loads):
            if is_outside(link):
                yield f"{name}: loads {link}, which is elsewhere"
        for link in sorted(page.links | page.loads):
            if not is_outside(link) and not link.startswith("data:"):
                missing = site.missing(path, link)
                if missing:
                    yield f"{name}: {link}: {missing}"
    for path in sorted(site.root.rglob("*.css")):
        for link in sorted(set(IN_CSS.findall(path.read_text(encoding="utf-8")))):
            if is_outside(link):
                yield f"{path.relative_to(site.root)}: loads {link}, which is elsewhere"
