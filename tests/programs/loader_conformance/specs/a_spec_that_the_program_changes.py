"""A spec that the program changes: a finder in front of ours hides the import from it.

hooks: alone? target?
"""

import importlib.machinery
import sys


class Changes:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("alone", "target"):
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            spec.origin, spec.loader_state = "elsewhere", {"mine": 1}
            return spec


sys.meta_path.insert(0, Changes)
import alone
import target

print(alone.__spec__, alone.__spec__.loader_state, target.__spec__.origin)
