"""Make the records in docs/images.md from policies/images.yaml and the ledger.

python tools/images_page.py docs/images.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rocm_autopatch.evidence import defects
from rocm_autopatch.evidence.defects import KnownDefect
from rocm_autopatch.image import reference
from rocm_autopatch.policy import load, when
from rocm_autopatch.policy.model import Policy
from rocm_autopatch.record import sentences

BEGIN = (
    "<!-- What follows is made by make docs from policies/images.yaml and "
    "rocm_autopatch/evidence/ledger.yaml. -->\n"
)
END = "<!-- End of what is made. -->\n"
DEFECTS = """## Defects of graphs

Each line of [the ledger](evidence.md#the-ledger) begins with where evidence that could not have
seen the defect proves no graph, or less. *Seen by* is the trial of `prove` that could have."""


def page(text: str) -> str:
    """The page's text with the records of today. Raises ValueError if it has no place for them."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r}")
    return before + begin + "".join(f"{line}\n" for line in records()) + end + after


def records() -> Iterator[str]:
    """The lines of the image records and of the ledger."""
    for row in load.images():
        yield ""
        yield f"### `{row.name}`" if row.image else f"### {row.name}"
        yield from section(row)
    yield ""
    yield from (*DEFECTS.splitlines(), "")
    yield from map(defect_row, defects.read_ledger())


def section(row: Policy) -> Iterator[str]:
    """A record, without its heading."""
    where = {name: wanted for name, wanted in row.when.items() if name != "accelerator"}
    if where:
        yield f"{when.text(where, '`')}."
    if row.description:
        yield linked(row.description)
    if row.base or row.changes:
        more = " and what the record changes" if row.changes else ""
        yield f"Policy: `{row.base or load.DEFAULT}`{more}."
    sources: dict[str, list[str]] = {}
    for setting in row.sets:
        sources.setdefault(setting.why, []).append(f"`{setting.name}={setting.value}`")
    items = [f"{', '.join(found)}: {why}" for why, found in sources.items()]
    items += [linked(sentences.issue_sentence(asdict(issue))) for issue in row.known_issues]
    threads = [one.source[0] for one in defects_of(row) if one.forbids != defects.NOTHING]
    if threads:
        items.append(f"[Graphs](#defects-of-graphs): {', '.join(threads)}")
    if items:
        yield ""
    yield from (f"- {item}" for item in items)


def defects_of(row: Policy) -> Iterator[KnownDefect]:
    """The records of the ledger for the image that a record names."""
    if row.image:
        yield from defects.find_defects(
            reference.reference_facts(reference.parse_reference(row.image))
        )


def defect_row(one: KnownDefect) -> str:
    """A record of the ledger as a line of the list."""
    where = ", ".join(
        f"{name} `{wanted if isinstance(wanted, str) else '`, `'.join(wanted)}`"
        for name, wanted in one.when.items()
    )
    starts = f", {one.starts} times" if one.starts else ""
    seen = f" Seen by `{one.trial}`{starts}." if one.trial else ""
    forbids = f"`{one.op}`" if one.op else one.forbids
    text = f"{one.defect.rstrip('.')} ({', '.join(one.source)})"
    return f"- **{where or 'ROCm'}**: {text}. Forbids {forbids}.{seen}"


def linked(text: str) -> str:
    """Text with its claims as links: ``docs/claims.md#NAME``."""
    return re.sub(r"docs/(claims\.md#([\w-]+))", r"[claims: \2](\1)", text)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page(path.read_text()))
