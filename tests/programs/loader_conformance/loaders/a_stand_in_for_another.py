"""A stand-in for another.

hooks: made
"""

from memory import Plain, install, show


class Wraps:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)


one = Plain()
install(Wraps(one))
import made

show(made)
print(vars(one), list(vars(made.__loader__)))
