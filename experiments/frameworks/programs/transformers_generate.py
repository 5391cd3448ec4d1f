# requires: transformers
# mypy: ignore-errors
"""Text generation with a static cache and a compiled forward, as the transformers docs show it."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
model = LlamaForCausalLM(config).eval()
prompt = torch.randint(0, 256, (2, 12))
options = {
    "attention_mask": torch.ones_like(prompt),
    "max_new_tokens": 8,
    "min_new_tokens": 8,
    "do_sample": False,
    "pad_token_id": 0,
    "return_dict_in_generate": True,
    "output_logits": True,
}

eager = model.generate(prompt, **options)
model.forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
found = model.generate(prompt, cache_implementation="static", **options)
print("tokens", found.sequences.tolist())
print("logits", [round(float(one.abs().mean()), 4) for one in found.logits])
print("as eager", torch.equal(found.sequences, eager.sequences))
