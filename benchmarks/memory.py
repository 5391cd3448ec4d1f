# mypy: disable-error-code="import-not-found, no-any-return"
"""Memory of inference on a GPU: compiled, with Inductor's own graphs, and with ours.

    python benchmarks/memory.py [--programs bert generate] [--ways ...] [--rounds 1] [--json FILE]

It needs a GPU, torch, transformers and the wheel, and runs with the hook off. Each way runs in a
process of its own, in turn: before that, all processes of a program fill their caches beside each
other. BERT base in bfloat16 for 8x256 tokens, and transformers' ``generate`` of 64 tokens with a
static cache, which transformers compiles itself: ``native`` is its own ``reduce-overhead``,
without us. Megabytes are of the whole program: what torch had reserved on the device at most and in
the end, and what values needed at most. A call of ``generate`` is all 64 tokens. The results of all
ways must be near. With --small, tiny models on a CPU try the script.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import torch
import ways

PROGRAMS = {
    "bert": ("compiled", "native", "ours", "graphed"),
    "generate": ("compiled", "native", "ours"),
}
WAYS = PROGRAMS["bert"]
MODE = "reduce-overhead"
# By program: the first calls, and calls of a block.
WARM, BLOCKS, CALLS = 8, 5, {"bert": 20, "generate": 1}
# In the order in which a process says them.
KINDS = ("reserved at most", "in the end", "allocated at most")


def bert(way: str, small: bool) -> Callable[[], Any]:
    import transformers

    size = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    device, dtype = ("cpu", torch.float32) if small else ("cuda", torch.bfloat16)
    model = transformers.BertModel(transformers.BertConfig(**(size if small else {})))
    model = model.to(device, dtype).eval()
    tokens = torch.randint(0, 30000, (2, 16) if small else (8, 256), device=device)
    call: Any
    if way == "native":
        # A CPU has none of Inductor's graphs.
        call = torch.compile(model, options={} if small else {"triton.cudagraphs": True})
    elif way == "ours":
        call = torch.compile(model, mode=MODE)
    else:
        call = torch.compile(model)
    if way == "graphed":
        from rocm_autopatch.graphs import graphed

        call = graphed(call)
    return lambda: call(tokens).last_hidden_state


def generate(way: str, small: bool) -> Callable[[], Any]:
    import transformers

    width, layers, tokens = (32, 1, 4) if small else (1024, 8, 64)
    config = transformers.LlamaConfig(
        vocab_size=1000,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    device, dtype = ("cpu", torch.float32) if small else ("cuda", torch.bfloat16)
    model = transformers.LlamaForCausalLM(config).to(device, dtype).eval()
    compiling: Any = transformers.CompileConfig(mode="default" if way == "compiled" else MODE)
    # transformers compiles generate on GPUs only.
    compiling._compile_all_devices = small
    prompt = torch.randint(0, 1000, (1, 32), device=device)
    settings: dict[str, Any] = {"cache_implementation": "static", "compile_config": compiling}

    def call() -> Any:
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
            **settings,
        )
        # The first token's are those of the prompt, which transformers does not compile.
        return found.logits[1]

    return call


def one(way: str, name: str, small: bool) -> None:
    """Print what a way needs in this process."""
    if way == "ours" or (way == "graphed" and small):
        ways.apply("graphs", small)
    torch.manual_seed(0)
    wait: Callable[[], object] = (lambda: None) if small else torch.cuda.synchronize
    with torch.inference_mode():
        call = {"bert": bert, "generate": generate}[name](way, small)
        began = time.perf_counter()
        for _ in range(WARM):
            call()
        wait()
        first = time.perf_counter() - began
        blocks = []
        count = 1 if small else CALLS[name]
        for _ in range(BLOCKS):
            wait()
            began = time.perf_counter()
            for _ in range(count):
                result = call()
            wait()
            blocks.append(1000 * (time.perf_counter() - began) / count)
        memory = () if small else measured()
        found = {
            "way": way,
            "program": name,
            "first_seconds": first,
            "ms": median(blocks),
            "mb": memory,
            # The largest of it is told, too: a mean hides a wrong row.
            "result": [result.float().abs().mean().item(), result.float().max().item()],
        }
    if way in ("ours", "graphed"):
        found["graphs"] = ways.graphs()
    print(json.dumps(found))


def measured() -> tuple[float, ...]:
    cuda = torch.cuda
    most, end = cuda.max_memory_reserved(), cuda.memory_reserved()
    return most / 1e6, end / 1e6, cuda.max_memory_allocated() / 1e6


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """Print a program's rows: medians, and ratios to native."""
    of = {way: [row for row in rows if row["way"] == way] for way in WAYS}
    native = of["native"]
    for way, own in of.items():
        if not own:
            continue
        ms = median(row["ms"] for row in own)
        words = [f"{name} {way:8} {ms:8.3f} ms a call"]
        if native:
            words[0] += f" ({ms / median(row['ms'] for row in native):.3f} of native)"
        for index, kind in enumerate(KINDS):
            if not own[0]["mb"]:
                break
            much = median(row["mb"][index] for row in own)
            words.append(f"{much:.0f} MB {kind}")
            if native:
                words[-1] += f" ({much / median(row['mb'][index] for row in native):.2f})"
        words.append("result {:.4f}, {:.4f}".format(*own[0]["result"]))
        print("; ".join(words), flush=True)
        for graph in own[-1].get("graphs", ()):
            print(f"  {graph['name']}: {graph['replays']} of {graph['calls']}; {graph['plain']}")
            for refused in graph["refused"]:
                print(f"  refused: {refused['reason']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", nargs="+", default=list(PROGRAMS), choices=PROGRAMS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", help="where to write what each process said")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.one, asked.programs[0], asked.small)
        return 0
    rows: list[dict[str, Any]] = []
    failed = False
    for name in asked.programs:
        own = [way for way in PROGRAMS[name] if way in asked.ways]

        def said(way: str, name: str = name) -> dict[str, Any] | None:
            arguments = ["--programs", name, "--one", way]
            small = ["--small"] if asked.small else []
            return ways.started(__file__, [*arguments, *small], f"{name} {way}")

        with ThreadPoolExecutor(2 if asked.small else None) as pool:
            list(pool.map(said, own))
        for number in range(asked.rounds):
            for way in own if number % 2 else reversed(own):
                found = said(way)
                rows += [found] if found else []
                failed |= found is None
        if asked.json:
            with open(asked.json, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1)
        show(name, [row for row in rows if row["program"] == name])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
