"""Make the list of patches in docs/patches.md from what each patch states of itself.

python tools/patches_table.py docs/patches.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch import patches

BEGIN, END = "<!-- This list is made by make docs. -->\n", "<!-- End of the list. -->\n"


def page(text: str) -> str:
    """The text of the page with the list as it is today. Raises ValueError if it has no place."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return before + begin + "".join(f"{line}\n" for line in rows()) + end + after


def rows() -> Iterator[str]:
    """The lines of the list."""
    for name in patches.NAMES:
        patch = patches.load(name)
        what = (patch.__doc__ or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
        changes = " It changes compiled code." if patch.CHANGES_CODE else ""
        targets = ", ".join(f"`{target}`" for target in patch.TARGETS)
        yield f"- `{name}`: {what}{changes} ({_settings(name, patch.SETTINGS)}; {targets})"


def _settings(name: str, settings: Mapping[str, str | tuple[str, ...]]) -> str:
    if not settings:
        return f"`{name}:`"
    return "`patches:` " + "; ".join(
        f"`{setting}`: {kind if isinstance(kind, str) else ' or '.join(kind)}"
        for setting, kind in settings.items()
    )


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
