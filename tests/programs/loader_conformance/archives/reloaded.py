"""Reloaded.

hooks: archived
"""

import sys

from memory import show

sys.path.insert(0, "archive.zip")
import importlib

import archived

archived.VALUE = 0
print(importlib.reload(archived).VALUE)
del sys.modules["archived"]
import archived

show(archived)
