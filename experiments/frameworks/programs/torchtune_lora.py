# requires: torchtune torchao==0.13.0
# mypy: ignore-errors
"""A small Llama of torchtune with LoRA adapters: layers and loss compiled as its recipes do."""

import torch
from torchtune.models.llama3 import lora_llama3
from torchtune.modules.loss import CEWithChunkedOutputLoss
from torchtune.modules.peft import get_adapter_params, set_trainable_params
from torchtune.training import compile_loss, compile_model

torch.manual_seed(0)
model = lora_llama3(
    lora_attn_modules=["q_proj", "v_proj"],
    vocab_size=128,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    embed_dim=32,
    max_seq_len=64,
    intermediate_dim=64,
    lora_rank=4,
    lora_alpha=8,
)
set_trainable_params(model, get_adapter_params(model))
loss_fn = CEWithChunkedOutputLoss(num_output_chunks=4)
model.set_num_output_chunks(loss_fn.num_output_chunks)
compile_model(model, verbose=False)
loss_fn = compile_loss(loss_fn, verbose=False)

optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
tokens = torch.randint(0, 128, (2, 17))
for _ in range(3):
    loss = loss_fn(model(tokens[:, :-1]), tokens[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", round(loss.item(), 4))
