"""The first call of a model whose GEMMs are autotuned: its time, and the time of the CPU."""

import resource
import time

import torch
import torch._inductor.config as config

torch.manual_seed(0)
torch.set_num_threads(2)
config.freezing = True
config.max_autotune_gemm_backends = "CPP,ATEN"
model = torch.nn.Sequential(torch.nn.Linear(512, 768), torch.nn.GELU(), torch.nn.Linear(768, 512))
x = torch.randn(64, 512)


def used():
    both = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in both)


with torch.no_grad():
    began, before = time.perf_counter(), used()
    torch.compile(model.eval())(x)
    print("first call: %.2f s" % (time.perf_counter() - began))
    print("CPU time of first call: %.2f s" % (used() - before))
