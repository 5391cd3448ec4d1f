"""What one process really did, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rocm_autopatch.patches import NAMES, load
from rocm_autopatch.record.report import NO_HOOK, NOT_APPLIED
from rocm_autopatch.record.shapes import EvidenceRow
from rocm_autopatch.startup import baseline
from rocm_autopatch.startup.rows import sentence
from rocm_autopatch.support.text import counted, wrapped

if TYPE_CHECKING:
    from rocm_autopatch.graphs.record import CallableRow


def is_in_force(report: Mapping[str, Any]) -> bool:
    """Whether a policy changes what runs here, and nothing failed."""
    return bool(report["active"] and not report["observe"] and not report["errors"])


def error_against(report: Mapping[str, Any]) -> str | None:
    """The error because of which no policy is applied, None if there is none."""
    told = (one for one in report["errors"] if one.startswith((NOT_APPLIED, NO_HOOK)))
    return next(told, None)


def verdict_line(report: Mapping[str, Any], option: str = "", why: str = "") -> str:
    """Which policy applies, and why, or what stands against it, in one line.

    *option* is the option that named the policy as if it applied, "" if none did. *why* stands for
    what the report itself says why a policy applies.
    """
    would = "would apply" if option else "applies"
    if not report["active"]:
        why = error_against(report) or report["reason"]
        return f"no policy {would}: {why.removeprefix(NOT_APPLIED)}"
    failed = counted(len(report["errors"]), "error")
    doubt = f", with {failed}" if report["errors"] else ""
    if report["observe"]:
        would, doubt = "would apply", f", but ROCM_AUTOPATCH=observe changes nothing{doubt}"
    # The verdict itself says that it applies.
    why = why or option or report["reason"].partition(", so the default policy for ROCm")[0]
    return f"{' < '.join(report['policies'])} {would}{doubt}: {why}"


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """All of a report after the verdict, as text of at most text.columns()."""
    if len(report["sites"]) > 1:
        yield from wrapped("sites: " + " < ".join(report["sites"]), "  ", "    ")
    for name, fact in report["facts"].items():
        yield from wrapped(
            f"{name}: {fact['value']} ({fact['kind']}: {fact['source']})", "  ", "    "
        )
    for one in report["evidence"]["files"]:
        yield from wrapped(evidence_sentence(one), "  ", "    ")
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


def evidence_sentence(one: EvidenceRow) -> str:
    """An evidence file, and whether it counts here."""
    about = f"{one['device'] or 'unknown GPU'}, {one['made']}, {one['battery']} battery"
    return f"evidence {one['file']}: {about}, {one['status']}"


def issue_sentence(issue: dict[str, str]) -> str:
    """A known issue, where it is from, and the policy against it."""
    text = issue["text"].rstrip(".")
    text += f" ({issue['source']})" if issue["source"] else ""
    return text + (f"; mitigation: policy {issue['mitigation']}" if issue["mitigation"] else "")


def graphs_sentence(row: CallableRow) -> str:
    """How many calls of a callable were replays, and why the others weren't."""
    text = f"{row['name']}: {row['replays']} of {row['calls']} calls replayed"
    text += f" {len(row['graphs'])} graphs" if len(row["graphs"]) != 1 else " 1 graph"
    plain = "; ".join(f"{count} plain: {reason}" for reason, count in row["plain"].items())
    text = f"{text} [{row['origin']}]" + (f"; {plain}" if plain else "")
    cuts = "; ".join(row.get("cuts", ()))
    return text + (f"; cut: {cuts}" if cuts else "")
