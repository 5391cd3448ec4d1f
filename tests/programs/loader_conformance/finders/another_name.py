"""Another name.

hooks: made? made2? made3?
"""

import sys
from importlib.machinery import ModuleSpec

from memory import Plain, show


class Renames:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("made", "plain"):
            return ModuleSpec({"made": "made2", "plain": "made3"}[name], Plain())


sys.meta_path.append(Renames)
import made
import plain

show(made, plain)
print("made" in sys.modules, "made2" in sys.modules, "plain" in sys.modules)
