"""Shared, one inside the other.

hooks: made made2 made3
"""

from importlib.util import find_spec

from memory import Plain, install, show


class Nests(Plain):
    def exec_module(self, module):
        if module.__name__ == "made":
            import made2

            print(find_spec("made3"), find_spec("made2"))
        super().exec_module(module)
        if module.__name__ == "made2":
            import made3


one = Nests()
install(one, "made", "made2", "made3")
found = [find_spec(name) for name in ("made3", "made", "made2", "made")]
print([spec.loader is one for spec in found], vars(one))
import made

print(vars(one))
import made2
import made3

show(made, made2, made3)
print(vars(one), found[0] == made3.__spec__)
