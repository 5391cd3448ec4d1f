"""Meta_path refuses.

hooks: alone target
armed: alone target
"""

import sys


class Refuses(list):
    def __iter__(self):
        return super().__iter__()

    def remove(self, one):
        raise RuntimeError("not so")

    __delitem__ = __contains__ = index = remove


sys.meta_path = Refuses(sys.meta_path)
import json

import alone
import target

print(alone.VALUE, json.__name__)
