"""``rocm-autopatch status`` on one screen: a line for each thing that changes, the rest counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rocm_autopatch.patches import NAMES, config
from rocm_autopatch.record import sentences
from rocm_autopatch.record.report import caches_row
from rocm_autopatch.startup import rows
from rocm_autopatch.support.text import counted, wrapped

# The facts that people ask for first.
_FACTS = ("torch", "rocm", "gfx", "image", "framework", "framework_version", "python")
# What the first column calls the entries of a section. A config key is called by its module.
_KINDS = {"env": "variable", "compile_modes": "mode"}
_MODULES = {target: target.split(".")[-2].lstrip("_") for target in config.TARGETS}


def screen_lines(report: dict[str, Any], why: bool) -> Iterator[str]:
    """A report after the verdict on one screen, at most text.columns() wide.

    *why* adds to each line why its entry is there.
    """
    for error in report["errors"]:
        if error != sentences.error_against(report):  # The verdict has told it.
            yield from wrapped(f"error: {error}", "  ", "    ")
    facts = [
        f"{name} {report['facts'][name]['value']}" for name in _FACTS if name in report["facts"]
    ]
    if facts:
        yield from wrapped(", ".join(facts), "  ", "    ")
    for one in report["evidence"]["files"]:
        yield from wrapped(sentences.evidence_sentence(one), "  ", "    ")
    folded = _of_caches(report)
    entries = [one for one in _report_entries(report) if not any(one[2] is row for row in folded)]
    shown = [one for one in entries if _entry_matters(one[2])]
    if shown:
        yield ""
    for kind, name, row in shown:
        line = _entry_line(kind, name, row, report)
        if row["name"] == "caches" and folded:
            line += f", by {counted(len(folded), 'variable')}"
        # A path that is broken can't be copied.
        yield from wrapped(line, "  ", "      ", break_long_words=False)
        if why:
            yield from wrapped(row.get("why", ""), "      ", "      ")
    ends = [*_end_lines(report, len(shown), len(entries) - len(shown), why)]
    yield from ("", *ends) if ends else ()


def _of_caches(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of variables that only name a directory of the caches, which have one line."""
    place = report["caches"]["place"] if caches_row(report) else ""
    roots = [one + "/" for one in (place, report["caches"]["node"]) if one]
    return [
        row
        for row in report["env"]
        if row["before"] is None and str(row["wanted"]).startswith(tuple(roots))
    ]


def _report_entries(report: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What kind of thing each entry is about, its name on the screen, and its row."""
    for section in ("env", *NAMES):
        for row in report[section]:
            name = row["name"]
            module = next((one for one in _MODULES if name.startswith(one + ".")), "")
            if module:
                yield _MODULES[module], name[len(module) + 1 :], row
            else:
                yield _KINDS.get(section, "patch"), name, row
    for row in caches_row(report):
        yield "caches", row["name"], row  # It has no why: the variables' rows have.


def _entry_matters(row: dict[str, Any]) -> bool:
    """Whether the entry changes something, or would if nothing stood against it."""
    status, before, wanted = row["status"], row["before"], row["wanted"]
    if status in ("applied", "unchanged"):
        return bool(row["after"] != before)
    if status == "skipped":
        return bool(row["reason"] != config.NO_SUCH_KEY and before != wanted)
    if status == "waiting" and "own" in row:
        return bool(row["own"] != wanted)
    return bool(status in ("failed", "waiting") or before != wanted)


def _entry_line(kind: str, name: str, row: dict[str, Any], report: dict[str, Any]) -> str:
    told = [rows.entry_strength(row)]
    if row["status"] not in ("applied", "waiting"):
        told[0] += f" {row['status']}"
    if len(report["policies"]) > 1:
        told.append(row["layer"])
    change = rows.entry_change(row)
    reason = row["reason"] if row["status"] != "applied" else ""
    if row["status"] == "waiting" and not reason.endswith((rows.KEPT, rows.IS_SET)):
        reason = ""
        if "own" in row:
            change = f"{row['own']!r} -> {row['wanted']!r}"
    return f"{kind:9} {name}: {change}  [{', '.join(told)}]" + (f" ({reason})" if reason else "")


def _end_lines(report: dict[str, Any], shown: int, others: int, why: bool) -> Iterator[str]:
    """What is not on the screen, and where it is; and what to know of this place."""
    for note in report["notes"]:
        yield from wrapped(f"note: {note}", "  ", "    ")
    if any("own" in row for row in report["config"]):
        text = "torch was not imported: values before are from a table of its releases"
        yield from wrapped(text, "  ", "    ")
    counts = []
    if others:
        entries = f"{others}{' more' if shown else ''} {'entry' if others == 1 else 'entries'}"
        counts.append(f"{entries} change{'s' if others == 1 else ''} nothing here")
    if report["known_issues"]:
        counts.append(counted(len(report["known_issues"]), "known issue"))
    hints = [f"{', '.join(counts)}: --all"] if counts else []
    hints += ["reasons: --why"] if shown and not why else []
    if hints:
        yield from wrapped("; ".join(hints), "  ", "    ")
