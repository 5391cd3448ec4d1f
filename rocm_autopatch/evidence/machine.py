"""What evidence is bound to besides torch: the GPU, its driver, Triton and the HIP runtime.

It is found in a few files, without torch, and nothing is started. Programs ask for it when they
import torch, so this imports only what torch has imported already.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rocm_autopatch.image import clues
from rocm_autopatch.startup import kfd

NAMES = ("device", "driver", "triton", "runtime")
# All that must be the same for evidence to count. Torch is the start's own fact.
BOUND = (*NAMES, "torch")
# Evidence files of earlier releases do not have it.
OPTIONAL = ("runtime",)
REQUIRED = tuple(name for name in BOUND if name not in OPTIONAL)
NO_GPU = "no GPU"
NONE = "none"

_NVIDIA = "proc/driver/nvidia"
# What a program opens to reach a GPU.
_DOORS = ("dev/kfd", "dev/nvidiactl")
_MODEL = re.compile(r"^Model:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build
_NVRM = re.compile(r"^NVRM version:.*?[ \t]([0-9]+(?:\.[0-9]+)+)(?:[ \t]|$)", re.MULTILINE)
# The names under which Triton is distributed for NVIDIA and, over the years, for ROCm.
_TRITONS = ("triton", "triton-rocm", "pytorch-triton-rocm", "pytorch-triton")


def machine_here(root: Path = Path("/"), path: Sequence[str] | None = None) -> dict[str, str]:
    """By NAMES, what this place has. Raises nothing.

    Read from the files under *root* and the distributions on *path*, which is sys.path unless
    given. ``device`` is NO_GPU where there is none, and "" where there are different ones or where
    a GPU can't be told. ``driver``, ``triton`` and ``runtime`` are NONE where there are none;
    ``runtime`` is "" if it is not found and there is an AMD GPU.
    """
    devices = {*_amd_gpus(root), *_nvidia_gpus(root)}
    device = devices.pop() if len(devices) == 1 else ""
    if not (device or devices or any(os.path.exists(root / door) for door in _DOORS)):
        device = NO_GPU
    found = clues.hip_runtime(os.environ, root, path)
    return {
        "device": device,
        "driver": _driver_version(root, device),
        "triton": _triton_version(sys.path if path is None else path),
        "runtime": found or ("" if is_amd(device) else NONE),
    }


def is_amd(device: str) -> bool:
    """Whether a device, as ``here`` says it, is an AMD GPU."""
    return device.startswith("gfx")


def _amd_gpus(root: Path) -> Iterator[str]:
    """Each kind of AMD GPU: ``gfx942 0x74a1 304 CUs``. Partitions of one differ in their CUs."""
    for gfx, device, units in kfd.gpus(str(root)):
        yield f"{gfx} {device:#06x} {units} CUs"


def _nvidia_gpus(root: Path) -> Iterator[str]:
    """The name of each GPU: ``NVIDIA H200``."""
    gpus: list[str] = []
    with suppress(OSError):
        gpus = sorted(os.listdir(root / _NVIDIA / "gpus"))
    for gpu in gpus:
        model = _MODEL.search(clues.read_beginning(root, f"{_NVIDIA}/gpus/{gpu}/information"))
        if model:
            yield model[1]


def _driver_version(root: Path, device: str) -> str:
    if device == NO_GPU:
        return NONE
    if is_amd(device):
        # A driver that is part of the kernel has no version of its own.
        version = clues.read_beginning(root, "sys/module/amdgpu/version").strip()
        return version or f"kernel {os.uname().release}"
    nvrm = _NVRM.search(clues.read_beginning(root, f"{_NVIDIA}/version"))
    return nvrm[1] if nvrm else ""


def _triton_version(path: Sequence[str]) -> str:
    """The version of Triton; if several distributions have it, each version."""
    found = [clues.distribution_version(name, path) for name in _TRITONS]
    return " ".join(sorted({fact.value for fact in found if fact})) or NONE
