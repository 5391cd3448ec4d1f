"""Values that were written in two threads before they are pinned."""

import json
import threading

import torch._inductor.config as c
from implying import pin

both = threading.Barrier(2)


def other():
    c.compile_threads = 77
    both.wait()
    both.wait()
    read.append(c.emulate_precision_casts)


read = []
thread = threading.Thread(target=other)
thread.start()
both.wait()
c.compile_threads = 77
read.append(c.emulate_precision_casts)
pin("emulate_precision_casts", False)
both.wait()
thread.join()
print(json.dumps([*read, c.emulate_precision_casts]))
