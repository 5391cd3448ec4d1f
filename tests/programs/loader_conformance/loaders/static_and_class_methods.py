"""Static and class methods.

hooks: made made2 made3?
"""

from memory import Plain, install, show


class Static:
    create_module = staticmethod(lambda spec: None)

    @staticmethod
    def exec_module(module):
        module.VALUE = "static"


class Class(Plain):
    @classmethod
    def exec_module(cls, module):
        module.VALUE = cls.__name__


install(Static(), "made")
install(Class(), "made2")
install(Class, "made3")
Class.create_module = staticmethod(lambda spec: None)
import made
import made2
import made3

show(made, made2, made3)
print(vars(made.__loader__), "exec_module" in vars(made2.__loader__), made3.__loader__)
