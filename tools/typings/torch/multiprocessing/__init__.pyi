from typing import Any

from torch.multiprocessing import reductions as reductions

def __getattr__(name: str) -> Any: ...
