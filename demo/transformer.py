# mypy: disable-error-code="import-not-found, no-any-return", allow-subclassing-any
"""Serve a small decoder: compile it in the worker thread, time it, print one line of JSON.

A program like any other. It asks for a compile mode, as programs for GPUs do, and knows nothing of
the image in which it runs.
"""

from __future__ import annotations

import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
import torch._inductor.config as inductor
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 128
# Two shapes of GEMMs, because each one costs a compile some seconds.
WIDE = VOCABULARY = 3 * WIDTH
HEADS = 4
LAYERS = 2
TOKENS = 64
WARM_CALLS = 300


class Block(nn.Module):
    """Causal attention and an MLP, each behind a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, WIDE)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        q, k, v = (
            part.view(batch, tokens, HEADS, -1).transpose(1, 2)
            for part in self.qkv(self.attention_norm(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    """Token numbers in, logits of the next token out."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def serve() -> dict[str, object]:
    """What a worker does: load, compile, answer."""
    # Only for inference: weights may be folded into the graph. Since torch 2.12, only the thread
    # that writes the value sees it.
    inductor.freezing = True
    torch.manual_seed(0)
    model = torch.compile(Decoder().eval(), mode="reduce-overhead")
    prompt = torch.randint(VOCABULARY, (1, TOKENS))
    with torch.no_grad():
        start = time.perf_counter()
        logits = model(prompt)
        cold = time.perf_counter() - start
        warm = []
        for _ in range(WARM_CALLS):
            start = time.perf_counter()
            logits = model(prompt)
            warm.append(time.perf_counter() - start)
    return {
        "cold_compile_s": round(cold, 3),
        "warm_call_s": round(statistics.median(warm), 6),
        "checksum": logits.double().abs().sum().item(),
        "logits": logits[0, -1, :32].tolist(),
    }


if __name__ == "__main__":
    with ThreadPoolExecutor(max_workers=1) as worker:
        print(json.dumps(worker.submit(serve).result()))
