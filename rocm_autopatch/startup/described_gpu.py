"""The GPU that a program compiles for where there is none: ``cache fill`` describes it.

A GPU that the driver knows is never overruled: code for another one may be wrong on it.
"""

import os

# The name is in kfd, too, which asks whether it is set, and is not imported here: it imports this.
_DESCRIBED = "ROCM_AUTOPATCH_GPU"


def described_gpus() -> "list[tuple[str, int, int]]":
    """What ``kfd.gpus`` returns, of ROCM_AUTOPATCH_GPU; [] if that is of another form.

    It is gfx942:304, an architecture and its compute units, or gfx942:304:29857 with the PCI device
    id.
    """
    gfx, units, device = (*os.environ[_DESCRIBED].split(":"), "0", "0")[:3]
    known = gfx[:3] == "gfx" and gfx.isalnum() and gfx.isascii()
    # int() of more digits is slow, and nothing has so many.
    if known and (units + device).isdecimal() and len(units + device) <= 20:
        return [(gfx, int(device), int(units))]
    return []
