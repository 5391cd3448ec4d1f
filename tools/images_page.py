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

from rocm_autopatch import record
from rocm_autopatch.policy import load, when
from rocm_autopatch.policy.model import Policy

HEAD = """# What is known of images

Made from `policies/images.yaml` by `make docs`; a test fails when it is stale. A record counts
where the image's [facts](facts.md) meet its conditions, or its reference is the record's. Several
may: later ones are more specific. `rocm-autopatch status` prints the known issues of the place it
runs in. A mitigation is a built-in policy, switched on by `ROCM_AUTOPATCH_POLICY=NAME`, or by
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
    if row.known_issues:
        yield from ("", "Known issues:", "")
    for issue in row.known_issues:
        yield f"- {linked(record.issue_sentence(asdict(issue)))}"


def linked(text: str) -> str:
    """Text with its claims as links: ``docs/claims.md#NAME``."""
    return re.sub(r"docs/(claims\.md#([\w-]+))", r"[claims: \2](\1)", text)


if __name__ == "__main__":
    print("\n".join(page()))
