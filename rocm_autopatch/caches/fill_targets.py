"""The GPUs that caches can be filled for where they are not: those that are known, and files.

Figures are from AMD's table of GPU specifications
(https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html, read 2026-11-27). What a program sees
as one GPU is a half of an MI250X or MI250. The MI308X is not in that table: it has the parts of an
MI300X and 80 compute units, by which aiter's tables name it. PCI device ids are not in it either.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from rocm_autopatch.caches import CacheRefused
from rocm_autopatch.compiling_gpu import GPUS, GpuFacts, read_facts

_KIB, _MIB, _GIB = 1024, 1024**2, 1024**3
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
    def described(self) -> str:
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


def _instinct(
    name: str, gfx: str, minor: int, memory: int, units: int, lds: int = 64, l2: int = 4
) -> GpuFacts:
    """CDNA 2 and later: memory in GiB, LDS in KiB, L2 of one die in MiB."""
    return GpuFacts(
        *("amd", f"AMD Instinct {name}", f"{gfx}:sramecc+:xnack-", 9, minor),
        *(memory * _GIB, units, 64, lds * _KIB, l2 * _MIB, 512 * 256),
    )


def _radeon(
    name: str, gfx: str, memory: int, units: int, l2: int, registers: int = 768
) -> GpuFacts:
    """RDNA 3 and 4: HIP counts pairs of compute units, and a block may use 64 KiB of LDS."""
    return GpuFacts(
        *("amd", f"AMD Radeon {name}", gfx, int(gfx[3:5]), 0),
        *(memory * _GIB, units // 2, 32, 64 * _KIB, l2 * _MIB, registers * 256),
    )


KNOWN: dict[str, GpuFacts] = {
    **GPUS,
    "mi308x": _instinct("MI308X", "gfx942", 4, 192, 80),
    "mi325x": _instinct("MI325X", "gfx942", 4, 256, 304),
    "mi300a": _instinct("MI300A", "gfx942", 4, 128, 228),
    "mi350x": _instinct("MI350X", "gfx950", 5, 288, 256, 160),
    "mi250x": _instinct("MI250X", "gfx90a", 0, 64, 110, l2=8),
    "mi250": _instinct("MI250", "gfx90a", 0, 64, 104, l2=8),
    "mi210": _instinct("MI210", "gfx90a", 0, 64, 104, l2=8),
    "w7900": _radeon("PRO W7900", "gfx1100", 48, 96, 6),
    "w7800": _radeon("PRO W7800", "gfx1100", 32, 70, 6),
    "w7700": _radeon("PRO W7700", "gfx1101", 16, 48, 4),
    "r9700": _radeon("AI PRO R9700", "gfx1201", 32, 64, 8),
    "rx7900xtx": _radeon("RX 7900 XTX", "gfx1100", 24, 96, 6),
    "rx7900xt": _radeon("RX 7900 XT", "gfx1100", 20, 84, 6),
    "rx7900gre": _radeon("RX 7900 GRE", "gfx1100", 16, 80, 6),
    "rx7800xt": _radeon("RX 7800 XT", "gfx1101", 16, 60, 4),
    "rx7700xt": _radeon("RX 7700 XT", "gfx1101", 12, 54, 4),
    "rx7600": _radeon("RX 7600", "gfx1102", 8, 32, 2, 512),
    "rx9070": _radeon("RX 9070", "gfx1201", 16, 56, 8),
    "rx9060xt": _radeon("RX 9060 XT", "gfx1200", 16, 32, 4),
}


def target_named(text: str) -> FillTarget:
    """The target that TARGET says: a name of ``KNOWN`` in any spelling, or the path of a file.

    Raises CacheRefused, which says what there is.
    """
    path = Path(text)
    if "/" in text or path.suffix == ".json":
        return _target_of_file(path)
    name = "".join(word for word in re.split(r"[\s_-]+", text.lower()) if word not in _FAMILIES)
    if name not in KNOWN:
        raise CacheRefused(
            f"no GPU is known as {text!r}: name one of {', '.join(KNOWN)}, or a file that "
            "rocm-autopatch facts --gpu has written on one"
        )
    return make_target(KNOWN[name])


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
    except OSError as error:
        raise CacheRefused(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CacheRefused(
            f"{path} has no facts of a GPU, which rocm-autopatch facts --gpu writes: {error}"
        ) from None
    return make_target(facts, units, device)
