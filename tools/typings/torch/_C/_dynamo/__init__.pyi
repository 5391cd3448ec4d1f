from typing import Any

from torch._C._dynamo import eval_frame as eval_frame
from torch._C._dynamo import guards as guards

def __getattr__(name: str) -> Any: ...
