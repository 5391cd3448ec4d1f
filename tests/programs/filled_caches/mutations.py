"""Prints, as JSON, what the caches of graphs had of each of many changes of one program.

A row is [hits, misses, bypasses]. A name that ends in "again" is the program as it is, once more;
the one before it fills. Of "a half: ...", the other graph is as it was.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import torch
from torch._dynamo.utils import counters
from torch._inductor import config

Function = Callable[..., Any]
SCALE = 2.0
TEXT = "(x.sin() * SCALE + 1).softmax(-1)"
found: dict[str, list[int]] = {}


def make(text: str, **names: Any) -> Function:
    names = {"torch": torch, "SCALE": SCALE, **names}
    exec(f"def f(x):\n    return {text}", names)
    made: Function = names["f"]
    return made


def edited(name: str, old: str = "", new: str = "") -> Function:
    """``f`` of a module, with a change, that is written to the same file as the one before."""
    text = (Path(__file__).parent / "edited" / f"{name}.py").read_text()
    assert old in text
    text = text.replace(old, new) if old else text
    path = Path(tempfile.gettempdir(), "edited.py")
    path.write_text(text)
    linecache.clearcache()
    names: dict[str, Any] = {"__name__": "edited", "__file__": str(path)}
    exec(compile(text, str(path), "exec"), names)
    made: Function = names["f"]
    return made


def closed(factor: float) -> Function:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * factor + 1).softmax(-1)

    return f


def with_default(factor: float) -> Function:
    def f(x: torch.Tensor, by: float = factor) -> torch.Tensor:
        return (x.cos() * by + 1).softmax(-1)

    return f


class Scaled(torch.nn.Module):
    def __init__(self, scale: float, training: bool = False, size: int = 256) -> None:
        super().__init__()
        self.scale = scale
        self.norm = torch.nn.LayerNorm(size, device="cuda")
        self.drop = torch.nn.Dropout(0.25)
        self.train(training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x.sin() * self.scale))


def rows(*size: int, **options: Any) -> torch.Tensor:
    return torch.ones(*size, **{"device": "cuda", "dtype": torch.float32, **options})


X = rows(32, 256)


def look(name: str, function: Function, *given: Any, **options: Any) -> None:
    torch._dynamo.reset()
    counters.clear()
    returned = torch.compile(function, **options)(*(given or (X,)))
    if isinstance(returned, torch.Tensor) and returned.requires_grad:
        returned.sum().backward()
    assert name not in found, name
    found[name] = [
        counters["aot_autograd"][f"autograd_cache_{what}"]
        + counters["inductor"][f"fxgraph_cache_{what}"]
        for what in ("hit", "miss", "bypass")
    ]


@contextlib.contextmanager
def set_by(change: Callable[[Any], None], value: Any, before: Any) -> Iterator[None]:
    change(value)
    try:
        yield
    finally:
        change(before)


OPERATORS = {
    "another operator": TEXT.replace("sin", "cos"),
    "another number": TEXT.replace("+ 1", "+ 3"),
    "a number of another type": TEXT.replace("+ 1", "+ 1.5"),
    "another order": TEXT.replace("x.sin() * SCALE + 1", "1 - x.sin() * SCALE"),
    "another dimension": TEXT.replace("-1", "0"),
    "one operator more": TEXT + ".relu()",
    "one operator less": TEXT.replace(".sin()", ""),
    "one output more": f"({TEXT}, x + 1)",
    "outputs in another order": f"(x + 1, {TEXT})",
    "another type inside": TEXT.replace("x.sin()", "x.sin().half()"),
    "another type at the end": TEXT + ".bfloat16()",
    "a write to the input": TEXT.replace("x.sin()", "x.sin_()"),
    "a view at the end": TEXT + ".view(-1)",
    "another view at the end": TEXT + ".view(256, 32)",
    "keepdim": "x.sum(-1, keepdim=True)",
    "without keepdim": "x.sum(-1)",
    "a sum of two": "x.sum((0, 1))",
    "a mean": "x.mean(-1)",
    "unbiased": "x.var(-1)",
    "biased": "x.var(-1, correction=0)",
    "gelu": "torch.nn.functional.gelu(x)",
    "gelu of tanh": "torch.nn.functional.gelu(x, approximate='tanh')",
    "leaky": "torch.nn.functional.leaky_relu(x, 0.1)",
    "leaky of another slope": "torch.nn.functional.leaky_relu(x, 0.2)",
    "clamped": "x.clamp(0, 1)",
    "clamped on one side": "x.clamp(min=0)",
    "epsilon": "torch.nn.functional.layer_norm(x, (256,), eps=1e-5)",
    "another epsilon": "torch.nn.functional.layer_norm(x, (256,), eps=1e-6)",
    "largest": "x.topk(3).values.sin()",
    "smallest": "x.topk(3, largest=False).values.sin()",
    "rounded down": "torch.div(x, 3, rounding_mode='floor')",
    "rounded to zero": "torch.div(x, 3, rounding_mode='trunc')",
    "padded": "torch.nn.functional.pad(x, (1, 2)).sin()",
    "padded on the other side": "torch.nn.functional.pad(x, (2, 1)).sin()",
    "padded with another value": "torch.nn.functional.pad(x, (1, 2), value=3.0).sin()",
    "random": "torch.rand_like(x) + x",
    "random of a normal": "torch.randn_like(x) + x",
    "rolled": "x.roll(1, 0).sin()",
    "rolled by two": "x.roll(2, 0).sin()",
}
CONFIGS = "@triton.autotune(configs=[triton.Config(kwargs={})], key=[])\n"
KERNELS = {
    "kernel": ("at < n)) + LIMIT", "at < n)) - LIMIT"),
    "what a kernel calls": ("return x * 2", "return x * 3"),
    "a kernel's global": ("constexpr(2)", "constexpr(3)"),
    "a kernel's argument": ("B=64", "B=128"),
    "a kernel's grid": ("x.numel(), 64)", "x.numel(), 32)"),
    "a kernel's warps": ("B=64", "B=64, num_warps=2"),
    "a kernel's stages": ("B=64", "B=64, num_stages=1"),
    "a kernel's configs": ("@triton.jit\ndef kernel", CONFIGS + "@triton.jit\ndef kernel"),
    "a kernel's config": (
        "@triton.jit\ndef kernel",
        CONFIGS.replace("={}", "={}, num_warps=8") + "@triton.jit\ndef kernel",
    ),
}
PARTS = {
    "a branch": ("branches", "+ 5", "+ 50"),
    "the other branch": ("branches", "+ 6", "+ 60"),
    "a condition": ("branches", "sum() > 0", "sum() > 1"),
    "what is recomputed": ("recomputed", "x * 7", "x * 70"),
    "a backward of other values": (
        *("recomputed", "checkpoint(body, x, use_reentrant=False)", "body(x)"),
    ),
    "a half: forward of a function": ("function", "x * 2", "x * 20"),
    "a half: backward of a function": ("function", "* 4", "* 40"),
}
SETTINGS = {
    "max_fusion_size": 3,
    "epilogue_fusion": False,
    "split_reductions": False,
    "fallback_random": True,
    "aggressive_fusion": True,
    "pattern_matcher": False,
    "permute_fusion": True,
    "size_asserts": False,
    "nan_asserts": True,
    "inplace_buffers": False,
    "allow_buffer_reuse": False,
    "unroll_reductions_threshold": 1,
    "emulate_precision_casts": True,
    "comment_origin": True,
    "debug_index_asserts": True,
    "triton.multi_kernel": 1,
    "triton.unique_kernel_names": False,
    "triton.persistent_reductions": False,
    "triton.cooperative_reductions": True,
    "triton.divisible_by_16": False,
    "triton.codegen_upcast_to_fp32": False,
    "triton.dense_indexing": True,
    "triton.max_tiles": 1,
    "triton.prefer_nd_tiling": True,
}

with torch.no_grad():
    look("filled", make(TEXT))
    look("filled again", make(TEXT))
    for name, text in OPERATORS.items():
        look(name, make(text), X.clone())
    look("another global", make(TEXT, SCALE=3.0))
    look("closure", closed(5.0))
    look("closure again", closed(5.0))
    look("another closure", closed(6.0))
    look("default", with_default(5.0))
    look("another default", with_default(6.0))
    look("module", Scaled(7.0))
    look("module again", Scaled(7.0))
    look("another attribute", Scaled(8.0))
    look("module in training", Scaled(7.0, training=True))
    look("module of another size", Scaled(7.0, size=128), rows(32, 128))

    same = make(TEXT)
    look("another shape", same, rows(32, 512))
    look("one row", same, rows(1, 256))
    look("no row", same, rows(0, 256))
    look("another rank", same, rows(2, 16, 256))
    look("float16", same, rows(32, 256, dtype=torch.float16))
    look("bfloat16", same, rows(32, 256, dtype=torch.bfloat16))
    look("float64", same, rows(32, 256, dtype=torch.float64))
    look("another stride", same, rows(256, 32).t())
    look("expanded", same, rows(1, 256).expand(32, 256))
    look("on the CPU", same, torch.ones(32, 256))
    look("dynamic", same, X, dynamic=True)
    look("dynamic again", same, X, dynamic=True)
    look("dynamic, with another guard", make(TEXT + "[: x.shape[0] // 2]"), X, dynamic=True)

    for name, value in SETTINGS.items():
        with config.patch({name: value}):
            look(f"config {name}", same)
    look("options", same, X, options={"max_fusion_size": 5})
    product = make("(x @ x.t()).sin()")
    with torch.autocast("cuda", torch.float16):
        look("autocast", product)
    with torch.autocast("cuda", torch.bfloat16):
        look("autocast to another type", product)
    look("without autocast", product)
    with set_by(torch.set_float32_matmul_precision, "high", "highest"):
        look("another precision", product)
    with set_by(torch.set_default_dtype, torch.float64, torch.float32):
        look("default dtype", same)
    with set_by(torch.use_deterministic_algorithms, True, False):
        look("deterministic", same)
    look("with a kernel", edited("kernel"))
    look("with a kernel again", edited("kernel"))
    for name, change in KERNELS.items():
        look(name, edited("kernel", *change))

look("gradients", make(TEXT), X.clone().requires_grad_())
for module in ("branches", "recomputed", "function"):
    for name in (module, f"{module} again"):
        look(name, edited(module), X.clone().requires_grad_(module != "branches"))
for name, (module, old, new) in PARTS.items():
    look(name, edited(module, old, new), X.clone().requires_grad_(module != "branches"))
print(json.dumps(found))
