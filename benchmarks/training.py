# mypy: disable-error-code="import-not-found, no-any-return"
"""A training step on a GPU: eager, compiled, with Inductor's own graphs, and with ours.

    python benchmarks/training.py [--model gpt2 bert vit] [--ways ...] [--rounds 3] [--json FILE]

It needs a GPU, torch, transformers and the wheel, and runs with the hook off. Each way runs in a
process of its own, in turn: before that, all processes of a model fill their caches beside each
other. Forward, backward and fused AdamW, in bfloat16 by autocast; dropout is on. Milliseconds of a
step are medians of blocks of 20 steps, which wait for the GPU at their end, and then of processes.
Memory is what torch had reserved on the device: at most, and in the end, when all graphs are
captured. The losses of all ways must be near. With --small, a tiny model on a CPU tries the script.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

import torch
import ways

WAYS = ("eager", "compiled", "native", "ours")
MODELS = ("gpt2", "bert", "vit")
WARM, BLOCKS, STEPS = 15, 5, 20


def made(model: str, small: bool) -> tuple[Any, dict[str, Any]]:
    """A model and the arguments of a step."""
    import transformers

    device = "cpu" if small else "cuda"
    if model == "vit":
        size: dict[str, Any] = {"num_hidden_layers": 1, "hidden_size": 48, "intermediate_size": 64}
        config: Any = transformers.ViTConfig(
            **({**size, "num_attention_heads": 2} if small else {})
        )
        arguments = {
            "pixel_values": torch.randn(1 if small else 16, 3, 224, 224, device=device),
            "labels": torch.zeros(1 if small else 16, dtype=torch.long, device=device),
        }
        return transformers.ViTForImageClassification(config).to(device).train(), arguments
    tokens = torch.randint(0, 1000, (2, 16) if small else (8, 256), device=device)
    if model == "bert":
        size = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
        config = transformers.BertConfig(**(size if small else {}))
        kind: Any = transformers.BertForMaskedLM
    else:
        size = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 1000}
        config = transformers.GPT2Config(**(size if small else {"n_layer": 6}))
        kind = transformers.GPT2LMHeadModel
    return kind(config).to(device).train(), {"input_ids": tokens, "labels": tokens}


def one(way: str, name: str, small: bool) -> None:
    """Print what a way needs in this process."""
    if way == "ours":
        ways.apply("training-graphs", small)
    torch.manual_seed(0)
    model, arguments = made(name, small)
    call = {
        "eager": lambda: model,
        "compiled": lambda: torch.compile(model),
        # Options, because a mode's name would go through our table.
        "native": lambda: torch.compile(
            model, options={} if small else {"triton.cudagraphs": True}
        ),
        "ours": lambda: torch.compile(model, mode="reduce-overhead"),
    }[way]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    device = "cpu" if small else "cuda"
    wait: Callable[[], object] = (lambda: None) if small else torch.cuda.synchronize

    def step() -> Any:
        if way == "native":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = call(**arguments).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses, times = [], []
    for _ in range(WARM + 1):
        began = time.perf_counter()
        losses.append(step().item())
        times.append(time.perf_counter() - began)
    blocks = []
    for _ in range(BLOCKS):
        wait()
        began = time.perf_counter()
        for _ in range(1 if small else STEPS):
            loss = step()
        wait()
        blocks.append(1000 * (time.perf_counter() - began) / STEPS)
    losses.append(loss.item())
    found: dict[str, Any] = {
        "way": way,
        "model": name,
        "first_seconds": sum(times[:3]),
        "ms": median(blocks),
        "losses": [losses[0], losses[WARM], losses[-1]],
        "most_and_last_mb": []
        if small
        else [
            torch.cuda.max_memory_reserved() / 1e6,
            torch.cuda.memory_reserved() / 1e6,
        ],
    }
    if way == "ours":
        found["graphs"] = ways.graphs()
    print(json.dumps(found))


def started(way: str, name: str, small: bool) -> dict[str, Any] | None:
    """What a process says of a way; None if it fails."""
    arguments = ["--model", name, "--one", way, *(["--small"] if small else [])]
    return ways.started(__file__, arguments, f"{name} {way}")


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """Print a model's rows: medians, and ratios to native."""
    native = [row for row in rows if row["way"] == "native"]
    for way in WAYS:
        own = [row for row in rows if row["way"] == way]
        if not own:
            continue
        words = [f"{name} {way:8} {median(row['ms'] for row in own):8.3f} ms a step"]
        memory = own[0]["most_and_last_mb"]
        if memory:
            words.append("{:.0f} MB at most, {:.0f} in the end".format(*memory))
        if native:
            ratio = median(row["ms"] for row in own) / median(row["ms"] for row in native)
            words.append(f"{ratio:.3f} of native's time")
        if native and memory:
            ratios = [a / b for a, b in zip(memory, native[0]["most_and_last_mb"])]
            words.append("{:.2f} and {:.2f} of its memory".format(*ratios))
        losses = ", ".join(f"{loss:.4f}" for loss in own[0]["losses"])
        print("; ".join([*words, f"losses {losses}"]), flush=True)
        for graph in own[-1].get("graphs", ()):
            print(f"  {graph['name']}: {graph['replays']} of {graph['calls']}; {graph['plain']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", help="where to write what each process said")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.one, asked.model[0], asked.small)
        return
    rows: list[dict[str, Any]] = []
    for name in asked.model:
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(started, name=name, small=asked.small), asked.ways))
        for number in range(asked.rounds):
            for way in asked.ways if number % 2 else reversed(asked.ways):
                found = started(way, name, asked.small)
                rows += [found] if found else []
        if asked.json:
            with open(asked.json, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
        show(name, [row for row in rows if row["model"] == name])


if __name__ == "__main__":
    main()
