from typing import Any

from torch.autograd import graph as graph

def __getattr__(name: str) -> Any: ...
