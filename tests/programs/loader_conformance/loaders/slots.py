"""Slots.

hooks: made?
"""

from memory import Plain, install, show


class Slots:
    __slots__ = ("anything",)
    create_module, exec_module = Plain.create_module, Plain.exec_module


install(Slots())
import made

show(made)
