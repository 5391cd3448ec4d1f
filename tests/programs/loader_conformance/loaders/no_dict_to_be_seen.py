"""No dict to be seen.

hooks: made? made2? made3?
"""

from memory import Plain, install, show


class Hides(Plain):
    @property
    def __dict__(self):
        raise RuntimeError("hidden")


class Shows(Plain):
    __dict__ = {}


class Copies(Plain):
    @property
    def __dict__(self):
        return {"a": 1}


for name, kind in zip(("made", "made2", "made3"), (Hides, Shows, Copies)):
    install(kind(), name)
import made
import made2
import made3

show(made, made2, made3)
print(made3.__loader__.exec_module.__func__ is Plain.exec_module, vars(made3.__loader__))
