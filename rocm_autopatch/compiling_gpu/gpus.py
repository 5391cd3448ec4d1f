"""What a GPU's runtime tells about it: facts as JSON, and those of GPUs that are known.

AMD: memory, compute units, wavefront size, LDS and L2 cache are from AMD's table of GPU
specifications (https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html, read 2026-11-22). In
that table L2 is given for each XCD; HIP gives one XCD's. The LLVM target with its features is as
ROCm spells it for these GPUs. On RDNA, HIP counts work-group processors of two compute units each,
and a block may use 64 KiB of LDS.

NVIDIA: published figures (the tuning guide for Hopper), and names as the driver spells them. The
bytes of memory that a driver tells are a few less, and differ between drivers. Facts that were
read on a GPU replace them.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields

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
    # 32-bit vector registers of a processor: on AMD its VGPR file in KiB, times 256.
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


GPUS = {
    "mi300x": GpuFacts(
        vendor="amd",
        name="AMD Instinct MI300X",
        target="gfx942:sramecc+:xnack-",
        major=9,
        minor=4,
        memory=192 * GIB,
        processors=304,
        wavefront=64,
        lds=64 * KIB,
        l2=4 * MIB,
        registers=512 * 256,
    ),
    "mi355x": GpuFacts(
        vendor="amd",
        name="AMD Instinct MI355X",
        target="gfx950:sramecc+:xnack-",
        major=9,
        minor=5,
        memory=288 * GIB,
        processors=256,
        wavefront=64,
        lds=160 * KIB,
        l2=4 * MIB,
        registers=512 * 256,
    ),
    "rx9070xt": GpuFacts(
        vendor="amd",
        name="AMD Radeon RX 9070 XT",
        target="gfx1201",
        major=12,
        minor=0,
        memory=16 * GIB,
        processors=32,
        wavefront=32,
        lds=64 * KIB,
        l2=8 * MIB,
        registers=768 * 256,
    ),
    "h100": GpuFacts(
        vendor="nvidia",
        name="NVIDIA H100 80GB HBM3",
        target="sm_90",
        major=9,
        minor=0,
        memory=80 * GIB,
        processors=132,
        wavefront=32,
        lds=227 * KIB,
        l2=50 * MIB,
        registers=65536,
        lds_of_block=48 * KIB,
        lds_of_processor=228 * KIB,
    ),
    "h200": GpuFacts(
        vendor="nvidia",
        name="NVIDIA H200",
        target="sm_90",
        major=9,
        minor=0,
        memory=150_109_880_320,  # As a driver told it (evidence/).
        processors=132,
        wavefront=32,
        lds=227 * KIB,
        l2=50 * MIB,
        registers=65536,
        lds_of_block=48 * KIB,
        lds_of_processor=228 * KIB,
    ),
}
