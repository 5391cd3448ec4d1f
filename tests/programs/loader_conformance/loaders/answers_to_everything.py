"""Answers to everything.

hooks: made?
"""

from memory import Plain, install, show


class Answers(Plain):
    def __getattribute__(self, name):
        if name == "exec_module":
            return lambda module: Plain.exec_module(self, module)
        return object.__getattribute__(self, name)


install(Answers())
import made

show(made)
print(vars(made.__loader__))
