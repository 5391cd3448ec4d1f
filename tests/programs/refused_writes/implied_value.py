"""Writes that imply another value than the pinned one."""

import json

import torch._inductor.config as c
from implying import pin

row = pin("emulate_precision_casts", False)
c.compile_threads = 77  #: direct
read = [c.compile_threads != 77, c.emulate_precision_casts]
c.compile_threads = 7
c.realize_reads_threshold = 79  #: by another
read += [c.compile_threads, c.emulate_precision_casts]
with c.patch(max_fusion_size=78):  #: in a patch
    read.append(c.emulate_precision_casts)
more = [pin("max_fusion_size", 78, one) for one in ("default", "set", "pin")]
print(json.dumps([row, read, [(one["status"], one["reason"]) for one in more]]))
