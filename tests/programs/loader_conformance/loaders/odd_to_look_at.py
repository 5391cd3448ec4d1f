"""Odd to look at.

hooks: made
"""

from memory import Plain, install


class Odd(Plain):
    def __eq__(self, other):
        raise RuntimeError("compared")

    def __bool__(self):
        raise RuntimeError("asked for truth")

    def __hash__(self):
        raise RuntimeError("hashed")

    def __repr__(self):
        raise RuntimeError("shown")

    def __len__(self):
        raise RuntimeError("measured")


install(Odd())
import made

print(made.VALUE, vars(made.__loader__))
