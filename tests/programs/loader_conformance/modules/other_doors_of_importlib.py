"""Importlib's other doors.

hooks: target target.inner alone
"""

import importlib
import importlib.metadata
import importlib.util
import sys

importlib.invalidate_caches()
print(importlib.import_module("target").VALUE, importlib.import_module(".inner", "target").VALUE)
print(importlib.util.find_spec(".inner", "target"))
print(len([d for d in importlib.metadata.distributions() if d.metadata["Name"] == "absent"]))
print(__import__("target.inner"), __import__("target.inner", fromlist=["VALUE"]))
print(importlib.__import__("alone").VALUE, sys.modules["alone"].__spec__)
from target import *  # noqa: F403
from target import __path__ as p
from target import inner as i

print(VALUE, i.VALUE, p)  # noqa: F405
sys.modules["made"] = None
try:
    import made
except ImportError as error:
    print(error)
