"""What a GPU's runtime tells about it: facts as JSON, and those of GPUs that are known.

AMD: memory, compute units, wavefront size, LDS and L2 cache are from AMD's table of GPU
specifications (https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html, read 2026-11-27). In
that table L2 is given for each XCD; HIP gives one XCD's. The LLVM target with its features is as
ROCm spells it for these GPUs. What a program sees as one GPU is a half of an MI250X or MI250. The
MI308X is not in that table: it has the parts of an MI300X and 80 compute units, by which aiter's
tables name it. Of a card's memory, the driver keeps 16 MiB (tests/data/gpu_answers.yaml has what
drivers answered, with their sources); of an MI300A's, which is the host's too, as much as its
machine is set to.

NVIDIA: published figures (the tuning guide for Hopper), and names as the driver spells them. The
bytes of memory that a driver tells are a few less, and differ between drivers. Facts that were
read on a GPU replace them.
"""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, dataclass, fields, replace

KIB, MIB, GIB = 1024, 1024**2, 1024**3
_MAY_BE_ZERO = ("minor", "lds_of_block", "lds_of_processor")


@dataclass(frozen=True)
class GpuFacts:
    """One GPU; sizes are in bytes."""

    # "amd" or "nvidia".
    vendor: str
    # As torch.cuda.get_device_name() gives it.
    name: str
    # The LLVM target with its features (gfx942:sramecc+:xnack-), or sm_90.
    target: str
    major: int
    minor: int
    memory: int
    # Compute units, or multiprocessors.
    processors: int
    # Threads of a wavefront, or of a warp.
    wavefront: int
    # The most LDS, or shared memory, that a block can ask for.
    lds: int
    l2: int
    # 32-bit vector registers of a processor: on AMD its VGPR file in KiB, times 256; see told_by.
    registers: int
    # What a block has without asking, and what a processor has; 0 stands for lds.
    lds_of_block: int = 0
    lds_of_processor: int = 0
    threads_of_processor: int = 2048
    threads_of_block: int = 1024

    @property
    def gfx(self) -> str:
        """The target without its features, such as ``gfx942``."""
        return self.target.partition(":")[0]

    def as_json(self) -> str:
        """The facts as a JSON object, which `read_facts` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"


def read_facts(text: str) -> GpuFacts:
    """The facts that a JSON object has; keys that are not fields are left out.

    Raises:
        ValueError: it is not JSON, a field without a default is missing, or one has a value that
            no GPU has.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("a GPU's facts are a JSON object")
    known = {field.name: field for field in fields(GpuFacts)}
    kept = {name: value for name, value in found.items() if name in known}
    for name, value in kept.items():
        wanted = str if str(known[name].type) == "str" else int
        if type(value) is not wanted:
            raise ValueError(f"{name}: {value!r} is not of type {wanted.__name__}")
        if isinstance(value, int) and value < (0 if name in _MAY_BE_ZERO else 1):
            raise ValueError(f"{name}: no GPU has {value}")
    missing = [name for name, one in known.items() if one.default is MISSING and name not in kept]
    if missing:
        raise ValueError(f"these are missing: {', '.join(missing)}")
    facts = GpuFacts(**kept)
    if facts.vendor not in ("amd", "nvidia"):
        raise ValueError(f"vendor: {facts.vendor!r} is neither amd nor nvidia")
    return facts


def told_by(facts: GpuFacts, hip: str) -> GpuFacts:
    """A known GPU's facts as the runtime of a release tells them; *hip* is torch.version.hip.

    Before 7.1, HIP counts half of a CDNA processor's registers, those that one kind of instruction
    can name: 65536 on an MI300X by 6.4 and an MI210 by 6.3, 131072 on an MI300A and an MI210 by
    7.1 (tests/data/gpu_answers.yaml). Of 7.0 there is no dump; a tool for traces of torch has 65536
    for an MI350X there.
    """
    numbers = [int(number) for number in re.findall(r"\d+", hip)[:2]]
    if facts.vendor == "amd" and facts.wavefront == 64 and [0] < numbers < [7, 1]:
        return replace(facts, registers=facts.registers // 2)
    return facts


def _instinct(
    name: str, gfx: str, minor: int, memory: int, units: int, lds: int = 64, l2: int = 4
) -> GpuFacts:
    """CDNA 2 and later: memory in GiB, LDS in KiB, L2 of one die in MiB."""
    kept = 0 if name == "MI300A" else 16 * MIB
    return GpuFacts(
        *("amd", f"AMD Instinct {name}", f"{gfx}:sramecc+:xnack-", 9, minor),
        *(memory * GIB - kept, units, 64, lds * KIB, l2 * MIB, 512 * 256),
    )


def _radeon(
    name: str, gfx: str, memory: int, units: int, l2: int, registers: int = 768
) -> GpuFacts:
    """RDNA 3 and 4: HIP counts pairs of compute units, and a block may use 64 KiB of LDS."""
    return GpuFacts(
        *("amd", f"AMD Radeon {name}", gfx, int(gfx[3:5]), 0),
        *(memory * GIB - 16 * MIB, units // 2, 32, 64 * KIB, l2 * MIB, registers * 256),
    )


def _hopper(name: str, memory: int) -> GpuFacts:
    """H100 and H200: memory in bytes."""
    return GpuFacts(
        *("nvidia", f"NVIDIA {name}", "sm_90", 9, 0, memory, 132, 32),
        *(227 * KIB, 50 * MIB, 65536, 48 * KIB, 228 * KIB),
    )


GPUS = {
    "mi300x": _instinct("MI300X", "gfx942", 4, 192, 304),
    "mi355x": _instinct("MI355X", "gfx950", 5, 288, 256, 160),
    "rx9070xt": _radeon("RX 9070 XT", "gfx1201", 16, 64, 8),
    "h100": _hopper("H100 80GB HBM3", 80 * GIB),
    "h200": _hopper("H200", 150_109_880_320),  # As a driver told it (evidence/).
    "mi308x": _instinct("MI308X", "gfx942", 4, 192, 80),
    "mi325x": _instinct("MI325X", "gfx942", 4, 256, 304),
    "mi300a": _instinct("MI300A", "gfx942", 4, 128, 228),
    "mi350x": _instinct("MI350X", "gfx950", 5, 288, 256, 160),
    "mi350p": _instinct("MI350P", "gfx950", 5, 144, 128, 160),
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
