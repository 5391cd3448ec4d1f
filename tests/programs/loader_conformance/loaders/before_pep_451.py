"""Of before PEP 451.

hooks: alone? made?
"""

import sys

# Python 3.12 removed find_module. Until then, a finder that has only find_module is still asked.
import types
import warnings

warnings.simplefilter("ignore")


class Legacy:
    def find_module(self, name, path=None):
        if name in ("alone", "made"):
            return self

    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        module.__loader__ = self
        module.VALUE = "legacy"
        return module


sys.meta_path.insert(len(sys.meta_path) - 1, Legacy())
import alone

print(alone.VALUE, type(alone.__loader__).__name__)
try:
    import made

    print(made.VALUE)
except ImportError as error:
    print(error)
