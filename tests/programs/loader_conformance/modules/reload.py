"""Reload.

hooks: target target.inner alone? broken?
"""

import importlib
import sys
import types

import target.inner

target.VALUE = 0
print(importlib.reload(target) is target, target.VALUE, target.inner.VALUE)
print(importlib.reload(target.inner).VALUE, target.__spec__, vars(target.__loader__))
# A module that the program itself has put there.
sys.modules["alone"] = module = types.ModuleType("alone")
print(importlib.reload(module) is module, module.VALUE, module.__spec__)
try:
    import broken
except RuntimeError:
    sys.modules["broken"] = module = types.ModuleType("broken")
    try:
        importlib.reload(module)
    except RuntimeError as error:
        print(error, "broken" in sys.modules)
    open("mended", "w").close()
    print(importlib.reload(module).VALUE)
try:
    importlib.reload(types.ModuleType("absent"))
except ImportError as error:
    print(error)
