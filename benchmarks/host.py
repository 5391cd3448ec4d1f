# mypy: disable-error-code="import-not-found, no-any-return"
"""What a call of each way to graphs costs the host, beside each other in one process.

    python benchmarks/host.py [--small] [--weights 36 300] [--rounds 60]

It needs a GPU, torch and the wheel, and runs with the hook off. A model is a row of layers with one
weight and one bias each. Microseconds are medians over rounds of 20 calls, issued to an idle GPU;
in each round the ways take turns. With --small, a stand-in takes the place of the GPU, and its
replays do nothing: what is left is what the host does.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import ways

from rocm_autopatch.graphs import capture, graphed

_CALLS = 20


def timed(call: Callable[[], Any], wait: Callable[[], Any]) -> float:
    """Microseconds of a call."""
    wait()
    began = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - began) * 1e6 / _CALLS


def make_ways(model: Any) -> dict[str, Callable[..., Any]]:
    """By name, each way to call a model with graphs."""
    return {
        'graphed, guards="all"': graphed(model),
        'graphed, guards="none"': graphed(model, guards="none"),
        "graphed(torch.compile)": graphed(torch.compile(model, dynamic=False)),
        "the mode": torch.compile(model, dynamic=False, mode="reduce-overhead"),
        "compiled, no graph": torch.compile(model, dynamic=False, backend="eager"),
    }


def without_work() -> None:
    """Have replays of the stand-in do nothing."""
    real = capture.CapturePool.capture

    def emptied(self: Any, *args: Any) -> Any:
        _, result = real(self, *args)
        return (lambda: None), result

    capture.CapturePool.capture = emptied  # type: ignore[assignment,method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--weights", type=int, nargs="+", default=[36, 300])
    parser.add_argument("--rounds", type=int, default=60)
    asked = parser.parse_args()
    device = "cpu" if asked.small else "cuda"
    ways.apply("graphs", asked.small)
    if asked.small:
        without_work()
    wait = (lambda: None) if asked.small else torch.cuda.synchronize
    where = "a CPU, replays that do nothing" if asked.small else torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {where}; microseconds of the host for a call")
    for weights in asked.weights:
        layers = [torch.nn.Linear(4, 4) for _ in range(weights // 2)]
        model = torch.nn.Sequential(*layers).to(device).requires_grad_(False)
        x = torch.randn(2, 4, device=device)
        with torch.no_grad():
            made = make_ways(model)
            for call in made.values():
                for _ in range(6):
                    call(x)
            rounds = [
                {name: timed(functools.partial(call, x), wait) for name, call in made.items()}
                for _ in range(asked.rounds)
            ]
        for name in made:
            middle = statistics.median(one[name] for one in rounds)
            print(f"{weights:4} weights  {name:24} {middle:8.1f} us", flush=True)


if __name__ == "__main__":
    main()
