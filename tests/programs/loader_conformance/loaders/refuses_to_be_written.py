"""Refuses to be written.

hooks: made? made2? made3?
"""

from memory import Plain, install, show


class Refuses(Plain):
    def __init__(self, error):
        object.__setattr__(self, "error", error)

    def __setattr__(self, name, value):
        raise self.error

    def __delattr__(self, name):
        raise self.error


errors = AttributeError("no"), TypeError("no"), RuntimeError("no")
for name, error in zip(("made", "made2", "made3"), errors):
    install(Refuses(error), name)
import made
import made2
import made3

show(made, made2, made3)
print([list(vars(module.__loader__)) for module in (made, made2, made3)])
