"""What a process compiles under, as names and values; equal digests mean equal kernels.

It is what the policy wants for this torch, and the variables that compilers and libraries read. It
is not what a config key reads now: that depends on what is imported yet. Names of files and of
devices differ between ranks that compile alike, so they are left out, and so is what only says how
much is logged or how many processes compile. Secrets are masked here, because what is told stands
in the job's store, and another machine writes it. So they are not compared.
"""

import hashlib
import json
import os
import platform
import re

from rocm_autopatch import _RECORD, masking, patches, startup
from rocm_autopatch.startup import patching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Those of PyTorch, Triton, and AMD's libraries that compile or search.
_READ = re.compile(
    "(TORCHINDUCTOR|TORCHDYNAMO|TORCH_COMPILER?|TORCH_ROCM|PYTORCH|INDUCTOR|TRITON|AITER|FLYDSL|AMDGCN"
    "|MIOPEN|HIPBLASLT|ROCBLAS|DISABLE_LLVM)_.*"
)
_ONLY_HERE = re.compile(
    ".*_(DIRS?|PATHS?|FILE|FILENAME|ROOT|HOME|VISIBLE_DEVICES|LOGS?|LOG_LEVEL|LOGGING|TRACE|DEBUG"
    "|DUMP|VERBOSE|THREADS|WORKERS|PORT|JOB_ID)"
)
_LONGEST = 200
# Of an entry of a plan, what says how it is to be, and nothing of the policy's text.
_UNTOLD = ("name", "layer", "why", "yields_to", "switch")
_VARIABLES = ("yields_to", "switch")


def content() -> "dict[str, str]":
    """Names and values, those of the policy first. Two processes with equal ones compile alike."""
    facts = _RECORD["facts"]
    found = {name: facts[name][0] for name in ("torch", "hip") if name in facts}
    found["python"] = platform.python_version()
    variables: set[str] = set()
    plan = _RECORD["plan"]
    if plan:
        found["policy"] = " < ".join(plan["layers"])
        for name, target, entries in patching.patches(plan):
            patch = patches.load(name)
            for entry in startup.for_this_torch(entries) if patch.CHANGES_CODE else ():
                fields = dict(zip(patch.FIELDS, entry))
                variables.update(filter(None, (fields.get(one, "") for one in _VARIABLES)))
                told = [str(fields[one]) for one in fields if one not in _UNTOLD]
                found[patches.full_name(name, target, fields["name"])] = " ".join(told)
    if _RECORD["keep"]:
        found["ROCM_AUTOPATCH_KEEP"] = ",".join(_RECORD["keep"])
    if _RECORD["observe"]:
        found["ROCM_AUTOPATCH"] = "observe"
    for name in sorted(os.environ):
        if (name in variables or _READ.fullmatch(name)) and not _ONLY_HERE.fullmatch(name):
            # Another thread may have deleted it.
            value = os.environ.get(name)
            if value is not None:
                found[name] = masking.value(name, value)[:_LONGEST]
    return {utf8(name): utf8(masking.value(name, its)) for name, its in found.items()}


def utf8(text: str) -> str:
    """*text* with escapes for what is no UTF-8, as a store and a line can take it."""
    return text.encode("utf-8", "backslashreplace").decode()


def digest(found: "dict[str, Any]") -> str:
    """Sixteen hex digits that tell one content from another."""
    text = json.dumps(found, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
