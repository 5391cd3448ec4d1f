# requires: torchao
# mypy: ignore-errors
"""Weights quantized to int8 by torchao, compiled."""

import torch
from torchao.quantization import Int8WeightOnlyConfig, quantize_

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32))
model = model.eval()
quantize_(model, Int8WeightOnlyConfig())
inputs = torch.randn(4, 64)
with torch.inference_mode():
    wanted = model(inputs)
    found = torch.compile(model, mode="max-autotune")(inputs)
print("result", [round(value, 4) for value in found[0, :8].tolist()])
print("as eager", torch.allclose(found, wanted, atol=1e-3))
