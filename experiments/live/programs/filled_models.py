"""One model as a user's program has it, with torch.compile on ``cuda``; filled.py runs it twice.

    python filled_models.py MODEL

Nothing here knows of the stand-in. Weights are random, and the widths are those of the families.
"""

from __future__ import annotations

import sys

import torch


def bert() -> None:
    """A forward of BERT base in half precision, with a mask."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=2)).half().to("cuda").eval()
    compiled = torch.compile(model)
    ids = torch.randint(0, 30000, (4, 128), device="cuda")
    mask = torch.ones_like(ids)
    mask[0, 100:] = 0
    with torch.no_grad():
        for _ in range(2):
            print(compiled(ids, attention_mask=mask).last_hidden_state.float().mean().item())


def gpt2() -> None:
    """Three training steps of GPT-2 with dropout and AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2)).to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model)
    for _ in range(3):
        ids = torch.randint(0, 50257, (2, 256), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(loss.item())


def generate() -> None:
    """16 tokens with a static cache, whose decoding step transformers compiles."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=2,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).to("cuda").eval()
    ids = torch.randint(3, 32000, (1, 12), device="cuda")
    made = model.generate(
        ids, max_new_tokens=16, do_sample=False, cache_implementation="static", pad_token_id=0
    )
    print(tuple(made.shape), made.tolist())


def vit() -> None:
    """A forward of timm's ViT, with reduce-overhead."""
    import timm

    model = timm.create_model("vit_base_patch16_224", num_classes=10).half().to("cuda").eval()
    compiled = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(3):
            images = torch.randn(4, 3, 224, 224, device="cuda", dtype=torch.half)
            print(compiled(images).argmax(-1).tolist())


def convnet() -> None:
    """Two training steps of timm's ResNet-18 in channels_last, with SGD."""
    import timm

    model = timm.create_model("resnet18", num_classes=10)
    model = model.to("cuda", memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    compiled = torch.compile(model)
    for _ in range(2):
        images = torch.randn(8, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
        labels = torch.randint(0, 10, (8,), device="cuda")
        loss = torch.nn.functional.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())


def qwen2() -> None:
    """Three training steps of Qwen2 in bfloat16."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=2,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=32000,
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16).to("cuda").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    compiled = torch.compile(model)
    for _ in range(3):
        ids = torch.randint(0, 32000, (2, 128), device="cuda")
        loss = compiled(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())


def mixer() -> None:
    """A forward of timm's MLP-Mixer, in half precision and for two sizes of batch."""
    import timm

    model = timm.create_model("mixer_s32_224", num_classes=10).half().to("cuda").eval()
    compiled = torch.compile(model)
    with torch.inference_mode():
        for size in (4, 4, 8):
            images = torch.randn(size, 3, 224, 224, device="cuda", dtype=torch.half)
            print(compiled(images).float().mean().item())


def _declare_torchvision() -> None:
    """Let torchvision be imported beside a CPU build: its wheel can't load its operators there."""
    for name in ("torchvision::nms", "torchvision::qnms"):
        torch.library.define(name, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if __name__ == "__main__":
    if torch.version.hip:
        _declare_torchvision()
    {one.__name__: one for one in (bert, gpt2, generate, vit, convnet, qwen2, mixer)}[sys.argv[1]]()
