"""A frozen dataclass.

hooks: made?
"""

import dataclasses

from memory import Plain, install, show


@dataclasses.dataclass(frozen=True)
class Frozen(Plain):
    name: str


one = Frozen("x")
install(one)
import made

show(made)
print(one, vars(one), one == Frozen("x"), hash(one) == hash(Frozen("x")))
