from collections.abc import Iterable
from typing import Any

from torch import Tensor

def __getattr__(name: str) -> Any: ...

# 2.4 takes one tensor only.
def increment_version(tensor: Tensor | Iterable[Tensor]) -> None: ...
