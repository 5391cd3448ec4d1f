"""What it is asked for in a reload.

hooks: alone?
"""

import importlib
import sys
import types


class Shows:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if not name.startswith("rocm_autopatch"):
            print(name, path and len(path), target)


sys.meta_path.insert(len(sys.meta_path) - 1, Shows)
sys.modules["alone"] = module = types.ModuleType("alone")
importlib.reload(module)
