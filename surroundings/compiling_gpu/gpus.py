"""What ROCm tells about a GPU.

Memory, compute units, wavefront size, LDS and L2 cache are from AMD's table of GPU specifications
(https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html, read 2026-11-22). In that table L2 is
given for each XCD; HIP gives one XCD's. The LLVM target with its features is as ROCm spells it for
these GPUs. On RDNA, HIP counts work-group processors of two compute units each, and a block may use
64 KiB of LDS.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 1024, 1024**2, 1024**3


@dataclass(frozen=True)
class Gpu:
    """One GPU; sizes are in bytes."""

    name: str
    target: str
    major: int
    minor: int
    memory: int
    processors: int
    wavefront: int
    lds: int
    l2: int
    # 32-bit vector registers of a compute unit: its VGPR file in KiB, times 256.
    registers: int

    @property
    def gfx(self) -> str:
        """The LLVM target without its features, such as ``gfx942``."""
        return self.target.partition(":")[0]


GPUS = {
    "mi300x": Gpu(
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
    "mi355x": Gpu(
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
    "rx9070xt": Gpu(
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
}
