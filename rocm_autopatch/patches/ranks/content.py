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

from rocm_autopatch import _RECORD, patches, startup
from rocm_autopatch.plan import named_fields
from rocm_autopatch.startup import patching
from rocm_autopatch.support import masking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

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
# The facts of a start that tell what compiles. ``python`` is added.
FACTS = ("torch", "hip")


def digest_parts() -> "dict[str, dict[str, str]]":
    """What a process compiles under, by what it is: ``facts``, ``policy`` (its layers, and how the
    user limits it), ``config`` (what the policy wants of torch) and ``variables``.

    Names are told from each other across the four, so :func:`content` can put them together.
    """
    facts = {name: _RECORD["facts"][name][0] for name in FACTS if name in _RECORD["facts"]}
    facts["python"] = platform.python_version()
    policy: dict[str, str] = {}
    config: dict[str, str] = {}
    named: set[str] = set()
    plan = _RECORD["plan"]
    if plan:
        policy["policy"] = " < ".join(plan["layers"])
        for name, target, entries in patching.patches(plan):
            patch = patches.load(name)
            for entry in startup.for_this_torch(entries) if patch.CHANGES_CODE else ():
                fields = named_fields(patch.FIELDS, entry)
                named.update(filter(None, (fields.get(one, "") for one in _VARIABLES)))
                told = [str(fields[one]) for one in fields if one not in _UNTOLD]
                config[patches.full_name(name, target, fields["name"])] = " ".join(told)
    if _RECORD["keep"]:
        policy["ROCM_AUTOPATCH_KEEP"] = ",".join(_RECORD["keep"])
    if _RECORD["observe"]:
        policy["ROCM_AUTOPATCH"] = "observe"
    # Not only what looks like a secret: the report masks the values of this place's secrets in all
    # texts, also of those that the start has removed. What it shows must be what the digest is
    # made of.
    removed = {name: before for (name, *_), before, _ in _RECORD["env"] if before is not None}
    secrets = masking.Secrets({**os.environ, **removed})
    variables = {}
    for name in sorted(os.environ):
        if is_compared(name, named):
            # Another thread may have deleted it.
            value = os.environ.get(name)
            if value is not None:
                variables[name] = str(secrets.value(name, value))[:_LONGEST]
    found = {"facts": facts, "policy": policy, "config": config, "variables": variables}
    return {
        part: {utf8(name): utf8(str(secrets.value(name, its))) for name, its in values.items()}
        for part, values in found.items()
    }


def digest_content() -> "dict[str, str]":
    """Names and values, those of the policy first. Two processes with equal ones compile alike."""
    return join_parts(digest_parts())


def join_parts(found: "dict[str, dict[str, str]]") -> "dict[str, str]":
    """What :func:`parts` returns as one: of this the digest is made."""
    return {name: value for part in found.values() for name, value in part.items()}


def is_compared(name: str, others: "AbstractSet[str]" = frozenset()) -> bool:
    """Whether a variable counts: compilers and libraries read it, or it is one of *others*."""
    return bool(name in others or _READ.fullmatch(name)) and not _ONLY_HERE.fullmatch(name)


def utf8(text: str) -> str:
    """*text* with escapes for what is no UTF-8, as a store and a line can take it."""
    return text.encode("utf-8", "backslashreplace").decode()


def digest(found: "dict[str, str]") -> str:
    """Sixteen hex digits that tell one content from another."""
    text = json.dumps(found, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
