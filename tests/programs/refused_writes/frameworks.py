"""Values that SGLang and vLLM write, and that a model reads."""

import json

import sglang_stand_in
import torch
import torch._dynamo.config as d
import torch._inductor.config as c
import vllm_stand_in

import rocm_autopatch

x = torch.ones(4, 4)

sglang_stand_in.set_torch_compile_config()
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
with torch.no_grad():
    same = torch.allclose(torch.compile(model, backend=vllm_stand_in.backend)(x), model(x))
reads = [c.coordinate_descent_tuning, c.max_autotune, d.recompile_limit, c.compile_threads]
print(json.dumps([rocm_autopatch.status(), same, vllm_stand_in.seen, reads]))
