"""Odd to compare.

hooks: alone target
armed: alone target
"""

import sys


class Odd:
    def find_spec(self, name, path=None, target=None):
        return None

    def __eq__(self, other):
        raise RuntimeError("compared")

    def __bool__(self):
        raise RuntimeError("asked for truth")

    def __hash__(self):
        raise RuntimeError("hashed")


sys.meta_path[:0] = [Odd()]
sys.meta_path.append(Odd())
import json

import alone
import target

print(alone.VALUE, json.__name__)
