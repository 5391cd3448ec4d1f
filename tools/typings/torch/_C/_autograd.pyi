from collections.abc import Callable
from typing import Any

from torch import Tensor

def __getattr__(name: str) -> Any: ...

# From 2.8 on. The innermost hooks of saved tensors in this thread. None if there are none.
def _top_saved_tensors_default_hooks(
    ignore_is_tracing: bool,
) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]] | None: ...
