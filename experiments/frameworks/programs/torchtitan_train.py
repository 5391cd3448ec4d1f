# requires: torchtitan triton
# mypy: ignore-errors
"""torchtitan's small Llama: its own compile of each block and of the loss, and three steps."""

import torch
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.config import CompileConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.compile import apply_compile
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import llama3_configs

torch.manual_seed(0)
config = llama3_configs["debugmodel"]("flex")
config.layers = config.layers[:2]
for layer in config.layers:
    # On a CPU, flex attention has no backward.
    layer.attention.inner_attention = ScaledDotProductAttention.Config()
model = config.build()
model.init_states()

settings = CompileConfig(enable=True)
one = dict.fromkeys(("dp_replicate", "dp_shard", "cp", "tp", "pp", "ep", "world_size"), 1)
apply_compile(model, compile_config=settings, parallel_dims=ParallelDims(**one))
loss_fn = CrossEntropyLoss.Config(global_vocab_size=2048).build(compile_config=settings)

optimizer = torch.optim.AdamW(model.parameters(), lr=8e-4)
tokens = torch.randint(0, 2048, (2, 33))
for _ in range(3):
    loss, _ = loss_fn(model(tokens[:, :-1]), tokens[:, 1:], 64)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", round(loss.item(), 4))
