"""Without exec_module, warnings.

hooks: made?
"""

import sys
import types

from memory import install


class Legacy:
    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        return module


install(Legacy())
import warnings

warnings.simplefilter("always")


def work():
    import made

    print(made)


work()
