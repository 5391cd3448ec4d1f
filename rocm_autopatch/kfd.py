"""The GPUs that the amdgpu driver knows, from its files in /sys. No GPU runtime is started.

A container sees the files of all GPUs of the machine, also of those that it may not use.
"""

import os

from rocm_autopatch import _read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

NODES = "sys/class/kfd/kfd/topology/nodes"


def gpus(root: str = "/") -> "list[tuple[str, int, int]]":
    """Each GPU, or partition of one, in the driver's order. Raises nothing.

    A GPU is its architecture (``gfx942``), its PCI device id and how many compute units it has.
    *root* is the directory that stands for ``/``.
    """
    directory = os.path.join(root, NODES)
    try:
        nodes = sorted(os.listdir(directory))
    except OSError:
        return []
    found = [gpu(_read("%s/%s/properties" % (directory, node))) for node in nodes]
    return [one for one in found if one]


def gpu(properties: bytes) -> "Optional[tuple[str, int, int]]":
    """The GPU in the ``properties`` of a node, None if it is a CPU or of an unknown form."""
    said = {}
    for line in properties.split(b"\n"):
        name, _, value = line.partition(b" ")
        # No number of them is longer: 64 bits.
        if value.isdigit() and len(value) <= 20:
            said[name] = int(value)
    # Two digits each for minor and stepping, of which each gives one hex digit: 90402 is gfx942,
    # 90010 gfx90a; a CPU has 0.
    # https://github.com/torvalds/linux/blob/master/drivers/gpu/drm/amd/amdkfd/kfd_device.c
    version = said.get(b"gfx_target_version", 0)
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    if not 0 < major < 100 or max(minor, stepping) > 15:
        return None
    units = said.get(b"simd_count", 0) // (said.get(b"simd_per_cu", 0) or 1)
    return "gfx%d%x%x" % (major, minor, stepping), said.get(b"device_id", 0), units
