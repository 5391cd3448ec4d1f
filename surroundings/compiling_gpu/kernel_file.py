"""What a compiled kernel needs, read from its file (hsaco) as the HIP runtime reads it.

An hsaco is an ELF file. For each kernel NAME it has a symbol NAME.kd, the kernel's descriptor of 64
bytes (LLVM, "User Guide for AMDGPU Backend", Kernel Descriptor). Triton's files have one kernel.
"""

from __future__ import annotations

import io
import struct
from typing import Any

from elftools.elf.elffile import ELFFile

# group_segment_fixed_size, private_segment_fixed_size, and compute_pgm_rsrc1.
_SEGMENTS = struct.Struct("<II")
_RSRC1 = 48


def resources(hsaco: bytes) -> tuple[int, int]:
    """The vector registers of the kernel's threads, and how many 32-bit ones each spills to memory.

    Triton's driver for ROCm takes the spilled ones from the size of a thread's private memory, too.

    Raises:
        ValueError: the file has no kernel.
    """
    elf = ELFFile(io.BytesIO(hsaco))
    table: Any = elf.get_section_by_name(".dynsym")
    for symbol in table.iter_symbols():
        if not symbol.name.endswith(".kd"):
            continue
        section = elf.get_section(symbol["st_shndx"])
        start = symbol["st_value"] - section["sh_addr"]
        descriptor = section.data()[start : start + 64]
        _group, private = _SEGMENTS.unpack_from(descriptor)
        (rsrc1,) = struct.unpack_from("<I", descriptor, _RSRC1)
        # GRANULATED_WORKITEM_VGPR_COUNT, in steps of 8 registers on gfx90a and later.
        return ((rsrc1 & 0x3F) + 1) * 8, private // 4
    raise ValueError("no kernel in the file")
