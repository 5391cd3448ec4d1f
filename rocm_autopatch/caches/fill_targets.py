"""The GPUs that caches can be filled for where they are not: those that are known, and files.

A known one has no PCI device id: AMD's table of specifications names none.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from rocm_autopatch.caches import CacheRefused
from rocm_autopatch.compiling_gpu import GPUS, GpuFacts, read_facts, told_by

# What a file has beside the facts of compiling_gpu: as the driver counts and numbers.
_UNITS, _DEVICE = "compute_units", "device_id"
# Words of a GPU's whole name that do not tell it from others.
_FAMILIES = ("amd", "instinct", "radeon", "pro", "ai", "nvidia")


@dataclass(frozen=True)
class FillTarget:
    """A GPU to compile for: what its runtime tells, and what its driver does.

    ``units`` are its compute units, ``device`` is its PCI device id, 0 where it is not known.
    """

    facts: GpuFacts
    units: int
    device: int = 0

    @property
    def driver_words(self) -> str:
        """It as ROCM_AUTOPATCH_GPU has it; "" for an NVIDIA GPU, which no place names."""
        if self.facts.vendor != "amd":
            return ""
        return ":".join(
            [self.facts.gfx, str(self.units), *([str(self.device)] * bool(self.device))]
        )

    def as_json(self) -> str:
        """The facts as ``target_named`` reads them from a file."""
        said = {**asdict(self.facts), _UNITS: self.units, _DEVICE: self.device}
        return json.dumps(said, indent=1) + "\n"


def target_named(text: str, hip: str = "") -> FillTarget:
    """The target that TARGET says: a name of ``GPUS`` in any spelling, or the path of a file.

    *hip* is the release of HIP whose runtime will tell the facts: a file has been told by one.
    Raises CacheRefused, which says what there is.
    """
    path = Path(text)
    if "/" in text or path.suffix == ".json":
        return _target_of_file(path)
    name = "".join(word for word in re.split(r"[\s_-]+", text.lower()) if word not in _FAMILIES)
    if name not in GPUS:
        raise CacheRefused(
            f"no GPU is known as {text!r}: name one of {', '.join(GPUS)}, or a file that "
            "rocm-autopatch facts --gpu has written on one"
        )
    return make_target(told_by(GPUS[name], hip))


def make_target(facts: GpuFacts, units: int = 0, device: int = 0) -> FillTarget:
    """A target by its facts. Without *units*, they follow from what HIP counts."""
    pairs = facts.vendor == "amd" and facts.wavefront == 32
    return FillTarget(facts, units or facts.processors * (2 if pairs else 1), device)


def _target_of_file(path: Path) -> FillTarget:
    try:
        text = path.read_text(encoding="utf-8")
        facts = read_facts(text)
        said = json.loads(text)
        units, device = (said.get(name, 0) for name in (_UNITS, _DEVICE))
        if not all(type(one) is int and 0 <= one < 2**32 for one in (units, device)):
            raise ValueError(f"{_UNITS} and {_DEVICE} are not both numbers")
        if facts.vendor == "amd" and not re.fullmatch("gfx[0-9a-f]+", facts.gfx):
            raise ValueError(f"target {facts.target!r} is no architecture")
        expected = make_target(facts).units
        if facts.vendor == "amd" and units not in (0, expected):
            raise ValueError(
                f"its processors and its {_UNITS} are of two GPUs: {facts.processors} make "
                f"{expected} units, and it has {units}"
            )
    except OSError as error:
        raise CacheRefused(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CacheRefused(
            f"{path} has no facts of a GPU, which rocm-autopatch facts --gpu writes: {error}"
        ) from None
    return make_target(facts, units, device)
