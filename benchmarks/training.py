"""A training step on a GPU: eager, compiled, with Inductor's own graphs, and with ours.

    python benchmarks/training.py [--model gpt2|bert|vit] [--rounds 3] [--json FILE]

It needs a GPU, torch, transformers and the wheel, and runs with the hook off. Each way runs in a
process of its own, in turn: its caches are filled first. Forward, backward and fused AdamW, in
bfloat16 by autocast; dropout is on. Milliseconds of a step are medians of steps and then of
processes. Memory is what torch had allocated and reserved at most, after the first ten steps and
in all. The losses of all ways must be near. With --small, a tiny model on a CPU tries the script.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median
from typing import Any

import torch

WAYS = ("eager", "compiled", "native", "ours")
WARM, STEPS = 10, 60


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
        from rocm_autopatch.patches import compile_modes

        if small:
            sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "tests", "graphs"))
            import stand_in

            stand_in.install()
        row = ("reduce-overhead", compile_modes.TRAINING_GRAPHS, "benchmark", "")
        compile_modes.apply(torch, [row], (), False)
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
    wait = (lambda: None) if small else torch.cuda.synchronize

    def step() -> Any:
        if way == "native":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = call(**arguments).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses, times, memory = [], [], []
    for number in range(WARM + (3 if small else STEPS)):
        if number == WARM and not small:
            memory.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
            torch.cuda.reset_peak_memory_stats()
        wait()
        began = time.perf_counter()
        loss = step()
        wait()
        times.append(1000 * (time.perf_counter() - began))
        losses.append(loss.item())
    if not small:
        memory.append((torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()))
    found: dict[str, Any] = {
        "way": way,
        "first_seconds": sum(times[:3]) / 1000,
        "ms": median(times[WARM:]),
        "losses": [losses[0], losses[WARM], losses[-1]],
        "first_and_later_peak": memory,
    }
    if way == "ours":
        from rocm_autopatch.graphs import record

        found["graphs"] = [
            {key: row[key] for key in ("name", "calls", "replays", "plain", "refused")}
            for row in record.render()
        ]
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="gpt2", choices=("gpt2", "bert", "vit"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", help="where to write what each process said")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.one, asked.model, asked.small)
        return
    rows: list[dict[str, Any]] = []
    for number in range(asked.rounds + 1):
        for way in WAYS if number % 2 else reversed(WAYS):
            command = [sys.executable, __file__, "--model", asked.model, "--one", way]
            done = subprocess.run(
                [*command, *(["--small"] if asked.small else [])],
                env={**os.environ, "ROCM_AUTOPATCH": "off"},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                print(f"{way}: {done.stderr[-1500:]}", file=sys.stderr, flush=True)
            elif number:  # The first round fills the caches.
                rows.append(json.loads(done.stdout.splitlines()[-1]))
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    native = [row["ms"] for row in rows if row["way"] == "native"]
    for way in WAYS:
        own = [row for row in rows if row["way"] == way]
        if not own:
            continue
        ms = median(row["ms"] for row in own)
        ratio = f" ({ms / median(native):.2f} of native)" if native else ""
        peaks = [[f"{size / 1e6:.0f}" for size in peak] for peak in own[0]["first_and_later_peak"]]
        print(
            f"{asked.model} {way:8} {ms:8.3f} ms a step{ratio}, losses {own[0]['losses']}, "
            f"MB allocated and reserved at most, first and later: {peaks}"
        )
    for row in rows[-len(WAYS) :]:
        for graph in row.get("graphs", ()):
            print(f"  {graph['name']}: {graph['replays']} of {graph['calls']}; {graph['plain']}")


if __name__ == "__main__":
    main()
