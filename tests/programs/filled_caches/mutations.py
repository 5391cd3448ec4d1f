"""Prints, as JSON, what the caches of graphs had of each of many changes of one function.

A row is [hits, misses]. ``same`` is the function as it is, first to fill and then to find.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Callable

import torch
from torch._dynamo.utils import counters
from torch._inductor import config

SCALE = 2.0


def make(text: str, **names: Any) -> Callable[..., Any]:
    names = {"torch": torch, "SCALE": SCALE, **names}
    exec(f"def f(x):\n    return {text}", names)
    found: Callable[..., Any] = names["f"]
    return found


def closed(factor: float) -> Callable[..., Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * factor + 1).softmax(-1)

    return f


class Scaled(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * self.scale).softmax(-1)


def rows(*size: int, **options: Any) -> torch.Tensor:
    return torch.ones(*size, **{"device": "cuda", "dtype": torch.float32, **options})


def look(function: Callable[..., Any], x: torch.Tensor, **options: Any) -> list[int]:
    torch._dynamo.reset()
    counters.clear()
    torch.compile(function, **options)(x)
    return [
        counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"],
        counters["aot_autograd"]["autograd_cache_miss"]
        + counters["inductor"]["fxgraph_cache_miss"],
    ]


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


TEXT = "(x.sin() * SCALE + 1).softmax(-1)"
X = rows(32, 256)
found: dict[str, list[int]] = {}
with torch.no_grad():
    found["filled"] = look(make(TEXT), X)
    found["same"] = look(make(TEXT), X)
    for name, text in {
        "another operator": TEXT.replace("sin", "cos"),
        "another number": TEXT.replace("+ 1", "+ 3"),
        "another order": TEXT.replace("x.sin() * SCALE + 1", "1 - x.sin() * SCALE"),
        "another dimension": TEXT.replace("-1", "0"),
        "one operator more": TEXT + ".relu()",
        "one output more": f"({TEXT}, x + 1)",
        "another type inside": TEXT.replace("x.sin()", "x.sin().half()"),
    }.items():
        found[name] = look(make(text), X)
    found["another global"] = look(make(TEXT, SCALE=3.0), X)
    found["closure filled"] = look(closed(5.0), X)
    found["another closure"] = look(closed(6.0), X)
    found["attribute filled"] = look(Scaled(7.0), X)
    found["another attribute"] = look(Scaled(8.0), X)
    same = make(TEXT)
    found["another shape"] = look(same, rows(32, 512))
    found["another type"] = look(same, rows(32, 256, dtype=torch.float16))
    found["another stride"] = look(same, rows(256, 32).t())
    found["dynamic"] = look(same, X, dynamic=True)
    for name, change in {
        "max_fusion_size": {"max_fusion_size": 3},
        "epilogue_fusion": {"epilogue_fusion": False},
        "split_reductions": {"split_reductions": False},
        "fallback_random": {"fallback_random": True},
    }.items():
        with config.patch(change):
            found[f"config {name}"] = look(same, X)
    found["options"] = look(same, X, options={"triton.persistent_reductions": False})
    with torch.autocast("cuda", torch.float16):
        found["autocast"] = look(make("(x @ x.t()).sin()"), X)
    found["without autocast"] = look(make("(x @ x.t()).sin()"), X)
    with default_dtype(torch.float64):
        found["default dtype"] = look(same, X)
    torch.use_deterministic_algorithms(True)
    found["deterministic"] = look(same, X)
    torch.use_deterministic_algorithms(False)
found["gradients"] = look(make(TEXT), rows(32, 256, requires_grad=True))
print(json.dumps(found))
