"""README.md for a package index, where a path leads nowhere: links have whole addresses."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)")


def for_index(root: Path) -> str:
    """The text, with links into the release in the repository if setup.cfg says where that is."""
    setup = ConfigParser()
    setup.read(root / "setup.cfg", encoding="utf-8")
    text = (root / "README.md").read_text(encoding="utf-8")
    links = setup.get("metadata", "project_urls", fallback="").strip().splitlines()
    for name, _, address in (line.partition("=") for line in links):
        if name.strip() == "Source":
            text = LINK.sub(f"{address.strip()}/blob/v{setup['metadata']['version']}/", text)
    return text
