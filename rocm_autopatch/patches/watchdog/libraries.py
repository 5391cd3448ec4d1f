"""What may make a call of a ROCm library last: MIOpen and TunableOp search in first calls.

Inductor calls these libraries while it compiles, to compare them with its own kernels. No stack of
Python shows what a library does inside, so only the variables that make it search are named.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# What MIOpen takes for its mode without a search, and for no enforced search.
_FAST = ("2", "FAST")
_NOT_ENFORCED = ("", "1", "NONE")


def searches(operation: str) -> "list[str]":
    """What may be searching while Inductor benchmarks an *operation*, and how to turn it off.

    *operation* is Inductor's name, such as "addmm" or "convolution", or "" if it is not known.
    """
    torch: Any = sys.modules["torch"]
    if not torch.version.hip:
        return []
    if "conv" in operation:
        return _miopen_searches(torch)
    return _tunable_searches()


def _tunable_searches() -> "list[str]":
    get = os.environ.get
    if get("PYTORCH_TUNABLEOP_ENABLED") != "1" or get("PYTORCH_TUNABLEOP_TUNING") == "0":
        return []
    return [
        "TunableOp may be tuning this GEMM (PYTORCH_TUNABLEOP_ENABLED is 1): set "
        "PYTORCH_TUNABLEOP_TUNING=0"
    ]


def _miopen_searches(torch: "Any") -> "list[str]":
    enforced = os.environ.get("MIOPEN_FIND_ENFORCE", "")
    mode = os.environ.get("MIOPEN_FIND_MODE", "")
    # An enforced search outranks the mode, and torch's own flag outranks the mode, too.
    if enforced.upper() not in _NOT_ENFORCED:
        why = "(MIOPEN_FIND_ENFORCE is %s): unset it" % enforced[:20]
    elif torch.backends.cudnn.benchmark:
        why = "(torch.backends.cudnn.benchmark is True): set it to False"
    elif mode.upper() in _FAST:
        return []
    else:
        why = "(MIOPEN_FIND_MODE is %s): set it to FAST" % (mode[:20] or "not set")
    return ["MIOpen may be searching " + why]
