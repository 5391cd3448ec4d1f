from typing import Any

from torch.utils import _device as _device
from torch.utils import _python_dispatch as _python_dispatch
from torch.utils import _pytree as _pytree

def __getattr__(name: str) -> Any: ...
