"""torch's C++ half. Names of CUDA are those of HIP, too."""

from typing import Any

from torch import Tensor
from torch._C import _autograd as _autograd
from torch._C import _dynamo as _dynamo
from torch._C import _functorch as _functorch

# The handle of memory that graphs share.
_PoolHandle = tuple[int, int]

def __getattr__(name: str) -> Any: ...

# How an op's argument refers to the same memory as others.
class _AliasInfo:
    is_write: bool

class Argument:
    name: str
    type: object
    is_out: bool
    alias_info: _AliasInfo | None

# What an op takes and gives.
class FunctionSchema:
    name: str
    arguments: list[Argument]

class DispatchKeySet:
    def __and__(self, other: DispatchKeySet) -> DispatchKeySet: ...
    def __or__(self, other: DispatchKeySet) -> DispatchKeySet: ...

class DispatchKey:
    Python: DispatchKey
    def __getattr__(self, name: str) -> Any: ...

# In builds for a GPU. The allocator gives what the current stream asks for from this memory, until
# the end.
def _cuda_beginAllocateCurrentStreamToPool(device: int, mempool_id: _PoolHandle) -> None: ...

# Until 2.7. In builds for a GPU.
def _cuda_endAllocateCurrentStreamToPool(device: int, mempool_id: _PoolHandle) -> None: ...

# From 2.8 on. In builds for a GPU.
def _cuda_endAllocateToPool(device: int, mempool_id: _PoolHandle) -> None: ...

# In builds for a GPU.
def _cuda_getCurrentRawStream(device: int) -> int: ...
def _cuda_isCurrentStreamCapturing() -> bool: ...

# In builds for a GPU. Each begin has taken one reference to the memory. This gives one back.
def _cuda_releasePool(device: int, mempool_id: _PoolHandle) -> None: ...
def _dispatch_has_kernel_for_dispatch_key(name: str, dispatch: str | DispatchKey) -> bool: ...
def _dispatch_keys(tensor: Tensor) -> DispatchKeySet: ...
def _dispatch_keyset_full_after(t: DispatchKey) -> DispatchKeySet: ...

# From 2.9 on.
def _get_fp32_precision_getter(backend: str, op: str) -> str: ...
def _get_function_stack_at(idx: int) -> Any: ...

# None if nothing is traced.
def _get_tracing_state() -> object | None: ...
def _len_torch_dispatch_stack() -> int: ...
def _len_torch_function_stack() -> int: ...

# How many tensors and other owners hold the memory with this ``UntypedStorage._cdata``.
def _storage_Use_Count(storage_ptr: int) -> int: ...

# In builds for a GPU. Whether the tensors at these indices are at these addresses.
def _tensors_data_ptrs_at_indices_equal(
    tensors: list[Any], ptrs: list[int | None], indices: list[int]
) -> bool: ...
