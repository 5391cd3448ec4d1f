"""What a compiled kernel needs, read from its file as the GPU's runtime reads it.

Both vendors' files are ELF files, and Triton's have one kernel each.

- hsaco: for a kernel NAME there is a symbol NAME.kd, the kernel's descriptor of 64 bytes (LLVM,
  "User Guide for AMDGPU Backend", Kernel Descriptor).
- cubin: the section .nv.info has attributes of each function: its registers, and the size of its
  stack, which has what was spilled. NVIDIA publishes no format; these two are REG and STACK of
  cuobjdump --dump-resource-usage.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_AMD, _NVIDIA = 224, 190
# Of ELF's header: the machine; where the sections are, how large an entry is, how many there are,
# and which one has their names.
_HEADER = struct.Struct("<18xH20xQ10xHHH")
_SECTION = struct.Struct("<II8xQQQII8x8x")
_DYNSYM = 11
# Of a symbol: name, section, value.
_SYMBOL = struct.Struct("<I2xHQQ")
# group_segment_fixed_size, private_segment_fixed_size, and compute_pgm_rsrc1.
_SEGMENTS = struct.Struct("<II")
_RSRC1 = 48
# An attribute of .nv.info: format, name, bytes; then the symbol's number and the value.
_ATTRIBUTE = struct.Struct("<BBHII")
_WITH_VALUE, _FRAME_SIZE, _REGISTERS = 4, 0x11, 0x2F


class _Section(NamedTuple):
    name: int
    kind: int
    address: int
    offset: int
    size: int
    link: int
    info: int


def read_resources(kernel: bytes) -> tuple[int, int]:
    """The registers of the kernel's threads, and how many 32-bit ones each spills to memory.

    On AMD these are vector registers. Triton's driver for ROCm takes the spilled ones from the size
    of a thread's private memory, too.

    Raises:
        ValueError: the file has no kernel.
    """
    if kernel[:4] != b"\x7fELF":
        raise ValueError("not an ELF file")
    machine, start, entry, count, names = _HEADER.unpack_from(kernel)
    sections = [_Section(*_SECTION.unpack_from(kernel, start + n * entry)) for n in range(count)]
    if machine == _NVIDIA:
        return _read_cubin(kernel, sections, sections[names].offset)
    return _read_hsaco(kernel, sections)


def _read_hsaco(kernel: bytes, sections: list[_Section]) -> tuple[int, int]:
    for section in sections:
        if section.kind != _DYNSYM:
            continue
        names = sections[section.link].offset
        for at in range(section.offset, section.offset + section.size, _SYMBOL.size):
            name, index, value, _ = _SYMBOL.unpack_from(kernel, at)
            if _text(kernel, names + name).endswith(b".kd"):
                holder = sections[index]
                descriptor = value - holder.address + holder.offset
                _group, private = _SEGMENTS.unpack_from(kernel, descriptor)
                (rsrc1,) = struct.unpack_from("<I", kernel, descriptor + _RSRC1)
                # GRANULATED_WORKITEM_VGPR_COUNT, in steps of 8 registers on gfx90a and later.
                return ((rsrc1 & 0x3F) + 1) * 8, private // 4
    raise ValueError("no kernel in the file")


def _read_cubin(kernel: bytes, sections: list[_Section], names: int) -> tuple[int, int]:
    found = {_FRAME_SIZE: 0, _REGISTERS: 0}
    for section in sections:
        if _text(kernel, names + section.name) != b".nv.info":
            continue
        at, end = section.offset, section.offset + section.size
        while at + 4 <= end:
            form, attribute, size = struct.unpack_from("<BBH", kernel, at)
            if form == _WITH_VALUE and attribute in found:
                value = _ATTRIBUTE.unpack_from(kernel, at)[4]
                found[attribute] = max(found[attribute], value)
            # Others have their value in the place of the size.
            at += 4 + (size if form == _WITH_VALUE else 0)
    if not found[_REGISTERS]:
        raise ValueError("no kernel in the file")
    return found[_REGISTERS], found[_FRAME_SIZE] // 4


def _text(kernel: bytes, at: int) -> bytes:
    return kernel[at : kernel.index(b"\0", at)]
