"""The finder leaves while another thread is past it.

One thread is in an appended finder, and looks for a module that the finder after it knows.
Meanwhile another thread executes the last target. importlib asks finders under a lock, so no import
can let the first thread go on: a timer does. With an argument, hooks are armed meanwhile, as at the
first compile, when the finder is put back.

hooks: made
armed: made
"""

import sys
import threading

from memory import Plain, install

if sys.argv[1:]:
    from rocm_autopatch import startup

inside, go = threading.Event(), threading.Event()


class Waits:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "unrelated":
            inside.set()
            go.wait(20)


sys.meta_path.append(Waits)
install(Plain(), "unrelated", "other")
seen = []


def work():
    try:
        import unrelated

        seen.append(unrelated.VALUE)
    except ImportError as error:
        seen.append(error)


thread = threading.Thread(target=work)


class Starts(Plain):
    def exec_module(self, module):
        thread.start()
        inside.wait(20)
        if sys.argv[1:]:
            startup.arm({"made2": print})
        threading.Timer(0.3, go.set).start()
        super().exec_module(module)


install(Starts(), "made")
import made

thread.join(20)
print(seen, thread.is_alive())
import other
