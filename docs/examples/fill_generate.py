r"""Fill caches for a program that generates with transformers, without its weights.

    rocm-autopatch cache fill --for mi300x -- \
        python fill_generate.py MODEL --new 256 --prompts 32 512

With zeros for logits, each token is 0. Where that ends the text, the program itself would stop
before it compiles a step of decoding; min_new_tokens goes on. Shapes are all that counts: take the
dtype, the batch, --new and the lengths of prompts that the program has. The length of the cache
follows from the first two numbers.
"""

import argparse

import torch
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("model", help="a directory or a name with a config.json")
parser.add_argument("--new", type=int, required=True, help="the program's max_new_tokens")
parser.add_argument("--prompts", type=int, nargs="+", required=True, help="lengths, in tokens")
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--dtype", default="bfloat16")
asked = parser.parse_args()

config = AutoConfig.from_pretrained(asked.model)
model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, asked.dtype))
model = model.to("cuda").eval()
for length in asked.prompts:
    ids = torch.ones(asked.batch, length, dtype=torch.long, device="cuda")
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        cache_implementation="static",
        do_sample=False,
        max_new_tokens=asked.new,
        min_new_tokens=asked.new,
    )
    print(f"{length} tokens of prompt: {made.shape[1] - length} new ones")
