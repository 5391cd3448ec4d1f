"""One machine of many: what ``status`` says of it, in one line or for node_exporter."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

# Facts that tell machines of a fleet from each other.
_FACTS = ("image", "torch", "rocm", "gfx")
# Of a machine where no interpreter gives a report: the error is that.
NO_REPORT: dict[str, Any] = {
    "active": False,
    "facts": {},
    "policies": (),
    "digest": "",
    "errors": ("there is no report",),
}


def summarize_report(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a report (``report.render_report``) says of this machine, in a few plain values.

    ``digest`` is the same where processes compile under the same settings; ``errors`` is how many
    there are.
    """
    facts = report["facts"]
    return {
        "node": socket.gethostname(),
        "active": report["active"],
        **{name: facts[name]["value"] if name in facts else "" for name in _FACTS},
        "policy": " < ".join(report["policies"]),
        "digest": report["digest"],
        "errors": len(report["errors"]),
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
