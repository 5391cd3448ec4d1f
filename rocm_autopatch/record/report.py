"""What one process really did, as plain data."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rocm_autopatch
from rocm_autopatch import _ASSUME, _read, failure, policy_dirs, startup
from rocm_autopatch.evidence import defects, match
from rocm_autopatch.evidence.defects import KnownDefect
from rocm_autopatch.evidence.file import EvidenceFile
from rocm_autopatch.image import facts
from rocm_autopatch.patches import NAMES, config, full_name, kept, load, ranks, row
from rocm_autopatch.patches.ranks import content
from rocm_autopatch.plan import PatchEntry, PatchRow
from rocm_autopatch.policy.problem import PolicyError
from rocm_autopatch.record.shapes import CachesRecord, EntryRow, EvidenceRow, StartRecord
from rocm_autopatch.startup import (
    baseline,
    cache_place,
    caches,
    cpus,
    kfd,
    misnamed,
    proofs,
    watchdog_variable,
)
from rocm_autopatch.startup.patching import patches
from rocm_autopatch.startup.rows import IS_SET, KEPT, of_variable

if TYPE_CHECKING:
    from rocm_autopatch.graphs.record import CallableRow

# How an error begins because of which no policy is applied.
NOT_APPLIED = "no policy is applied: "
NO_HOOK = "the start-up hook does not run: "

_NO_CACHES: CachesRecord = {
    "use": "off",
    "layer": "",
    "root": "",
    "place": "",
    "node": "",
    "of": {},
    "reason": "",
    "require": False,
    "hits": 0,
    "misses": 0,
}


def render_report(record: StartRecord, switch: str) -> dict[str, object]:
    """The report of a raw record, as docs/status.md describes it.

    *switch* is what ROCM_AUTOPATCH said at the start, "" if there was no start.
    """
    plan = record["plan"]
    # If the start recorded no fact at all, it did not get to the image either.
    found, evidence = facts.gather_facts({}, ()), match.FoundEvidence()
    if record["facts"]:
        found, evidence = match.gather_with_evidence(record["facts"])
    if plan:
        proofs.settle(plan, startup.say)
    used = [(one, "") for one in evidence.used]
    known_issues, unread = _known_issues(found.values())
    image, _ = baseline.read()
    assumed = found.facts.get("gfx")
    gfx = kfd.gpu_kinds(assumed.value if assumed and assumed.source == _ASSUME else "")
    report: dict[str, Any] = {
        "node": socket.gethostname(),
        "active": record["active"],
        "observe": record["observe"],
        "reason": record["reason"]
        or (f"ROCM_AUTOPATCH={switch}" if switch else "the start-up hook did not run"),
        "facts": {name: asdict(fact) for name, fact in found.facts.items()},
        "contradictions": [
            {"name": one.name, "used": asdict(one.used), "other": asdict(one.other)}
            for one in found.contradictions
        ],
        "policy": "",
        "baked": record["baked"],
        "sites": policy_dirs.directories(),
        "baseline": baseline.PATH if image is not None else "",
        "policies": [],
        "digest": "",
        "digest_parts": {},
        "evidence": {
            "applied": record["evidence"],
            "files": [_evidence(*pair) for pair in (*used, *evidence.stale)],
        },
        "keep": list(record["keep"]),
        "given": baseline.named(),
        "caches": {**_NO_CACHES, **(record["caches"] or {})},
        "env": [of_variable(rule, before, status, image) for rule, before, status in record["env"]],
        **{section: [] for section in NAMES},
        "patches": [],
        "graphs": _graphs(),
        "known_issues": known_issues,
        "notes": [
            *record["notes"],
            *map(str, found.contradictions),
            *evidence.notes,
            *unread,
            *kfd.overridden_gpus(os.environ, gfx),
            *_on_network(record),
        ],
        "errors": list(dict.fromkeys((*record["errors"], *evidence.wrong))),
    }
    try:
        if plan:
            report.update(policy=plan["policy"], policies=list(plan["layers"]))
            listed = patches(plan)
            report["errors"] += [one for one in record["errors"] if one not in report["errors"]]
            _add_patches(report, record, listed)
        # Also without a policy: a machine is compared with one that has one.
        report["digest_parts"] = content.digest_parts()
        if plan:
            report["digest"] = content.digest(content.join_parts(report["digest_parts"]))
    except Exception as error:
        # A start does not look at all parts of a plan, and at some only when torch is imported.
        report["errors"].append(
            f"the plan is damaged: {failure.describe(error)}; install rocm_autopatch again"
        )
    report["notes"] += _unknown_kept(report)
    if report["policies"]:
        report["notes"] += _ranks_not_compared(report["ranks"])
        report["notes"] += _nothing_watched(report["watchdog"])
    report["notes"] += _crowded()
    report["notes"] += _uncompiled()
    if not switch:
        report["errors"].append(NO_HOOK + _why_no_start())
    return report


def _add_patches(report: dict[str, Any], record: StartRecord, listed: tuple[PatchRow, ...]) -> None:
    """What each patch of the plan has done, or waits for."""
    for name, target, entries in listed:
        done = record["patches"].get((name, target))
        status = done["status"] if done else "waiting"
        reason = done["reason"] if done else f"{target} has not been imported"
        report["patches"].append(
            {"name": name, "target": target, "status": status, "reason": reason}
        )
        rows = done["entries"] if done else []
        look = getattr(load(name), "look_at_values", None)
        if look:
            rows, no_longer = look(target, rows)
            report["errors"] += no_longer
        report[name] += [
            {**one, "name": full_name(name, target, one["name"])}
            for one in rows
            or _untouched(record, name, target, startup.for_this_torch(entries), status, reason)
        ]


def _why_no_start() -> str:
    """Why this process has no hook, what a process above it has done, and what helps."""
    said = os.environ.get(startup.SAID, "").split(",")
    changed = [word[1:] for word in said if word.startswith("=")]
    half = (
        f". That is half an effect: a process above this one had the hook and changed "
        f"{', '.join(changed)}, and torch is not changed"
        if changed
        else ""
    )
    # Python imports one sitecustomize, and OpenTelemetry's runs no other:
    # open-telemetry/opentelemetry-python-contrib#2104.
    first = getattr(sys.modules.get("sitecustomize"), "__file__", None)
    for directory in sys.path:
        stub = os.path.join(directory, "sitecustomize.py")
        if first and stub != first and b"rocm_autopatch.start()" in _read(stub):
            return (
                f"{first} comes first on sys.path and does not run {stub}; put {directory} "
                f"first on PYTHONPATH, or install with pip, as the overlay does{half}"
            )
    place = Path(rocm_autopatch.__file__).parent.parent
    return (
        f"{place} is on sys.path, but Python reads no .pth files there; "
        f"install with pip, or put sitecustomize_stub on PYTHONPATH{half}"
    )


def _evidence(found: EvidenceFile, reason: str) -> EvidenceRow:
    return {
        "file": found.file,
        "made": found.made,
        "by": found.by,
        "battery": found.battery,
        "device": found.place["device"],
        "status": "stale" if reason else "used",
        "reason": f"made with {reason}" if reason else "",
    }


def _graphs() -> list[CallableRow]:
    # A report must not import it, because it imports torch.
    graphs = sys.modules.get("rocm_autopatch.graphs.record")
    rows: list[CallableRow] = graphs.render_rows() if graphs else []
    return rows


def _crowded() -> list[str]:
    """A note where torch starts more compile workers than this process has CPUs for."""
    module = sys.modules.get("torch._inductor.config")
    workers = getattr(module, "compile_threads", None)
    if not isinstance(workers, int):
        return []
    said = cpus.describe_crowding(workers)
    return (
        [f"torch compiles with {said} (rocm-autopatch help watchdog#compile-workers-and-cpus)"]
        if said
        else []
    )


def _uncompiled() -> list[str]:
    """A note where each start has to compile our sources, because it can't write bytecode."""
    cached = cache_from_source(startup.__file__)
    if os.path.exists(cached):
        return []
    return [
        f"there is no bytecode at {cached}, so every start compiles the package again, which "
        f'nearly doubles its cost. To end that, run "python -m compileall '
        f'{os.path.dirname(startup.__file__)}" as a user who may write there'
    ]


