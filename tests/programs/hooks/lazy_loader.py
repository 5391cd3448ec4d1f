"""Lazy loader."""

import importlib.util as u
import sys

spec = u.find_spec("target")
spec.loader = u.LazyLoader(spec.loader)
module = sys.modules["target"] = u.module_from_spec(spec)
spec.loader.exec_module(module)
print("lazy")
print(module.VALUE)
