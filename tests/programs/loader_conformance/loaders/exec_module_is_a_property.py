"""Exec_module is a property.

hooks: made?
"""

from memory import Plain, install, show


class Property(Plain):
    @property
    def exec_module(self):
        return super().exec_module


install(Property())
import made

show(made)
print(vars(made.__loader__))
