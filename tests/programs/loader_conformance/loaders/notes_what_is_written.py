"""Notes what is written.

hooks: made?
"""

from memory import Plain, install, show


class Notes(Plain):
    def __setattr__(self, name, value):
        print("written", name)
        super().__setattr__(name, value)

    def __delattr__(self, name):
        print("deleted", name)
        super().__delattr__(name)


install(Notes())
import made

show(made)
