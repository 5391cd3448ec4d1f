"""What one process really did, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rocm_autopatch.patches import NAMES, load
from rocm_autopatch.startup import baseline
from rocm_autopatch.startup.rows import sentence
from rocm_autopatch.support.text import wrapped


def report_lines(report: dict[str, Any]) -> Iterator[str]:
    """The report as text of at most 100 columns."""
    state = "observing and changes nothing" if report["observe"] else "active"
    head = f"rocm_autopatch is {state if report['active'] else 'not active'}: {report['reason']}"
    yield from wrapped(head, "", "  ")
    if report["policies"]:
        yield from wrapped("layers: " + " < ".join(report["policies"]), "  ", "    ")
    if len(report["sites"]) > 1:
        yield from wrapped("sites: " + " < ".join(report["sites"]), "  ", "    ")
    for name, fact in report["facts"].items():
        yield from wrapped(
            f"{name}: {fact['value']} ({fact['kind']}: {fact['source']})", "  ", "    "
        )
    for one in report["evidence"]["files"]:
        yield from wrapped(_evidence_sentence(one), "  ", "    ")
    if report["evidence"]["files"] and report["policies"]:
        applied = report["evidence"]["applied"]
        yield f"  evidence {'changes' if applied else 'does not change'} what is applied here"
    said = report["caches"]
    if said["use"] != "off":
        text = f"not kept: {said['reason']}" if said["reason"] else said["place"]
        yield from wrapped(f"caches: {text}  [{said['layer']}]", "  ", "    ")
        if said["node"] and not said["reason"]:
            text = f"its root is on a network file system, so programs write to {said['node']}"
            yield from wrapped(text, "    ", "      ")
    if report["keep"]:
        yield from wrapped(
            "kept by ROCM_AUTOPATCH_KEEP: " + ", ".join(report["keep"]), "  ", "    "
        )
    if report["baseline"]:
        yield f"  baseline: {report['baseline']}"
    elif any(row["origin"] == "unknown" for row in report["env"]):
        text = "baseline: none, so every value counts as the image's own"
        if report["given"]:
            text += f", but for those that {baseline.VARIABLE} names"
        yield from wrapped(text, "  ", "    ")
    for title, section in (
        ("Variables", "env"),
        *((load(name).TITLE, name) for name in NAMES),
    ):
        if report[section]:
            yield ""
            yield title
        for one in report[section]:
            yield from wrapped(sentence(one), "  ", "      ")
            yield from wrapped(one["why"], "      ", "      ")
    if report["patches"]:
        yield ""
        yield "Patches"
    for patch in report["patches"]:
        reason = f": {patch['reason']}" if patch["reason"] else ""
        text = f"{patch['name']} of {patch['target']}: {patch['status']}{reason}"
        yield from wrapped(text, "  ", "    ")
    if report["graphs"]:
        yield ""
        yield "Graphs"
    for one in report["graphs"]:
        yield from wrapped(graphs_sentence(one), "  ", "    ")
    if report["known_issues"]:
        yield ""
        yield "Known issues"
    for issue in report["known_issues"]:
        yield from wrapped(issue_sentence(issue), "  ", "    ")
    for title in ("notes", "errors"):
        if report[title]:
            yield ""
            yield title.capitalize()
        for text in report[title]:
            yield from wrapped(text, "  ", "    ")


def _evidence_sentence(one: dict[str, Any]) -> str:
    about = f"{one['device'] or 'unknown GPU'}, {one['made']}, {one['battery']} battery"
    return f"evidence {one['file']}: {about}, {one['status']}"


def issue_sentence(issue: dict[str, str]) -> str:
    """A known issue, where it is from, and the policy against it."""
    text = issue["text"].rstrip(".")
    text += f" ({issue['source']})" if issue["source"] else ""
    return text + (f"; mitigation: policy {issue['mitigation']}" if issue["mitigation"] else "")


def graphs_sentence(row: dict[str, Any]) -> str:
    """How many calls of a callable were replays, and why the others weren't."""
    text = f"{row['name']}: {row['replays']} of {row['calls']} calls replayed"
    text += f" {len(row['graphs'])} graphs" if len(row["graphs"]) != 1 else " 1 graph"
    plain = "; ".join(f"{count} plain: {reason}" for reason, count in row["plain"].items())
    return f"{text} [{row['origin']}]" + (f"; {plain}" if plain else "")
