"""Compile one model once, as a user would; benchmarks/amd starts this in processes of its own.

    python program.py MODEL [--mode MODE]

Models have the real widths of their families and few layers: layers of a kind share their kernels.
Weights are random, made on the CPU. It prints one line of JSON: seconds of the first call, and what
ended it where something did, such as a capture, which this device has not.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import config as functorch

DEVICE = "cuda"
HALF = torch.bfloat16
Call = Callable[[], Any]


def _tokens(batch: int, length: int) -> Any:
    return torch.zeros(batch, length, dtype=torch.int64, device=DEVICE)


def llama(compiled: Callable[[Any], Any]) -> Call:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(num_hidden_layers=1, num_key_value_heads=8, intermediate_size=14336)
    model = compiled(LlamaForCausalLM(config).to(HALF).to(DEVICE).eval())
    return lambda: model(_tokens(1, 512), use_cache=False)


def bert(compiled: Callable[[Any], Any]) -> Call:
    from transformers import BertConfig, BertModel

    model = compiled(BertModel(BertConfig(num_hidden_layers=1)).to(HALF).to(DEVICE).eval())
    return lambda: model(_tokens(8, 128))


def mixtral(compiled: Callable[[Any], Any]) -> Call:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(num_hidden_layers=1, vocab_size=8192, intermediate_size=3584)
    model = compiled(MixtralForCausalLM(config).to(HALF).to(DEVICE).eval())
    return lambda: model(_tokens(1, 256), use_cache=False)


def vit(compiled: Callable[[Any], Any]) -> Call:
    model = _timm("vit_base_patch16_224", depth=1)
    call = compiled(model)
    return lambda: call(torch.zeros(8, 3, 224, 224, dtype=HALF, device=DEVICE))


def convnext(compiled: Callable[[Any], Any]) -> Call:
    call = compiled(_timm("convnext_tiny", depths=(1, 1, 1, 1)))
    return lambda: call(torch.zeros(8, 3, 224, 224, dtype=HALF, device=DEVICE))


def unet(compiled: Callable[[Any], Any]) -> Call:
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=64,
        layers_per_block=1,
        block_out_channels=(320,),
        down_block_types=("CrossAttnDownBlock2D",),
        up_block_types=("CrossAttnUpBlock2D",),
        cross_attention_dim=768,
    )
    call = compiled(model.to(HALF).to(DEVICE).eval())
    sample = torch.zeros(2, 4, 64, 64, dtype=HALF, device=DEVICE)
    text = torch.zeros(2, 77, 768, dtype=HALF, device=DEVICE)
    step = torch.zeros(2, dtype=torch.int64, device=DEVICE)
    return lambda: call(sample, step, text)


def gpt2(compiled: Callable[[Any], Any]) -> Call:
    """A training step: forward, loss, backward, and the compiled step of the optimizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=1)).to(HALF).to(DEVICE).train()
    optimizer = torch.optim.AdamW(model.parameters(), capturable=True)
    call = compiled(model)
    step = compiled(optimizer.step)

    def train() -> None:
        tokens = _tokens(4, 256)
        call(tokens, labels=tokens, use_cache=False).loss.backward()
        step()

    return train


def gemm(compiled: Callable[[Any], Any]) -> Call:
    call = compiled(lambda a, b: torch.nn.functional.gelu(a @ b))
    a = torch.zeros(512, 1024, dtype=HALF, device=DEVICE)
    b = torch.zeros(1024, 2048, dtype=HALF, device=DEVICE)
    return lambda: call(a, b)


MODELS = {each.__name__: each for each in (llama, bert, mixtral, vit, convnext, unet, gpt2, gemm)}


def _timm(name: str, **options: Any) -> Any:
    import timm

    return timm.create_model(name, **options).to(HALF).to(DEVICE).eval()


def _declare_torchvision() -> None:
    """Let torchvision be imported, whose wheel for GPUs can't load its operators here.

    timm and transformers import it. Their models use none of the operators, but torchvision wants
    to know two signatures.
    """
    for name in ("torchvision::nms", "torchvision::qnms"):
        torch.library.define(name, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def main() -> None:
    """Compile the model and print what it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--mode")
    arguments = parser.parse_args()
    _declare_torchvision()
    torch.manual_seed(0)
    # A call under a mode with graphs ends before the backward would be compiled.
    functorch.force_non_lazy_backward_lowering = True
    call = MODELS[arguments.model](lambda one: torch.compile(one, mode=arguments.mode))
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    ended = ""
    try:
        if arguments.model == "gpt2":
            call()
        else:
            with torch.no_grad():
                call()
    except RuntimeError as error:
        if "compiles and does not run" not in str(error):
            raise
        ended = str(error).partition("no result: ")[2]
    after = resource.getrusage(resource.RUSAGE_SELF)
    from torch._dynamo.utils import counters

    result = {
        "seconds": time.monotonic() - start,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "ended": ended,
        "kernels": counters["inductor"]["async_compile_cache_miss"],
        "library_calls": counters["inductor"]["extern_calls"],
        "benchmarked": counters["inductor"]["benchmarking.InductorBenchmarker.benchmark_gpu"],
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }
    print(json.dumps(result), file=sys.stdout)


if __name__ == "__main__":
    main()
