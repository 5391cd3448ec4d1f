"""The finder leaves while three threads import.

hooks: alone
armed: alone
"""

import sys
import threading

from memory import Plain, install

install(Plain(), *("m%d" % number for number in range(600)))
Plain.exec_module = lambda self, module: None
barrier = threading.Barrier(4)
failed = []


def work(first):
    barrier.wait()
    for number in range(first, 600, 3):
        try:
            __import__("m%d" % number)
        except ImportError as error:
            failed.append(str(error))


threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
sys.setswitchinterval(1e-5)
for thread in threads:
    thread.start()
barrier.wait()
import alone

for thread in threads:
    thread.join()
print(failed)
