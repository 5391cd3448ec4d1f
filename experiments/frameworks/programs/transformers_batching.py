# requires: transformers
# mypy: ignore-errors
"""Continuous batching of transformers: prompts of several lengths, a compiled forward."""

import torch
from transformers import CompileConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation import ContinuousBatchingConfig

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=128,
)
model = LlamaForCausalLM(config).eval()
prompts = [torch.randint(1, 128, (length,)).tolist() for length in (5, 9, 3)]
settings = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0)


def tokens(**options):
    batching = ContinuousBatchingConfig(page_size=16, num_blocks=16, max_batch_tokens=32, **options)
    found = model.generate_batch(
        prompts, generation_config=settings, continuous_batching_config=batching
    )
    return [found[name].generated_tokens for name in sorted(found)]


eager = tokens()
print("tokens", eager)
compile_config = CompileConfig(mode="reduce-overhead", dynamic=True)
print("as eager", tokens(varlen_compile_config=compile_config) == eager)
