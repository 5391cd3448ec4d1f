"""An AMD GPU that compiles and does not run: a stand-in for the device, below a CPU build of torch.

With it, a program's tensors lie on ``cuda`` as on ROCm, and everything above the device is real:
Dynamo, AOTAutograd, Inductor with each of its ``torch.version.hip`` branches, and Triton's AMD
backend, which needs no GPU to compile. Memory is address space that can't be read, operators know
shapes alone, binaries are not loaded, and launches do nothing. A program that asks for a result
gets an error, never a number.

This package is installed beside a torch that has the label of a ROCm build;
surroundings/amd_torch.py does so. `preload` runs before torch's libraries are loaded, and `connect`
at the end of ``import torch``.

| file | stands in for |
|---|---|
| device.cpp | the device below torch's operators: guard, hooks, memory |
| cuda.py | what a GPU build's torch._C answers to torch.cuda |
| triton_amd/ | Triton's driver: it loads no binary and launches nothing |
| gpus.py | what ROCm tells about a GPU |

The variable COMPILING_GPU chooses the GPU by its name in gpus.py; ``off`` means none.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from .gpus import GPUS, Gpu

LIBRARY = Path(__file__).with_name("device.so")
NOT_RUN = "compiling_gpu: this device compiles and does not run, so there is no result: "
# Set in the environment when the line is written, so that a process tree has it once.
_SAID = "COMPILING_GPU_SAID"


class NoResult(RuntimeError):
    """A program asks the device for what only a device that runs can give."""

    def __init__(self, what: str) -> None:
        super().__init__(NOT_RUN + what)


def gpu() -> Gpu | None:
    """The GPU that COMPILING_GPU names, an MI300X if it names none; None for ``off``.

    Raises:
        ValueError: there is no GPU of that name.
    """
    name = os.environ.get("COMPILING_GPU", "mi300x")
    if name == "off":
        return None
    if name not in GPUS:
        raise ValueError(f"COMPILING_GPU={name}: there are {', '.join(GPUS)} and off")
    return GPUS[name]


def preload() -> None:
    """Register the device with torch's C++ libraries, before they ask whether there is one."""
    chosen = gpu()
    if chosen is None:
        return
    library = ctypes.CDLL(str(LIBRARY))
    library.compiling_gpu_capacity(ctypes.c_size_t(chosen.memory))


def connect() -> None:
    """Answer for the device in torch.cuda; torch calls this by the entry point torch.backends."""
    chosen = gpu()
    if chosen is None:
        return
    from . import cuda

    cuda.answer(chosen, ctypes.CDLL(str(LIBRARY)))
    if not os.environ.get(_SAID):
        os.environ[_SAID] = "1"
        text = f"compiling_gpu: cuda:0 is a stand-in for an {chosen.name} ({chosen.gfx})"
        print(f"{text}: it compiles and does not run", file=sys.stderr, flush=True)
