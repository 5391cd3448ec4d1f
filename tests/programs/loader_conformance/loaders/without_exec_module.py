"""Without exec_module.

hooks: made?
"""

import sys
import types
import warnings

from memory import install

warnings.simplefilter("ignore")


class Legacy:
    def load_module(self, name):
        module = sys.modules.setdefault(name, types.ModuleType(name))
        module.__loader__ = self
        module.VALUE = "legacy"
        return module


install(Legacy())
import made

print(made.VALUE, made.__spec__, vars(made.__loader__))
