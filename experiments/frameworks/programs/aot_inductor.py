# requires: numpy
# mypy: ignore-errors
"""AOTInductor: an exported model is compiled into a package, loaded in two processes and run."""

import subprocess
import sys

import torch

LOAD = """
import torch
loaded = torch._inductor.aoti_load_package("model.pt2")
rows = torch.arange(320.0).reshape(5, 4, 16).sin()
print("alone", [round(value, 4) for value in loaded(rows)[0, 0, :6].tolist()])
"""

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv1d(4, 8, 3), torch.nn.GELU(), torch.nn.LayerNorm(14))
model = model.eval()
inputs = torch.randn(8, 4, 16)
batch = torch.export.Dim("batch", min=2, max=64)
with torch.inference_mode():
    exported = torch.export.export(model, (inputs,), dynamic_shapes=({0: batch},))
    path = torch._inductor.aoti_compile_and_package(
        exported, package_path="model.pt2", inductor_configs={"max_autotune": True}
    )
    loaded = torch._inductor.aoti_load_package(path)
    at_run_time = torch.compile(model, mode="max-autotune", dynamic=True)
    for rows in (inputs, torch.randn(3, 4, 16)):
        found, wanted = loaded(rows), model(rows)
        print("result", [round(value, 4) for value in found[0, 0, :6].tolist()])
        for other in (wanted, at_run_time(rows)):
            print("as the others", torch.allclose(found, other, atol=1e-4))
sys.stdout.flush()
subprocess.run([sys.executable, "-c", LOAD], check=True)
