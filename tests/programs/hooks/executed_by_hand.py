"""Executed by hand."""

import importlib.util as u

spec = u.find_spec("target")
module = u.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.VALUE)
