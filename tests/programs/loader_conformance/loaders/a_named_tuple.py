"""A named tuple.

hooks: made?
"""

import collections

from memory import Plain, install, show


class Tuple(collections.namedtuple("Tuple", "a b")):
    __slots__ = ()
    create_module, exec_module = Plain.create_module, Plain.exec_module


install(Tuple(1, 2))
import made

show(made)
