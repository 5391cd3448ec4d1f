"""Each way to write to a config value, and how often it is counted."""

import json
import threading
from unittest import mock

import torch
import torch._inductor.config as c
from torch._inductor.compile_fx import compile_fx

import rocm_autopatch

x = torch.ones(4, 4)

change = {"triton.cudagraphs": True}


def f(x):
    return x + 1


def backend(gm, inputs):
    return compile_fx(gm, inputs, config_patches=change)  #: twice


c.triton.cudagraphs = True  #: once
setattr(c, "triton.cudagraphs", True)  #: once
with c.patch(change):  #: once
    pass
with c.patch("triton.cudagraphs", True):  #: once
    c.triton.cudagraphs = False


@c.patch(**change)
def decorated():
    pass


decorated()  #: once
c.load_config(change)  #: once
revert = c._make_closure_patcher(**change)()  #: once
revert()
with mock.patch.object(c.triton, "cudagraphs", True):  #: once
    pass
threading.Thread(target=lambda: c.load_config(change)).start()  #: once
for _ in range(3):
    c.triton.cudagraphs = True  #: three times
torch.compile(f, backend=backend)(x)
g = torch.compile(lambda x: x - 1, options=change)  #: once
g(x)  #: twice


class Module(torch.nn.Module):
    def forward(self, x):
        return x * 2


m = Module()
m.compile(options=change)  #: once
m(x)  #: twice
c.load_config(c.save_config())
assert c.triton.cudagraphs is False
print(json.dumps(rocm_autopatch.status()))
