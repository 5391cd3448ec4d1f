"""Something else than a spec.

hooks: made?
"""

import sys
import types
from importlib.machinery import ModuleSpec

from memory import Plain


class Gives:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "made":
            return types.SimpleNamespace(
                name=name,
                loader=Plain(),
                origin="simple",
                submodule_search_locations=None,
                cached=None,
                parent="",
                has_location=False,
                loader_state=None,
            )
        if name == "made2":
            return 0
        if name == "made3":
            return ModuleSpec(name, None)


sys.meta_path.append(Gives)
for name in ("made", "made2", "made3"):
    try:
        print(__import__(name).VALUE)
    except Exception as error:
        print(type(error), error)
