"""Refuses what is ours.

hooks: alone? target?
says: what is ours can't be imported
"""

import sys
from importlib.util import find_spec


class Refuses:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("rocm_autopatch"):
            raise ImportError("refused")


for name in [name for name in sys.modules if name.startswith("rocm_autopatch.")]:
    if name != "rocm_autopatch.startup":
        del sys.modules[name]
sys.meta_path.insert(0, Refuses)
import alone
import target

print(alone.VALUE, find_spec("broken"))
