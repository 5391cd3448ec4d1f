"""Asked for by many threads.

hooks: made made2 made3
"""

import sys
import threading
from importlib.util import find_spec

from memory import Plain, install

one = Plain()
one.exec_module = lambda module: setattr(module, "VALUE", 1)
install(one, "made", "made2", "made3", "other")
failed = []


def work(name):
    try:
        for _ in range(100):
            if find_spec(name) is None:
                failed.append(name)
        __import__(name)
    except Exception as error:
        failed.append(repr(error))


names = ("made", "made2", "made3", "other") * 3
threads = [threading.Thread(target=work, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed, [sys.modules[name].VALUE for name in names], list(vars(one)))
