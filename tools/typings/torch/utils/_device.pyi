from typing import Any

from torch import device as _device

def __getattr__(name: str) -> Any: ...

# The function mode that ``with device:`` and ``set_default_device`` enter.
class DeviceContext:
    device: _device
