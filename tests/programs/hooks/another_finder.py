"""Another finder."""

import sys


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("target", "target.absent"):
            print("asked for", name)


sys.meta_path.append(Finder)
import target

try:
    import target.absent
except ImportError as error:
    print(error)
