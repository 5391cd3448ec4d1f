"""The GPUs that the amdgpu driver knows, from its files in /sys. No GPU runtime is started.

A container sees the files of all GPUs of the machine, also of those that it may not use. Where
there is no driver, ``cache fill`` says for which GPU its program compiles (described_gpu).
"""

import os

from rocm_autopatch import _read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Optional

# Set by a user, the architecture that all GPUs are to claim: 11.0.0 is gfx1100. With _1 or the like
# at its end, the one of that node.
OVERRIDE = "HSA_OVERRIDE_GFX_VERSION"
NODES = "sys/class/kfd/kfd/topology/nodes"
DESCRIBED = b"ROCM_AUTOPATCH_GPU"


def gpus(root: str = "/") -> "list[tuple[str, int, int]]":
    """Each GPU, or partition of one, in the driver's order. Raises nothing.

    A GPU is its architecture (``gfx942``), its PCI device id and how many compute units it has.
    *root* is the directory that stands for ``/``.
    """
    directory = "%s/%s" % (root.rstrip("/"), NODES)
    try:
        nodes = sorted(os.listdir(directory))
    except OSError:
        if root != "/" or DESCRIBED not in getattr(os.environ, "_data", ()):
            return []
        from rocm_autopatch.startup import described_gpu

        return described_gpu.described_gpus()
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
    gfx = _name(version // 10000, version // 100 % 100, version % 100)
    if not gfx:
        return None
    units = said.get(b"simd_count", 0) // (said.get(b"simd_per_cu", 0) or 1)
    return gfx, said.get(b"device_id", 0), units


def _name(major: int, minor: int, stepping: int) -> str:
    return (
        "gfx%d%x%x" % (major, minor, stepping)
        if 0 < major < 100 and max(minor, stepping) < 16
        else ""
    )


def gpu_kinds(assumed: str = "") -> "tuple[str, ...]":
    """The architectures of the GPUs here, or the one that a user assumes."""
    return (assumed,) if assumed else tuple(sorted({gfx for gfx, _, _ in gpus()}))


def claimed_gfx(value: str) -> str:
    """The architecture that a value of OVERRIDE names, "" if it is not of the form 11.0.0."""
    numbers = value.split(".")
    if len(numbers) != 3 or not all(part.isascii() and part.isdigit() for part in numbers):
        return ""
    return _name(*[int(part[:4]) for part in numbers])


def gfx_family(gfx: str) -> str:
    """What the minor version and the stepping of an architecture do not tell: gfx11 for gfx1103."""
    return gfx[:-2]


def overridden_gpus(environ: "Mapping[str, str]", kinds: "Sequence[str]") -> "Iterator[str]":
    """A sentence for each value of OVERRIDE that does not name what these GPUs are."""
    for name in sorted(name for name in environ if name.startswith(OVERRIDE)):
        value = environ[name]
        says = claimed_gfx(value)
        others = [kind for kind in kinds if kind != says]
        if says and others:
            real = " and ".join(others)
            yield "%s=%s: the GPU is %s, and claims to be %s" % (name, value, real, says)
        elif not says:
            yield "%s=%r is no version such as 11.0.0, so ROCm finds no GPU" % (name, value)
