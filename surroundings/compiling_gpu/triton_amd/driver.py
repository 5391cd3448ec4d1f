"""A driver that loads no binary and launches nothing."""

from __future__ import annotations

from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import GPUDriver

from .. import gpu, kernel_file
from ..cuda import TIE_MS


class Utils:
    """What Triton asks the HIP runtime."""

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Module, function, registers and spilled registers of a thread, threads in a block."""
        return 1, 1, *kernel_file.resources(kernel), 1024

    def get_device_properties(self, device: int) -> dict[str, Any]:
        """The properties by the names of Triton's own driver."""
        chosen = gpu()
        assert chosen
        return {
            "max_shared_mem": chosen.lds,
            "max_num_regs": chosen.registers,
            "multiprocessor_count": chosen.processors,
            "warpSize": chosen.wavefront,
            "arch": chosen.target,
            "cooperativeLaunch": 1,
        }


class Launcher:
    """A kernel's launcher."""

    def __init__(self, source: Any, metadata: Any) -> None:
        pass

    def __call__(self, *arguments: Any) -> None:
        """Launch nothing."""


class Driver(GPUDriver):
    """Triton's driver for the stand-in."""

    def __init__(self) -> None:
        super().__init__()
        self.utils = Utils()
        self.launcher_cls = Launcher

    @staticmethod
    def is_active() -> bool:
        """Whether there is a stand-in."""
        return gpu() is not None

    def map_python_to_cpp_type(self, ty: str) -> str:
        """No C++ is made."""
        return ty

    def get_current_target(self) -> GPUTarget:
        """The GPU for which to compile."""
        chosen = gpu()
        assert chosen
        return GPUTarget("hip", chosen.gfx, chosen.wavefront)

    def get_active_torch_device(self) -> torch.device:
        """Torch's device."""
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """Torch's module for the device."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """What Triton's own autotuner measures by: all candidates tie."""

        def benchmark(call: Any, *, quantiles: Any = None, **options: Any) -> Any:
            call()
            return [TIE_MS] * len(quantiles) if quantiles else TIE_MS

        return benchmark

    def get_empty_cache_for_benchmark(self) -> Any:
        """Nothing to clear."""

    def clear_cache(self, cache: Any) -> None:
        """Nothing to clear."""
