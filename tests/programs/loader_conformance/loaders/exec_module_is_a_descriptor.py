"""Exec_module is a descriptor.

hooks: made? made2?
"""

from memory import Plain, install, show


class Descriptor:
    def __get__(self, loader, owner=None):
        return lambda module: Plain().exec_module(module)


class Described(Plain):
    exec_module = Descriptor()


class Data(Descriptor):
    def __set__(self, loader, value):
        raise RuntimeError("no")


class Held(Plain):
    exec_module = Data()


install(Described(), "made")
install(Held(), "made2")
import made
import made2

show(made, made2)
print(vars(made.__loader__), vars(made2.__loader__))
