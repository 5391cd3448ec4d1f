from types import CodeType
from typing import Any

def __getattr__(name: str) -> Any: ...

# Forgets what Dynamo has compiled of a code.
def reset_code(code: CodeType) -> None: ...
