"""The code that torch generated in a run, as a digest: what runs the same code is as fast.

It is read from the trace that a compile report is made of. Each first run of a set writes one. Some
switches act only through this code (``code`` in switches.py). If a set of them gives the base's
code, it needs no measured run.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from rocm_autopatch.compile_report import TRACE, TRACES, WANTED
from rocm_autopatch.compile_report.trace import PATTERN, TraceFile

_CODE = "inductor_output_code"
# They name nodes and files. A line of C++ that begins so has no space: #pragma, #include.
_COMMENT = re.compile(r"^\s*# .*\n?", re.MULTILINE)


def code_variables(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """What makes a run with *environ* write to *directory*; {} if it writes elsewhere already."""
    if {TRACE, WANTED} & environ.keys():
        return {}
    # The first is torch's own, for an interpreter where our hook is off.
    return {TRACE: str(directory / TRACES), WANTED: str(directory)}


def code_digest(directory: Path, caches: Path) -> str:
    """A digest of all code in *directory*, "" if there is none, or not all of it can be read.

    *caches* is the directory of the run's caches: the code has paths in it. The order of graphs
    does not count, because a run may compile in several processes.
    """
    found = []
    try:
        for path in (directory / TRACES).glob(PATTERN):
            file = TraceFile(path)
            for event in file.events():
                if event.name == _CODE:
                    text = _COMMENT.sub("", event.payload).replace(str(caches), "")
                    found.append(hashlib.sha256(text.encode()).hexdigest())
            if file.corrupt or file.cut:
                return ""
    except OSError:
        return ""
    return hashlib.sha256(" ".join(sorted(found)).encode()).hexdigest() if found else ""