def _on_network(record: StartRecord) -> list[str]:
    """Advice where the user's variables name caches on a network file system."""
    ours = {name for (name, *_), _, status in record["env"] if status == "applied"}
    text = cache_place.on_network(name for name, *_ in caches.PARTS if name not in ours)
    return [text] if text else []


def caches_row(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What became of ``caches``, as a row like those of the other entries; [] without an entry."""
    said = report["caches"]
    if not said["layer"]:
        return []
    status = "observed" if report["observe"] else "applied"
    if said["reason"]:
        status = "kept" if said["reason"] == "ROCM_AUTOPATCH_KEEP" else "skipped"
    used = said["place"] if status == "applied" and said["place"] else None
    found = {"name": "caches", "before": None, "after": used, "wanted": said["use"]}
    return [{**found, "status": status, "layer": said["layer"], "reason": said["reason"]}]


def _unknown_kept(report: Mapping[str, Any]) -> list[str]:
    names = [row["name"] for part in ("env", *NAMES, "patches") for row in report[part]]
    names += [row["name"] for row in caches_row(report)]
    names += [old for name in names for old in config.names(name.rpartition(".")[2])]
    return [
        f"ROCM_AUTOPATCH_KEEP names {word}, but no policy here has an entry for it"
        + misnamed.suggest_name(word, [name.rpartition(".")[2] for name in names])
        for word in (report["keep"] if report["policies"] else ())
        if not any(kept(name, (word,)) for name in names)
    ]


def _ranks_not_compared(rows: Sequence[EntryRow]) -> list[str]:
    if ranks.VARIABLE not in os.environ or rows:
        return []
    return [
        f"{ranks.VARIABLE} has no effect: no policy here has ranks (rocm-autopatch help patches)"
    ]


def _nothing_watched(rows: Sequence[EntryRow]) -> list[str]:
    name = watchdog_variable.VARIABLE
    if not os.environ.get(name, "").strip() or rows:
        return []
    return [f"{name} has no effect: no policy here has a watchdog (rocm-autopatch help watchdog)"]


def _known_issues(values: dict[str, str]) -> tuple[list[dict[str, str]], list[str]]:
    """What images files know of this place, and a note where they can't be read."""
    if values.get("accelerator") != "rocm":
        return [], []
    try:
        from rocm_autopatch.policy import select

        rows = select.known(values)
        ledger = [*defects.find_defects(values)]
    except Exception as error:
        # PyYAML or packaging is not there, or is broken, or an images file is.
        plain = isinstance(error, (ImportError, PolicyError))
        why = str(error) if plain else f"{type(error).__name__}: {error}"
        return [], [f"known issues are not listed: {why}"]
    issues = [{**asdict(issue), "record": row.name} for row in rows for issue in row.known_issues]
    return [*map(ledger_issue, ledger), *issues], []


def ledger_issue(defect: KnownDefect) -> dict[str, str]:
    """A record of the ledger as a known issue."""
    return {
        "text": f"Graphs: {defect.defect}",
        "source": ", ".join(defect.source),
        "mitigation": "",
        "record": defect.name,
    }


def _untouched(
    record: StartRecord,
    name: str,
    target: str,
    entries: Sequence[PatchEntry],
    status: str,
    reason: str,
) -> Iterator[EntryRow]:
    """Rows of a patch that was not applied, with what it will not change as far as is known."""
    for entry in entries:
        made = row(load(name).FIELDS, entry, status=status, reason=reason)
        # Who observes wants to know what would be, if the variables were changed, too.
        if status == "waiting" and not record["observe"]:
            if kept(full_name(name, target, made["name"]), record["keep"]):
                made["reason"] = KEPT
            elif (made.get("yields_to") or "") in os.environ:
                made["reason"] = made["yields_to"] + IS_SET
            foresee = getattr(load(name), "foresee_row", None)
            made.update(foresee(made) if foresee else {})
        yield made
