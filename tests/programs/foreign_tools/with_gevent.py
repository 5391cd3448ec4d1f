"""gevent has patched the standard library before torch is imported."""

from gevent import monkey

monkey.patch_all()
import threading

import gevent
import program

jobs = [gevent.spawn(program.note, str(number)) for number in range(4)]
gevent.joinall(jobs, timeout=20)
print([job.value for job in jobs])
thread = threading.Thread(target=program.main)
thread.start()
thread.join()
