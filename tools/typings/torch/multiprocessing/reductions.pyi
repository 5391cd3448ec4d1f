from typing import Any

from torch import UntypedStorage

def __getattr__(name: str) -> Any: ...

class StorageWeakRef:
    cdata: int
    def __init__(self, storage: UntypedStorage) -> None: ...
    def expired(self) -> bool: ...
