"""Makes its modules.

hooks: made one?
"""

import types

from memory import Plain, install, show


class Mine(types.ModuleType):
    pass


class Makes(Plain):
    def create_module(self, spec):
        return Mine(spec.name)


class Shares(Plain):
    one = Mine("one")

    def create_module(self, spec):
        return self.one


install(Makes(), "made")
install(Shares(), "made2")
import made
import made2

print(type(made).__name__, made2 is Shares.one, made2.__spec__.name)
show(made)
