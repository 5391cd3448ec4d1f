"""Exec_module is a property that can be set.

hooks: made?
"""

from memory import Plain, install, show


class Settable(Plain):
    def __init__(self):
        self.execute = super().exec_module

    @property
    def exec_module(self):
        return self.execute

    @exec_module.setter
    def exec_module(self, value):
        print("set")
        self.execute = value


install(Settable())
import made

show(made)
print(made.__loader__.exec_module.__func__ is Plain.exec_module)
