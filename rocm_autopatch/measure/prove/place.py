"""The place of a battery: what evidence is bound to, and what else is worth knowing of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.evidence import machine
from rocm_autopatch.measure.prove import ProofRefused

# What torch itself says. A GPU that torch can't use does not count.
_PROBE = """
import json, sys
import torch
found = {"torch": torch.__version__, "cuda": str(torch.version.cuda or "")}
found["hip"] = str(torch.version.hip or "")
if torch.cuda.is_available():
    properties = torch.cuda.get_device_properties(0)
    found["gpu"] = properties.name
    found["gfx"] = getattr(properties, "gcnArchName", "") if found["hip"] else "sm_%d%d" % (
        properties.major, properties.minor)
    found["memory"] = str(properties.total_memory)
print("\\n" + json.dumps({name: str(value) for name, value in found.items()}))
"""
# Facts that say more of the image; evidence is not bound to them.
_FACTS = ("image", "rocm", "python", "os", "framework", "framework_version")


def find_machine(environ: Mapping[str, str]) -> dict[str, str]:
    """The place as an evidence file has it. Raises Refused and NoReport.

    ``gpu`` is the name of the GPU that torch uses, "" if it uses none.
    """
    try:
        said = fresh_interpreter.answer(_PROBE, environ={**environ, "ROCM_AUTOPATCH": "off"})
    except fresh_interpreter.NoReport as error:
        raise ProofRefused(f"torch can't be used here: {error}") from None
    torch: dict[str, str] = {"gpu": "", **said}
    facts: dict[str, Any] = fresh_interpreter.report(torch=False)["facts"]
    known = {name: str(facts[name]["value"]) for name in _FACTS if name in facts}
    bound = machine.machine_here()
    unknown = [name for name, value in bound.items() if not value and name not in machine.OPTIONAL]
    if unknown:
        raise ProofRefused(
            f"the {' and '.join(unknown)} of this machine can't be told, so evidence could not be "
            "bound to it: there are several kinds of GPUs, or the driver's files can't be read"
        )
    accelerator = str(facts["accelerator"]["value"]) if "accelerator" in facts else ""
    return {"accelerator": accelerator, **known, **torch, **bound}
