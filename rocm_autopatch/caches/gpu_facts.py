"""The facts of this machine's GPU: torch and Triton tell them in a process, the driver in files."""

from __future__ import annotations

from rocm_autopatch import fresh_interpreter
from rocm_autopatch.caches import fill_targets
from rocm_autopatch.compiling_gpu import GpuFacts
from rocm_autopatch.startup import kfd
from rocm_autopatch.support.user_error import UserError

# What the fields of compiling_gpu.GpuFacts are on this machine. Triton says what a block may ask
# for; torch on ROCm has some properties only from certain releases on.
_ASK = """
import json
import torch
if not torch.cuda.is_available():
    print(json.dumps("torch %s finds no GPU here" % torch.__version__))
    raise SystemExit
from triton.runtime import driver
seen = torch.cuda.get_device_properties(0)
told = driver.active.utils.get_device_properties(0)
amd = bool(torch.version.hip)
print(json.dumps({
    "vendor": "amd" if amd else "nvidia",
    "name": seen.name,
    "target": seen.gcnArchName if amd else "sm_%d%d" % (seen.major, seen.minor),
    "major": seen.major,
    "minor": seen.minor,
    "memory": seen.total_memory,
    "processors": seen.multi_processor_count,
    "wavefront": getattr(seen, "warp_size", told.get("warpSize", 32)),
    "lds": told["max_shared_mem"],
    "l2": seen.L2_cache_size,
    "registers": getattr(seen, "regs_per_multiprocessor", told.get("max_num_regs", 0)),
    "lds_of_block": getattr(seen, "shared_memory_per_block", 0),
    "lds_of_processor": getattr(seen, "shared_memory_per_multiprocessor", 0),
    "threads_of_processor": seen.max_threads_per_multi_processor,
    "threads_of_block": getattr(seen, "max_threads_per_block", 1024),
}))
"""


def read_gpu() -> fill_targets.FillTarget:
    """The first GPU that torch finds here. Raises UserError where it finds none, or can't ask."""
    environ = {**fresh_interpreter.before_us(), "ROCM_AUTOPATCH": "off"}
    try:
        said = fresh_interpreter.answer(_ASK, environ=environ)
    except fresh_interpreter.NoReport as error:
        raise UserError(f"torch and Triton tell nothing of a GPU here: {error}") from None
    if isinstance(said, str):
        raise UserError(
            f"{said}: run it on a machine with the GPU, or name a GPU that is known: "
            "rocm-autopatch cache fill --for mi300x -- COMMAND"
        )
    facts = GpuFacts(**said)
    # The driver has all GPUs of the machine, and its own order.
    same = [(units, device) for gfx, device, units in kfd.gpus() if gfx == facts.gfx]
    units, device = same[0] if len({*same}) == 1 else (0, 0)
    return fill_targets.make_target(facts, units, device)
