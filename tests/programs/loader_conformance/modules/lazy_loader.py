"""Lazy loader.

hooks: target? alone?
"""

import sys
import types
from importlib.util import LazyLoader, find_spec, module_from_spec

for name in ("target", "alone"):
    spec = find_spec(name)
    spec.loader = LazyLoader(spec.loader)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    print("lazy", type(module).__name__, object.__getattribute__(module, "__spec__").loader)
    print(module.VALUE, type(module) is types.ModuleType, vars(module.__loader__))
    print(__import__(name) is module)
