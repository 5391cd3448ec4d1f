"""Other things in place of modules."""

import sys
import types


class Slots:
    __slots__ = ()


class Raises:
    def __getattr__(self, name):
        raise RuntimeError(name)


for thing in (Slots(), Raises(), types.SimpleNamespace(), types.ModuleType("broken"), None, 1):
    sys.modules["broken"] = thing
    sys.modules.pop("target", None)
    import target
del sys.modules["broken"]
open("mended", "w").close()
import broken

print(broken.VALUE)
