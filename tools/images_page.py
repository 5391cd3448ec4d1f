"""Make docs/images.md from policies/images.yaml.

python tools/images_page.py > docs/images.md
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

DEFECTS = """## Defects of graphs

[The ledger](evidence.md#the-ledger), from `rocm_autopatch/evidence/ledger.yaml`. *Holds* is where
evidence that could not have seen the defect proves no graph, or less. *Seen by* is the trial of
`prove` that could have seen it, and in how many fresh processes.

| holds | what goes wrong | forbids | seen by |
|---|---|---|---|"""
HEAD = """# What is known of images

Made from `policies/images.yaml` by `make docs`; a test fails when it is stale. A record counts
where the image's [facts](facts.md) meet its conditions, or its reference is the record's. Several
may: later ones are more specific. `rocm-autopatch status --all` prints the known issues of where it
runs. A mitigation is a built-in policy, switched on by `ROCM_AUTOPATCH_POLICY=NAME`, or by
`extends: NAME` in a policy of your own.

To add what you know of your images, put a file of the same form at
`/etc/rocm-autopatch/images.yaml` ([policies](policies.md)).
"""


def page() -> Iterator[str]:
    """The lines of the page."""
    yield HEAD.rstrip("\n")
    for row in load.images():
        yield ""
        yield f"## `{row.name}`" if row.image else f"## {row.name}"
        yield from section(row)
    yield ""
    yield from DEFECTS.splitlines()
    yield from map(defect_row, defects.read_ledger())


def section(row: Policy) -> Iterator[str]:
    """A record, without its heading."""
    if row.when:
        yield ""
        yield f"Where {when.text(row.when, '`')}."
    if row.description:
        yield ""
        yield linked(row.description)
    if row.base or row.changes:
        more = " and what the record changes" if row.changes else ""
        yield ""
        yield f"Policy: `{row.base or load.DEFAULT}`{more}."
    if row.sets:
        yield from ("", "| the image sets | to | by what evidence |", "|---|---|---|")
    for setting in row.sets:
        yield f"| `{setting.name}` | `{setting.value}` | {setting.why} |"
    threads = [one.source[0] for one in defects_of(row) if one.forbids != defects.NOTHING]
    if row.known_issues or threads:
        yield from ("", "Known issues:", "")
    for issue in row.known_issues:
        yield f"- {linked(sentences.issue_sentence(asdict(issue)))}"
    if threads:
        yield f"- [Graphs](#defects-of-graphs): {', '.join(threads)}"


def defects_of(row: Policy) -> Iterator[KnownDefect]:
    """The records of the ledger for the image that a record names."""
    if row.image:
        yield from defects.find_defects(
            reference.reference_facts(reference.parse_reference(row.image))
        )


def defect_row(one: KnownDefect) -> str:
    """A record of the ledger as a row of the table."""
    where = ", ".join(
        f"{name} `{wanted if isinstance(wanted, str) else '`, `'.join(wanted)}`"
        for name, wanted in one.when.items()
    )
    starts = f", {one.starts} times" if one.starts else ""
    seen = f"`{one.trial}`{starts}" if one.trial else "nothing"
    forbids = f"`{one.op}`" if one.op else one.forbids
    text = f"{one.defect} ({', '.join(one.source)})"
    return f"| {where or 'ROCm'} | {text} | {forbids} | {seen} |"


def linked(text: str) -> str:
    """Text with its claims as links: ``docs/claims.md#NAME``."""
    return re.sub(r"docs/(claims\.md#([\w-]+))", r"[claims: \2](\1)", text)


if __name__ == "__main__":
    print("\n".join(page()))
