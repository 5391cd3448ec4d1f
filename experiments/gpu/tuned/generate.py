"""transformers' generate with a static cache, which transformers itself compiles."""

import argparse
import time

import timing
import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true", help="for a CPU")
small = parser.parse_args().small
device = "cpu" if small else "cuda"
torch.manual_seed(0)
torch.set_num_threads(1)
width, layers, tokens = (64, 1, 4) if small else (4096, 2, 16)
sequences, length = (1, 64) if small else (128, 2048)
config = LlamaConfig(
    vocab_size=1000,
    hidden_size=width,
    intermediate_size=2 * width if small else 14336,
    num_hidden_layers=layers,
    num_attention_heads=8 if small else 32,
    num_key_value_heads=4 if small else 8,
    max_position_embeddings=8192,
)
# Layers of the size that a model of 8 billion weights has, and a cache for long texts: a token
# takes the GPU longer than the host, whose times differ more from run to run.
torch.set_default_dtype(torch.float32 if small else torch.bfloat16)
with torch.device(device):
    model = LlamaForCausalLM(config).eval()
if small:
    # transformers compiles generate on GPUs only.
    model.forward = torch.compile(model.forward)
prompt = torch.randint(0, 1000, (sequences, 32), device=device)
cache = StaticCache(config=config, max_cache_len=length)


def text() -> tuple[float, torch.Tensor]:
    """The seconds of a call, and the logits of its first token that is compiled."""
    cache.reset()
    began = time.perf_counter()
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        past_key_values=cache,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    logits = torch.stack(found.logits)
    logits.float().sum().item()
    return time.perf_counter() - began, logits[1]


text()
seconds, logits = timing.median_of(text)
print(f"token: {seconds / tokens * 1e3:.5f} ms")
torch.save(logits.float().cpu(), "generate.pt")
