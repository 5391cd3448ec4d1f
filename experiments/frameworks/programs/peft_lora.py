# requires: peft transformers accelerate
# mypy: ignore-errors
"""A LoRA adapter on a small causal language model, compiled: steps, then the merged model."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
    use_cache=False,
)
lora = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
model = get_peft_model(LlamaForCausalLM(config), lora)
model.print_trainable_parameters()
tokens = torch.randint(0, 128, (4, 12))

compiled = torch.compile(model, mode="reduce-overhead")
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _ in range(3):
    loss = compiled(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", round(loss.item(), 4))

merged = model.merge_and_unload().eval()
with torch.inference_mode():
    wanted = merged(tokens).logits
    found = torch.compile(merged, mode="max-autotune")(tokens).logits
print("logits", [round(value, 4) for value in found[0, -1, :6].tolist()])
print("as eager", torch.allclose(found, wanted, atol=1e-3))
