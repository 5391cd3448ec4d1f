"""What the watchdog costs a short compile: in turn with and without it, in one process.

    python benchmarks/watchdog.py [--rounds N]

It needs torch (any build) and rocm_autopatch. A round compiles a small function with the backend
``eager``, the shortest compile that there is, without and with the patch. Each compile has a frame
and a graph. It prints medians in microseconds, their difference, and what a pair of entries costs
by itself.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["ROCM_AUTOPATCH"] = "off"  # The patch is put on by hand, and taken off.


def main() -> None:
    parser = argparse.ArgumentParser(description="What the watchdog costs a compile.")
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds

    torch: Any = importlib.import_module("torch")
    frames: Any = importlib.import_module("torch._dynamo.convert_frame")
    from rocm_autopatch.patches import watchdog

    bare = frames._compile
    watchdog.apply(frames, [("watchdog.warn_after", 120, "benchmark", "", (), ())], (), False)
    watched = frames._compile

    def graph(module: Any, inputs: Any) -> Any:
        return module.forward

    class Owner:
        fx_codegen_and_compile = staticmethod(graph)

    watchdog._watch_graphs(Owner)
    backends = {bare: graph, watched: Owner.fx_codegen_and_compile}
    x = torch.ones(4)

    def compile_once(way: Callable[..., Any]) -> float:
        torch._dynamo.reset()
        frames._compile = way
        compiled = torch.compile(lambda x: x + 1, backend=backends[way])
        began = time.perf_counter()
        compiled(x)
        return (time.perf_counter() - began) * 1e6

    for way in (bare, watched) * 5:
        compile_once(way)
    times: dict[Any, list[float]] = {bare: [], watched: []}
    for number in range(rounds):
        # In turn, and each is first equally often: if the machine's speed drifts, both see it.
        for way in (bare, watched) if number % 2 else (watched, bare):
            times[way].append(compile_once(way))
    without, with_it = (statistics.median(times[way]) for way in (bare, watched))

    def entries() -> None:
        outer, depth = watchdog._enter("frame", (entries.__code__,), {})
        watchdog._leave(*watchdog._enter("graph", (None,), {}))
        watchdog._leave(outer, depth)

    count = 100_000
    began = time.perf_counter()
    for _ in range(count):
        entries()
    alone = (time.perf_counter() - began) / count * 1e6
    differences = [b - a for a, b in zip(times[bare], times[watched])]
    print(f"torch {torch.__version__}, {rounds} rounds")
    print(f"a compile without the watchdog  {without:9.1f} us")
    print(f"a compile with it               {with_it:9.1f} us   {with_it / without:.4f} times")
    print(f"median difference in a round    {statistics.median(differences):9.1f} us")
    print(f"two entries by themselves       {alone:9.1f} us   {alone / without:.5f} of a compile")


if __name__ == "__main__":
    main()
