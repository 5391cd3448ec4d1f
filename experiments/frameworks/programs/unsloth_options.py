# requires: unsloth_zoo
# mypy: ignore-errors
"""unsloth_zoo's settings of torch.compile, a loss that it compiles itself, and a module."""

import os
import sys
from pathlib import Path

# Its own switch for a machine without a GPU. It also wants to find unsloth, which needs one.
os.environ["UNSLOTH_ALLOW_CPU"] = os.environ["UNSLOTH_IS_PRESENT"] = "1"
Path("unsloth.py").touch()
sys.path.append(os.getcwd())
# Among much else, patch_torch_compile() takes this variable away.
cache = os.environ["TORCHINDUCTOR_CACHE_DIR"]

import torch  # noqa: E402
from unsloth_zoo.patching_utils import patch_torch_compile  # noqa: E402
from unsloth_zoo.rl_replacements import selective_log_softmax  # noqa: E402
from unsloth_zoo.temporary_patches.common import torch_compile  # noqa: E402

patch_torch_compile(debug=False, O3=False, ignore_errors=False)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache

torch.manual_seed(0)
logits, chosen = torch.randn(2, 6, 64), torch.randint(0, 64, (2, 6))
found = selective_log_softmax(logits, chosen)
wanted = logits.log_softmax(-1).gather(-1, chosen[..., None])[..., 0]
print("log probabilities", [round(value, 4) for value in found[0].tolist()])
print("as eager", torch.allclose(found, wanted, atol=1e-4))

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.SiLU(), torch.nn.Linear(32, 4))
forward = torch_compile(model.forward, dynamic=True, fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(3):
    loss = forward(torch.ones(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", round(loss.item(), 4))
