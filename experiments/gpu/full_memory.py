# mypy: disable-error-code="import-not-found, no-any-return"
"""On a GPU whose memory is all in torch's cache: does a first step find what it needs?

    python experiments/gpu/full_memory.py [--ways compiled ours]

It needs a GPU that nobody else uses, torch and our wheel, and runs with the hook off. Each process
allocates blocks until there is no more, frees them, so that torch's allocator has all of the memory
(``cached``), and makes its first steps: of a compiled model without gradients, or forward, backward
and optimizer. What they need is many times what the device has left. In ``split``, a tensor of
2 MiB stays in each block, so that torch can give none of them back. A line of JSON for each says
how it ended: as wanted, no way raises OutOfMemoryError where ``compiled``, which has no graphs,
does not. The exit status is 1 otherwise. Processes use the GPU one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WAYS, PROGRAMS, KINDS = ("compiled", "ours"), ("inference", "training"), ("cached", "split")
# The bytes of a block, of an activation (in bfloat16), and of what stays in a block.
BLOCK, ACTIVATION, STAYS = 5 << 30, 4 << 30, 2 << 20
WIDTH, LAYERS, STEPS = 4096, 3, 8


def gib(number: int) -> float:
    return round(number / 2**30, 1)


def fill(torch: Any, split: bool) -> list[Any]:
    """Have all memory in torch's cache. Returns what stays of each block."""
    blocks: list[Any] = []
    stay: list[Any] = []
    while True:
        try:
            block = torch.empty(BLOCK, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            return stay
        if split:
            del block
            stay.append(torch.empty(STAYS, dtype=torch.uint8, device="cuda"))
            block = torch.empty(BLOCK - STAYS, dtype=torch.uint8, device="cuda")
        blocks.append(block)


def program(torch: Any, name: str) -> Callable[[], Any]:
    layer = torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()
    model = torch.nn.Sequential(*layer * LAYERS).to("cuda", torch.bfloat16)
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    # Fewer elements than a number of 32 bits can count.
    rows = ACTIVATION // 2 // WIDTH - WIDTH
    if name == "inference":

        def call() -> Any:
            with torch.inference_mode():
                return compiled(torch.ones(rows, WIDTH, dtype=torch.bfloat16, device="cuda"))[0, 0]

        return call
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)

    def step() -> Any:
        optimizer.zero_grad()
        x = torch.ones(rows, WIDTH, dtype=torch.bfloat16, device="cuda")
        loss = compiled(x).mean()
        del x
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def one(way: str, name: str, kind: str) -> None:
    import torch
    import torch._inductor.compile_fx

    sys.path.insert(0, str(ROOT / "benchmarks"))
    import ways

    from rocm_autopatch.patches import compile_modes

    ways.apply(compile_modes.TRAINING_GRAPHS if way == "ours" else "default", small=False)
    free, total = torch.cuda.mem_get_info()
    call = program(torch, name)
    stay = fill(torch, kind == "split")
    torch.cuda.reset_peak_memory_stats()
    said: dict[str, Any] = {
        "way": way,
        "program": name,
        "kind": kind,
        "GiB": {"total": gib(total), "free": gib(free), "left": gib(torch.cuda.mem_get_info()[0])},
        "steps": 0,
        "error": "",
    }
    try:
        for _ in range(STEPS):
            said["value"] = call().item()
            said["steps"] += 1
    except torch.OutOfMemoryError as error:
        said["error"] = str(error)[:300]
    del stay
    said["GiB"]["peak"] = gib(torch.cuda.max_memory_allocated())
    said["graphs"] = ways.graphs()
    print(json.dumps(said), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="First steps where torch's cache has the memory.")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(*asked.one)
        return 0
    ends: dict[tuple[str, ...], str] = {}
    for case in product(asked.ways, PROGRAMS, KINDS):
        done = subprocess.run(
            [sys.executable, __file__, "--one", *case],
            env={**os.environ, "ROCM_AUTOPATCH": "off"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            ends[case] = f"status {done.returncode}: {done.stderr[-2000:]}"
            print(case, ends[case], flush=True)
            continue
        line = done.stdout.splitlines()[-1]
        ends[case] = json.loads(line)["error"]
        print(line, flush=True)
    return int(any(error and not ends.get((WAYS[0], *case[1:])) for case, error in ends.items()))


if __name__ == "__main__":
    sys.exit(main())
