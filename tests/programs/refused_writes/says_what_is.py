"""A report of values before and after writes, in two threads."""

import json
import threading

import torch._dynamo.config as d
import torch._inductor.config as c

import rocm_autopatch

first = rocm_autopatch.status()
c.max_fusion_size = 3
c.epilogue_fusion = True
d.recompile_limit = 4
elsewhere = []
thread = threading.Thread(target=lambda: elsewhere.append(rocm_autopatch.status()))
thread.start()
thread.join()
here = rocm_autopatch.status()
c._config["max_fusion_size"].default = 7
del c.max_fusion_size
c._config["max_fusion_size"].hide = False
print(json.dumps([first, here, *elsewhere, rocm_autopatch.status()]))
