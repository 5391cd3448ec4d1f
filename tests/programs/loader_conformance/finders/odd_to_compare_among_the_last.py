"""Odd to compare, among the last.

hooks: alone target
armed: alone target
"""

import sys


class Odd:
    def find_spec(self, name, path=None, target=None):
        return None

    def __eq__(self, other):
        return True

    __hash__ = None


odd = Odd()
sys.meta_path[:0] = [odd]
import alone
import target

print(sys.meta_path[0] is odd, sum(type(finder) is type for finder in sys.meta_path))
import json

print(json.__name__)
