"""Four threads import a module whose hook takes a while."""

import threading
import time

from rocm_autopatch import startup


def hook(module):
    time.sleep(0.3)
    module.VALUE = "patched"


startup.arm({"broken": hook})
seen = []


def work():
    import broken

    seen.append(broken.VALUE)


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(20)
print(seen)
