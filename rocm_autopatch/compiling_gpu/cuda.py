"""What a GPU build's torch._C answers to torch.cuda, for one device and one stream."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from .compilers import TIE_MS
from .connection import has_memory
from .errors import NoResult
from .gpus import GpuFacts

_StorageMethod = Callable[[torch.UntypedStorage], torch.UntypedStorage]
_MEASURES = ("torch._inductor.", "triton.")
_COMPILERS = ("torch._inductor.", "torch._dynamo.", "torch._functorch.", "torch.fx.")


class Stream(torch.Stream):
    """The one stream."""

    def __new__(cls, device: object = None, priority: int = 0, **kwargs: object) -> Stream:
        return super().__new__(cls, device=torch.device("cuda", 0), priority=priority)

    cuda_stream = 0


class ExternalStream(Stream):
    """A stream that another library made."""


class Event(torch.Event):
    """Something that is over at once."""

    def __new__(cls, enable_timing: bool = False, **kwargs: object) -> Event:
        return super().__new__(cls, device="cuda", enable_timing=enable_timing)

    def record(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def wait(self, stream: object = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Whether it is over."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end: object) -> float:
        """`TIE_MS` for compilers that compare candidates; for others there is no result."""
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if has_memory() or caller.startswith(_MEASURES):
            return TIE_MS
        raise NoResult("the time between two events")


class UncapturedGraph:
    """A capture that can't be made."""

    def __init__(self, *arguments: object, **options: object) -> None:
        raise NoResult("a captured graph")


class EmptyGraph:
    """A graph of a program that goes on without results: nothing is captured or replayed."""

    def __init__(self, **options: object) -> None:
        pass

    def capture_begin(self, *arguments: object, **options: object) -> None:
        """Nothing is captured."""

    def capture_end(self) -> None:
        """Nothing was captured."""

    def instantiate(self) -> None:
        """Nothing is there."""

    def replay(self) -> None:
        """Nothing is replayed."""

    def reset(self) -> None:
        """Nothing is held."""

    def pool(self) -> tuple[int, int]:
        """The one pool."""
        return 0, 1


def answer_for_gpu(gpu: GpuFacts, library: ctypes.CDLL) -> None:
    """Make torch.cuda describe *gpu*. *library* is device.cpp's."""
    for name in ("compiling_gpu_allocated", "compiling_gpu_peak"):
        getattr(library, name).restype = ctypes.c_size_t
    if not has_memory():
        library.compiling_gpu_asks(_compiler_asks)
    properties = _properties(gpu)

    def memory(device: int = 0) -> dict[str, object]:
        now, peak = library.compiling_gpu_allocated(), library.compiling_gpu_peak()
        taken = {"all": {"current": now, "peak": peak, "allocated": peak, "freed": peak - now}}
        return {"allocated_bytes": taken, "active_bytes": taken, "reserved_bytes": taken}

    def init() -> None:
        torch.cuda._get_device_properties = lambda device: properties

    def exchange(device: int) -> int:
        return 0 if device >= 0 else -1

    # Another function: Dynamo keeps a handler for each.
    def maybe_exchange(device: int) -> int:
        return exchange(device)

    answers: dict[str, object] = {
        "_has_cuda": True,
        "_cuda_CUDAAllocator_AllocatorState": SimpleNamespace,
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_emptyCache": lambda: None,
        "_cuda_exchangeDevice": exchange,
        "_cuda_getArchFlags": lambda: gpu.gfx,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_getCurrentRawStream": lambda device: 0,
        "_cuda_getCurrentStream": lambda device: (0, 0, 1),
        "_cuda_getDefaultStream": lambda device: (0, 0, 1),
        "_cuda_getDevice": lambda: 0,
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_init": init,
        "_cuda_isCurrentStreamCapturing": lambda: False,
        "_cuda_isHistoryEnabled": lambda: False,
        "_cuda_maybeExchangeDevice": maybe_exchange,
        "_cuda_memoryStats": memory,
        "_cuda_resetAccumulatedMemoryStats": lambda device: None,
        "_cuda_resetPeakMemoryStats": lambda device: library.compiling_gpu_reset_peak(),
        "_cuda_setDevice": lambda device: None,
        "_cuda_setStream": lambda **stream: None,
        "_cuda_synchronize": lambda: None,
        "_host_emptyCache": lambda: None,
        "_set_cached_tensors_enabled": lambda enabled: None,
    }
    for name, value in answers.items():
        setattr(torch._C, name, value)

    # torch.cuda took these from torch._C when it was imported, or has a dummy instead of them.
    torch.cuda._exchange_device = exchange
    torch.cuda._maybe_exchange_device = maybe_exchange
    torch.cuda._is_in_bad_fork = lambda: False
    torch.cuda._cudart = SimpleNamespace(
        cudaMemGetInfo=lambda device: (gpu.memory - library.compiling_gpu_allocated(), gpu.memory)
    )
    torch.cuda.default_generators = (torch.Generator(device="cuda"),)
    cuda: Any = torch.cuda
    cuda.CUDAGraph = cuda.graphs.CUDAGraph = EmptyGraph if has_memory() else UncapturedGraph
    torch.cuda.graphs._cuda_isCurrentStreamCapturing = lambda: False
    torch.cuda.graphs._graph_pool_handle = lambda: (0, 1)
    for each in (Stream, ExternalStream, Event):
        setattr(torch.cuda, each.__name__, each)
        setattr(torch.cuda.streams, each.__name__, each)
    torch.cuda.current_stream = torch.cuda.default_stream = lambda device=None: Stream()
    storage: Any = torch.UntypedStorage
    storage.clone = _clone(storage.clone)


@ctypes.CFUNCTYPE(ctypes.c_bool)
def _compiler_asks() -> bool:
    """Whether a compiler asks for a value, to fold a constant."""
    caller = sys._getframe().f_back  # A thread of C++ has none.
    return caller is not None and str(caller.f_globals["__name__"]).startswith(_COMPILERS)


def _properties(gpu: GpuFacts) -> SimpleNamespace:
    return SimpleNamespace(
        # The name is in no key of a ROCm build. A program that looks at it must find a GPU's.
        name=gpu.name if has_memory() else f"{gpu.name} (stand-in, does not run)",
        gcnArchName=gpu.target,
        major=gpu.major,
        minor=gpu.minor,
        multi_processor_count=gpu.processors,
        warp_size=gpu.wavefront,
        total_memory=gpu.memory,
        shared_memory_per_block=gpu.lds_of_block or gpu.lds,
        shared_memory_per_block_optin=gpu.lds,
        shared_memory_per_multiprocessor=gpu.lds_of_processor or gpu.lds,
        regs_per_multiprocessor=gpu.registers,
        max_threads_per_multi_processor=gpu.threads_of_processor,
        max_threads_per_block=gpu.threads_of_block,
        L2_cache_size=gpu.l2,
        is_integrated=0,
        is_multi_gpu_board=0,
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
        uuid="",
    )


def _clone(original: _StorageMethod) -> _StorageMethod:
    """The C++ that makes a storage by a device's name knows no cuda in a CPU build."""

    def clone(self: torch.UntypedStorage) -> torch.UntypedStorage:
        if self.device.type != "cuda":
            return original(self)
        made = torch.empty(self.nbytes(), dtype=torch.uint8, device="cuda")
        return made.untyped_storage()

    return clone
