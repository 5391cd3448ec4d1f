from typing import Any

# None if torch is built for no such GPU.
cuda: str | None
hip: str | None

def __getattr__(name: str) -> Any: ...
