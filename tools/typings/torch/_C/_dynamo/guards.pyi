from typing import Any

from torch import Tensor

def __getattr__(name: str) -> Any: ...

class TensorGuards:
    def __init__(
        self,
        *tensors: Tensor,
        dynamic_dims_sizes: list[int | None] | None = ...,
        dynamic_dims_strides: list[int | None] | None = ...,
    ) -> None: ...
    # Any objects: it says no to what is no tensor.
    def check(self, *args: object) -> bool: ...
