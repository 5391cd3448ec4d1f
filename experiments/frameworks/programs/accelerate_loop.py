# requires: accelerate
# mypy: ignore-errors
"""A training loop with accelerate's dynamo plugin."""

import torch
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin

torch.manual_seed(0)
plugin = TorchDynamoPlugin(backend="inductor", mode="max-autotune", dynamic=False)
accelerator = Accelerator(dynamo_plugin=plugin)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
data = torch.utils.data.TensorDataset(torch.randn(12, 16), torch.randint(0, 4, (12,)))
loader = torch.utils.data.DataLoader(data, batch_size=4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, labels in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    accelerator.backward(loss)
    optimizer.step()
    print("loss", round(loss.item(), 4))
print("device", accelerator.device.type)
