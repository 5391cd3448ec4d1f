"""One machine of many: what ``status`` says of it, in one line or for node_exporter, and what
differs between two."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocm_autopatch.patches import NAMES
from rocm_autopatch.patches.ranks import content

# Facts that tell machines of a fleet from each other.
_FACTS = ("image", "torch", "rocm", "gfx")
# Of a machine where no interpreter gives a report: the error is that.
NO_REPORT: dict[str, object] = {
    "active": False,
    "facts": {},
    "policies": (),
    "digest": "",
    "errors": ("there is no report",),
}


def summarize_report(report: Mapping[str, Any], torch: bool = False) -> dict[str, str | int]:
    """What a report (``report.render_report``) says of this machine, in a few plain values.

    ``digest`` is the same where processes compile under the same settings; ``errors`` is how many
    there are. *torch* is whether torch was imported for the report, so that errors of it count.
    """
    facts = report["facts"]
    return {
        "node": socket.gethostname(),
        "active": report["active"],
        **{name: facts[name]["value"] if name in facts else "" for name in _FACTS},
        "policy": " < ".join(report["policies"]),
        "digest": report["digest"],
        "errors": len(report["errors"]),
        "torch_imported": torch,
    }


def node_exporter_lines(report: Mapping[str, Any], file: str) -> Iterator[str]:
    """The same as lines for the textfile collector of Prometheus's node_exporter.

    The form is that of https://prometheus.io/docs/instrumenting/exposition_formats (0.0.4).
    Prometheus adds the node's name. *file* is the name of the file, and a label: a node may have a
    file for each of several images, and of equal lines in two files the collector reads one.
    """
    said = {**summarize_report(report), "file": file}
    info = ("policy", *_FACTS, "digest")
    for name, about, labels, number in (
        ("info", "What a program that imports torch runs under here.", info, 1),
        ("active", "Whether a policy applies.", (), int(said["active"])),
        ("errors", "How many things were skipped because they failed.", (), said["errors"]),
        ("checked_timestamp_seconds", "When this was found out.", (), int(time.time())),
    ):
        labelled = ",".join(f'{one}="{_escaped(str(said[one]))}"' for one in ("file", *labels))
        yield f"# HELP rocm_autopatch_{name} {about}"
        yield f"# TYPE rocm_autopatch_{name} gauge"
        yield f"rocm_autopatch_{name}{{{labelled}}} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# Two reports


@dataclass(frozen=True)
class ReportDifference:
    """What differs between two reports, A and B.

    *section* and *name* say what it is, *a* and *b* what each has: plain data, None where it has
    nothing. *part* is the part of the digest that it changes, ``variables.MIOPEN_FIND_MODE``, and
    "" if it is no part of it.
    """

    section: str
    name: str
    a: object
    b: object
    part: str


@dataclass(frozen=True)
class ReportComparison:
    """Whether programs compile alike in two places, what differs, and what is to be known of it."""

    same: bool
    differences: tuple[ReportDifference, ...]
    notes: tuple[str, ...]


class NotAReport(ValueError):
    """This is no report of ``rocm-autopatch status --json``. The text says why."""


# What is compared, as it is in a report, and where it is told.
# The section with the entries of a policy for config keys.
_OF_ENTRIES = "config"
_SECTIONS = ("policy", "facts", "image", "variables", _OF_ENTRIES, "caches", "patches", "errors")
_POLICY = ("active", "observe", "policy", "sites", "baked", "given", "keep")
_CACHES = ("use", "layer", "root", "place", "node", "reason", "require")
# Of a row, what says what became of it.
_BECAME = ("before", "after", "wanted", "status")


def compare_reports(a: Mapping[str, Any], b: Mapping[str, Any]) -> ReportComparison:
    """What differs between two reports (``record.render``), first what makes their digests differ.

    Both have to be reports (:func:`check_report`).
    """
    both = (a, b)
    alike = bool(a["policies"]) == bool(b["policies"])
    # Where only one has a policy, all of its entries differ, and say nothing more.
    parts = [_parts(report, alike) for report in both]
    found: dict[tuple[str, str], ReportDifference] = {}
    for key in _in_both(*parts):
        section, name = key
        one, other = (its.get(key) for its in parts)
        if one != other:
            found[key] = ReportDifference(section, name, one, other, f"{section}.{name}")
    told = [_told(report, alike) for report in both]
    for key in _in_both(*told):
        one, other = (its.get(key) for its in told)
        if key not in found and _are_unlike(one, other):
            found[key] = ReportDifference(key[0], key[1], one, other, "")
    ordered = sorted(found.values(), key=lambda one: (not one.part, _SECTIONS.index(one.section)))
    digests = [report["digest"] for report in both]
    same = digests[0] == digests[1] and (bool(digests[0]) or not any(one.part for one in ordered))
    return ReportComparison(same, tuple(ordered), tuple(_notes(both, same, ordered)))


def check_report(report: object) -> None:
    """Raise NotAReport if *report* is none, or has not the shape of one."""
    if not isinstance(report, dict):
        raise NotAReport("it is no JSON object")
    if "digest" in report and "env" not in report:
        raise NotAReport("it is of status --line, and what the digest is made of is not in a line")
    shapes = {"digest": str, "facts": dict, "env": list, "caches": dict, "policies": list}
    for name, shape in {**shapes, "errors": list, "notes": list, "patches": list}.items():
        if not isinstance(report.get(name), shape):
            raise NotAReport(f"it has no {name}")
    parts = report.get("digest_parts", {})
    if not isinstance(parts, dict) or not all(isinstance(one, dict) for one in parts.values()):
        raise NotAReport("its digest_parts are no objects")
    sections = [report.get(section, []) for section in ("env", *NAMES, "patches")]
    if not all(isinstance(section, list) for section in sections):
        raise NotAReport("its sections are no lists")
    rows = [row for section in sections for row in section]
    if not all(isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows):
        raise NotAReport("its rows have no names")
    if not all(isinstance(fact, dict) for fact in report["facts"].values()):
        raise NotAReport("its facts are no objects")


def _parts(report: Mapping[str, Any], entries: bool) -> dict[tuple[str, str], object]:
    """By section and name, what the digest is made of, with the *entries* of a policy or
    without them."""
    shown = [name for name in _SECTIONS if entries or name != _OF_ENTRIES]
    known = {name: its for name, its in report.get("digest_parts", {}).items() if name in shown}
    return {(part, name): value for part, its in known.items() for name, value in its.items()}


def _told(report: Mapping[str, Any], entries: bool) -> dict[tuple[str, str], object]:
    """By section and name, what else a report says of what a program meets there. Where *entries*
    is false, those of a policy are left out."""
    found: dict[tuple[str, str], object] = {}
    for name in _POLICY:
        found["policy", _PART_OF.get(name, name)] = report.get(name)
    if not report["policies"]:
        found["policy", "reason"] = report.get("reason")
    found["policy", "evidence"] = (report.get("evidence") or {}).get("applied") or None
    for name, fact in report["facts"].items():
        found["image" if name == "image" else "facts", name] = fact.get("value")
    found["image", "baseline"] = report.get("baseline") or None
    for section in ("env", *NAMES) if entries else ():
        for row in report.get(section, ()):
            where = "variables" if section == "env" else "config"
            found[where, row["name"]] = {name: row.get(name) for name in _BECAME}
    for name in _CACHES:
        found["caches", name] = report["caches"].get(name)
    of = report["caches"].get("of")
    for name, value in of.items() if isinstance(of, dict) else ():
        found["caches", f"of.{name}"] = value
    for row in report["patches"] if entries else ():
        found["patches", f"{row['name']} of {row.get('target')}"] = {
            name: row.get(name) for name in ("status", "reason")
        }
    for text in report["errors"]:
        found["errors", str(text)] = "yes"
    return found


# The names of these in the parts of the digest.
_PART_OF = {"keep": "ROCM_AUTOPATCH_KEEP", "observe": "ROCM_AUTOPATCH"}


def _in_both(
    a: Mapping[tuple[str, str], object], b: Mapping[tuple[str, str], object]
) -> Iterator[tuple[str, str]]:
    """The keys of two mappings, each once."""
    yield from dict.fromkeys((*a, *b))


def _are_unlike(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict) and "waiting" in (a["status"], b["status"]):
        # One was made without torch, so it says what will be, and the other what has become of it.
        return bool(a.get("wanted") != b.get("wanted"))
    return bool(a != b)


def _notes(
    both: Sequence[Mapping[str, Any]], same: bool, found: Sequence[ReportDifference]
) -> Iterator[str]:
    for label, report in zip("AB", both):
        parts = report.get("digest_parts")
        if not report["digest"]:
            yield (
                f"{label} has no digest, because no policy applies there; so entries of policies "
                "are not compared"
            )
        elif not parts:
            yield (
                f"{label} is a report of an earlier release: it does not say what its digest is "
                "made of"
            )
        elif content.digest(content.join_parts(parts)) != report["digest"]:
            yield (
                f"{label} does not show all that its digest is made of: it is of another release, "
                "or was changed after it was made"
            )
    if not same and not any(one.part for one in found):
        yield "no part of the digest is seen to differ"
    waits = [any(row.get("status") == "waiting" for row in one["patches"]) for one in both]
    if both[0]["patches"] and both[1]["patches"] and waits[0] != waits[1]:
        yield (
            f"{'AB'[waits.index(True)]} was made without torch (--no-torch), so values of torch "
            "are compared as the policies want them"
        )
