"""What notices writes fails, at a value and for the writer."""

import json

import torch._inductor.config as c

import rocm_autopatch
from rocm_autopatch.patches.config import refused_writes


class Odd:
    def __eq__(self, other):
        raise ValueError

    def __repr__(self):
        raise ValueError


c.triton.cudagraphs = Odd()
seen = [c.triton.cudagraphs]


def fail():
    raise OSError


refused_writes._writing_place = fail
c.triton.cudagraphs = True
seen.append(c.triton.cudagraphs)
print(json.dumps([rocm_autopatch.status(), seen]))
