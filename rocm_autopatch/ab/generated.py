"""The code that torch generated in a run, as a digest: what runs the same code is as fast.

It is read from PyTorch's structured trace (TORCH_TRACE), which each first run of a set writes. Some
switches act only through this code (``code`` in switches.yaml). If a set of them gives the base's
code, it needs no measured run.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from rocm_autopatch.compile_report.trace import PATTERN, File

VARIABLE = "TORCH_TRACE"
_CODE = "inductor_output_code"
# They name nodes and files. A line of C++ that begins so has no space: #pragma, #include.
_COMMENT = re.compile(r"^\s*# .*\n?", re.MULTILINE)


def digest(traces: Path, caches: Path) -> str:
    """A digest of all code in *traces*, "" if there is none, or not all of it can be read.

    *caches* is the directory of the run's caches: the code has paths in it. The order of graphs
    does not count, because a run may compile in several processes.
    """
    found = []
    try:
        for path in traces.glob(PATTERN):
            file = File(path)
            for event in file.events():
                if event.name == _CODE:
                    text = _COMMENT.sub("", event.payload).replace(str(caches), "")
                    found.append(hashlib.sha256(text.encode()).hexdigest())
            if file.corrupt or file.cut:
                return ""
    except OSError:
        return ""
    return hashlib.sha256(" ".join(sorted(found)).encode()).hexdigest() if found else ""
