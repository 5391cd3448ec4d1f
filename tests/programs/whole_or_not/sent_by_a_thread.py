"""Another thread sends an exception while our code runs."""

import ctypes
import threading
import time

from rocm_autopatch import failure


class Timeout(Exception):
    pass


def send(ident):
    time.sleep(0.2)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Timeout))


threading.Thread(target=send, args=(threading.get_ident(),)).start()
spin = "while True: sys.getrecursionlimit()"
try:
    exec(compile(spin, failure.__file__, "exec"), vars(failure))
except Timeout as error:
    print(failure.programs_own(error))
