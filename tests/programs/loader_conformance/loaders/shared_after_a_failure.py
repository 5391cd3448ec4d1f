"""Shared, after a failure.

hooks: made made2 made3
"""

from memory import Plain, install, show

fails = ["made", "made2"]


class Fails(Plain):
    def exec_module(self, module):
        if module.__name__ in fails:
            fails.remove(module.__name__)
            raise RuntimeError("not yet")
        super().exec_module(module)


one = Fails()
install(one, "made", "made2", "made3", "plain")
for _ in range(2):
    for name in ("plain", "made", "made2", "made3"):
        try:
            show(__import__(name))
        except RuntimeError as error:
            print(name, error)
    print(vars(one))
