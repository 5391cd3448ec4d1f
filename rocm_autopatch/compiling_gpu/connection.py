"""In a process: torch and Triton are led to the stand-in."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from .gpus import GPUS, GpuFacts, read_facts

LIBRARY = Path(__file__).with_name("device.so")
# Beside it, if the package is not in the torch's own site-packages: torch's directory.
TORCH = "torch.path"
# Set in the environment when the line is written, so that a process tree has it once.
_SAID = "COMPILING_GPU_SAID"


def chosen_gpu() -> GpuFacts | None:
    """The GPU that COMPILING_GPU says, an MI300X if it says none; None for ``off``.

    Raises:
        ValueError: there is no GPU of that name, or the file has no facts.
        OSError: the file can't be read.
    """
    name = os.environ.get("COMPILING_GPU", "mi300x")
    if name == "off":
        return None
    if has_memory():
        return read_facts(Path(name).read_text(encoding="utf-8"))
    if name not in GPUS:
        raise ValueError(f"COMPILING_GPU={name}: there are {', '.join(GPUS)} and off")
    return GPUS[name]


def has_memory() -> bool:
    """Whether the GPU has memory to fill, that can be read."""
    return "/" in os.environ.get("COMPILING_GPU", "")


def preload_device() -> None:
    """Register the device with a CPU build's C++ libraries, before they ask for one."""
    gpu = chosen_gpu()
    if gpu is None:
        return
    library = ctypes.CDLL(str(LIBRARY))
    library.compiling_gpu_capacity(ctypes.c_size_t(gpu.memory))
    library.compiling_gpu_start(ctypes.c_bool(has_memory()))


def connect_torch() -> None:
    """Answer for the device in torch.cuda, and lead torch's compilers to the stand-in."""
    gpu = chosen_gpu()
    if gpu is None:
        return
    import torch

    if _is_another(Path(torch.__file__).parent):
        return

    from .compilers import lead_compilers

    _tell_user(gpu)
    library = ctypes.CDLL(str(LIBRARY))
    if torch.backends.cuda.is_built():
        library.compiling_gpu_start(ctypes.c_bool(True))
    else:
        from .cuda import answer_for_gpu

        answer_for_gpu(gpu, library)
    lead_compilers(gpu)
    if has_memory():
        from .processes import write_at_exit

        write_at_exit(library)


def _is_another(torch: Path) -> bool:
    """Whether the stand-in is built for another torch than this process has, and say so.

    A program's helpers may have a Python of their own. Raises RuntimeError in a build for GPUs.
    """
    try:
        ours = Path(__file__).with_name(TORCH).read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    if os.path.realpath(torch) == os.path.realpath(ours):
        return False
    text = f"compiling_gpu: {torch} has no GPU here: the stand-in is built for {ours}"
    if LIBRARY.with_name("runtime.so").exists():
        # Which is loaded: this torch would find a GPU, and launch kernels that nobody runs.
        raise RuntimeError(text)
    print(text, file=sys.stderr, flush=True)
    return True


def _tell_user(gpu: GpuFacts) -> None:
    if os.environ.get(_SAID):
        return
    os.environ[_SAID] = "1"
    article = "an" if gpu.name[:1] in "AEIOUNM" else "a"
    text = f"compiling_gpu: cuda:0 is a stand-in for {article} {gpu.name} ({gpu.gfx}): "
    if has_memory():
        text += "it compiles and does not run. RESULTS ARE WRONG: keep compiled code, nothing else"
    else:
        text += "it compiles and does not run"
    print(text, file=sys.stderr, flush=True)
