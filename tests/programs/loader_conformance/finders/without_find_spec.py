"""Without find_spec.

hooks: alone target
"""

import sys


class Property:
    @property
    def find_spec(self):
        raise AttributeError("not here")


class Broken:
    @property
    def find_spec(self):
        raise RuntimeError("not so")


if sys.version_info >= (3, 12):
    # Before, a finder had to have find_module where it had no find_spec.
    sys.meta_path[:0] = [object(), Property()]
    sys.meta_path.insert(-1, object())
    sys.meta_path.insert(-1, None)
import target

sys.meta_path.insert(len(sys.meta_path) - 1, Broken())
try:
    import alone
except RuntimeError as error:
    print(error)
del sys.meta_path[-2]
import alone

print(alone.VALUE)
