"""Triton's driver for the stand-in: it loads no binary and launches nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver

from .compilers import TIE_MS
from .connection import chosen_gpu, has_memory
from .gpus import GpuFacts
from .host_modules import keep_host_module
from .kernel_file import read_resources


def _gpu() -> GpuFacts:
    gpu = chosen_gpu()
    assert gpu
    return gpu


class DriverUtils:
    """What Triton asks the runtime of HIP, or the driver of CUDA."""

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Module, function, registers and spilled registers of a thread, threads in a block."""
        return 1, 1, *read_resources(kernel), _gpu().threads_of_block

    def unload_module(self, module: int) -> None:
        """Nothing was loaded."""

    def get_device_properties(self, device: int) -> dict[str, object]:
        """The properties by the names of Triton's own drivers."""
        gpu = _gpu()
        told: dict[str, object] = {
            "max_shared_mem": gpu.lds,
            "max_num_regs": gpu.registers,
            "multiprocessor_count": gpu.processors,
            "warpSize": gpu.wavefront,
        }
        if gpu.vendor == "amd":
            return {**told, "arch": gpu.target, "cooperativeLaunch": 1}
        # Of an H100. Triton's own benchmarks of speed ask for them, and no compile does.
        return {**told, "sm_clock_rate": 1980000, "mem_clock_rate": 2619000, "mem_bus_width": 5120}


class SilentLauncher:
    """A kernel's launcher. The real one's code is kept where caches are filled."""

    def __init__(self, source: object, metadata: object) -> None:
        if has_memory():
            name = "HIPLauncher" if _gpu().vendor == "amd" else "CudaLauncher"
            keep_host_module(_gpu().vendor, lambda driver: getattr(driver, name)(source, metadata))

    def __call__(self, *arguments: object) -> None:
        """Launch nothing."""


class StandInDriver(GPUDriver):
    """Triton's driver for the stand-in."""

    def __init__(self) -> None:
        super().__init__()
        self.utils = DriverUtils()
        self.launcher_cls = SilentLauncher
        if has_memory():
            name = "HIPUtils" if _gpu().vendor == "amd" else "CudaUtils"
            keep_host_module(_gpu().vendor, lambda driver: getattr(driver, name)())

    @staticmethod
    def is_active() -> bool:
        """Whether there is a stand-in."""
        return chosen_gpu() is not None

    def map_python_to_cpp_type(self, ty: str) -> str:
        """No C++ is made."""
        return ty

    def get_current_target(self) -> GPUTarget:
        """The GPU for which to compile."""
        gpu = _gpu()
        if gpu.vendor == "amd":
            return GPUTarget("hip", gpu.gfx, gpu.wavefront)
        return GPUTarget("cuda", gpu.major * 10 + gpu.minor, gpu.wavefront)

    def get_active_torch_device(self) -> torch.device:
        """Torch's device."""
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """Torch's module for the device."""
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., float | list[float]]:
        """What Triton's own autotuner measures by: all candidates tie."""

        def benchmark(
            call: Callable[[], object],
            *,
            quantiles: Sequence[float] | None = None,
            **options: object,
        ) -> Any:
            call()
            return [TIE_MS] * len(quantiles) if quantiles else TIE_MS

        return benchmark

    def get_empty_cache_for_benchmark(self) -> None:
        """Nothing to clear."""

    def clear_cache(self, cache: object) -> None:
        """Nothing to clear."""
