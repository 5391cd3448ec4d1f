# mypy: disable-error-code="import-not-found, no-any-return"
"""The parts of a call of ``graphed`` on the host, each timed alone.

    python benchmarks/host.py [--small]

It needs a GPU, torch and the wheel, and runs with the hook off. The model is the convolution net of
graphs.py, with 36 weights and buffers, and a batch of 8. Microseconds are medians over rounds of 20
calls, issued to an idle GPU. A part costs more alone than within the call: it includes the call of
a Python function, which the line "nothing" tells. With --small, the stand-in and a CPU try the
script.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import ways
from graphs import ConvNet

from rocm_autopatch.graphs import capture, graphed, watch, wrapper

_ROUNDS, _CALLS = 60, 20


def timed(part: Callable[[], Any], wait: Callable[[], Any], rounds: int) -> float:
    """Microseconds of a part."""
    found = []
    for _ in range(rounds):
        wait()
        began = time.perf_counter()
        for _ in range(_CALLS):
            part()
        found.append((time.perf_counter() - began) * 1e6 / _CALLS)
    return statistics.median(found)


def parts(call: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """What a call does, by name; *call* has a graph for *x*."""
    graphs, watched = call._graphs, call._watched
    key, entry = graphs._recent
    leaves = [x]
    return {
        "nothing": lambda: None,
        "the call": lambda: call(x),
        "copy in": lambda: entry.inputs.copy(leaves, ()),
        "replay": lambda: entry.graph(),
        "clone": lambda: entry.outputs.take((), leaves),
        "of it, to allocate": lambda: torch.empty_like(entry.outputs.leaves[0]),
        "signature": lambda: call._signatures.again((x,)),
        "the same weights": watched.same,
        "attributes of modules": watched.attributes,
        "addresses of weights": lambda: watch.same_places(
            watched.tensors, entry.places, entry.indices
        ),
        "capture under way": capture.capturing,
        "modes": lambda: (
            wrapper._is_compiling(),
            wrapper._grad_enabled(),
            wrapper._dispatch_modes(),
            wrapper._function_modes(),
            wrapper._transforms(),
        ),
        "settings": lambda: (
            wrapper._inference_mode(),
            wrapper._autocast(),
            wrapper._default_dtype(),
            wrapper._precision(),
            wrapper._deterministic(),
        ),
        "comparing keys": lambda: key == graphs._recent[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    device = "cpu" if small else "cuda"
    ways.apply("graphs", small)
    wait = (lambda: None) if small else torch.cuda.synchronize
    print(f"torch {torch.__version__}, {'a CPU' if small else torch.cuda.get_device_name()}, bf16")
    with torch.no_grad():
        model = ConvNet().to(device, torch.bfloat16).eval().requires_grad_(False)
        x = torch.randn(8, 3, 32, 32, device=device, dtype=torch.bfloat16)
        call = graphed(model if small else torch.compile(model, dynamic=False))
        for _ in range(6):
            call(x)
        for name, part in parts(call, x).items():
            print(f"{name:22} {timed(part, wait, 1 if small else _ROUNDS):8.2f} us", flush=True)


if __name__ == "__main__":
    main()
