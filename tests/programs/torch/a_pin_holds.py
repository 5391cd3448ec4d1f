"""Each way to write to pinned values, and what is read then."""

from unittest import mock

import torch._inductor.config as c
from shown import elsewhere, show

seen = []


def look():
    seen.append([c.max_autotune_gemm_backends, c.triton.cudagraphs])


c.max_autotune_gemm_backends = "TRITON"
c.triton.cudagraphs = True
look()
with c.patch({"max_autotune_gemm_backends": "TRITON", "triton.cudagraphs": True}):
    look()
with c.patch("triton.cudagraphs", True):
    look()


@c.patch(max_autotune_gemm_backends="TRITON")
def decorated():
    look()


decorated()
c.load_config({"triton.cudagraphs": True, "max_autotune_gemm_backends": "TRITON"})
look()
revert = c._make_closure_patcher(**{"triton.cudagraphs": True})()
look()
revert()
with mock.patch.object(c, "max_autotune_gemm_backends", "TRITON"):
    look()
look()


def thread():
    c.triton.cudagraphs = True
    look()


elsewhere(thread)
copy = c.get_config_copy()
show(seen, copy["triton.cudagraphs"], copy["max_autotune_gemm_backends"])
