# mypy: disable-error-code="import-not-found, no-any-return"
"""On a machine with a GPU and evidence: real programs under ``safe``, beside torch alone.

    python tests/gpu/proven.py WORK [--seconds S]

For an interpreter that has torch for that GPU, transformers, timm and our wheel, where
``rocm-autopatch prove`` has left its evidence in /etc/rocm-autopatch/evidence. Three programs ask
for ``reduce-overhead``: transformers' ``generate`` with a static cache and 64 tokens, BERT base for
1x128 tokens, ViT base for 4 images. First each side fills its caches, then they are timed in
processes of their own, in turns, one at a time on the GPU. WORK/proven.jsonl keeps the results as
they come; a second call goes on from there. On a GPU that is not AMD's, the fact that opens our
gate is assumed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

PROGRAMS = ("generate", "bert", "vit")
SIDES = {
    "native": {"ROCM_AUTOPATCH": "off"},
    "safe": {"ROCM_AUTOPATCH_ASSUME": "accelerator=rocm"},
}
ROUNDS = 5
SAMPLES = 25
MODE = "reduce-overhead"


def generate(torch: Any) -> Callable[[], Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config).cuda().eval()
    prompt = torch.randint(0, 1000, (1, 32), device="cuda")
    settings: dict[str, Any] = {"cache_implementation": "static", "do_sample": False}
    mask = torch.ones_like(prompt)
    return lambda: model.generate(
        prompt,
        attention_mask=mask,
        max_new_tokens=64,
        min_new_tokens=64,
        pad_token_id=0,
        **settings,
    )


def bert(torch: Any) -> Callable[[], Any]:
    from transformers import BertConfig, BertModel

    model = torch.compile(BertModel(BertConfig()).cuda().half().eval(), mode=MODE)
    tokens = torch.randint(0, 30000, (1, 128), device="cuda")
    return lambda: model(tokens)


def vit(torch: Any) -> Callable[[], Any]:
    import timm

    model = torch.compile(timm.create_model("vit_base_patch16_224").cuda().half().eval(), mode=MODE)
    images = torch.randn(4, 3, 224, 224, device="cuda").half()
    return lambda: model(images)


def one(program: str, lock: str) -> None:
    """Print the milliseconds of calls, several of each in a sample."""
    import torch
    import torch._inductor.compile_fx

    stream = open(lock, "w") if lock else None  # noqa: SIM115
    if stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
    torch.manual_seed(0)
    with torch.no_grad():
        call = globals()[program](torch)
        for _ in range(8):
            call()
        torch.cuda.synchronize()
        calls = 1 if program == "generate" else 20
        samples = []
        for _ in range(SAMPLES if lock else 1):
            began = time.perf_counter()
            for _ in range(calls):
                call()
            torch.cuda.synchronize()
            samples.append(1000 * (time.perf_counter() - began) / calls)
    import rocm_autopatch

    report: dict[str, Any] = rocm_autopatch.status()
    modes = {row["name"]: row["after"] for row in report["compile_modes"]}
    # Why a call was no replay.
    graphs = [
        {key: row[key] for key in ("name", "calls", "replays", "plain", "refused", "dropped")}
        | {"captured": len(row["graphs"])}
        for row in report["graphs"]
    ]
    said = {"samples": samples, "mode": modes.get(MODE, MODE), "graphs": graphs}
    print(json.dumps(said), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Real programs under safe with evidence.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=400, help="to begin starts in")
    asked = parser.parse_args()
    work, end = asked.work, time.monotonic() + asked.seconds
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "proven.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []

    def start(cell: tuple[int, str, str]) -> None:
        turn, program, side = cell
        if time.monotonic() > end:
            return
        # Without a lock, it only fills the caches.
        lock = str(work / "lock") if turn else ""
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(work / f"{program}-{side}")}
        done = subprocess.run(
            [sys.executable, __file__, "--one", program, lock],
            env={**os.environ, **SIDES[side], **caches},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            print(f"{program} {side}: {done.stderr[-2000:]}", file=sys.stderr, flush=True)
            return
        row = {"turn": turn, "program": program, "side": side}
        rows.append({**row, **json.loads(done.stdout.splitlines()[-1])})
        with kept.open("a") as stream:
            stream.write(json.dumps(rows[-1]) + "\n")

    for turns, at_once in (((0,), len(PROGRAMS) * len(SIDES)), (range(1, ROUNDS + 1), 3)):
        done = {(row["turn"], row["program"], row["side"]) for row in rows}
        cells = [
            (turn, program, side)
            for turn in turns
            for program in PROGRAMS
            for side in (SIDES if turn % 2 else reversed(SIDES))
        ]
        with ThreadPoolExecutor(at_once) as pool:
            # Caches are gone with the machine, so they are always filled.
            list(pool.map(start, [cell for cell in cells if not cell[0] or cell not in done]))
    for program in PROGRAMS:
        own = [row for row in rows if row["program"] == program and row["turn"]]
        times = {
            side: median(sample for row in own if row["side"] == side for sample in row["samples"])
            for side in SIDES
            if any(row["side"] == side for row in own)
        }
        sides = ", ".join(f"{side} {ms:.3f} ms" for side, ms in times.items())
        if len(times) == len(SIDES):
            mode = next(row["mode"] for row in own if row["side"] == "safe")
            ratio = times["safe"] / times["native"]
            sides += f": {ratio:.3f} of native; the mode stands for {mode}"
        print(f"{program}: {sides or 'not run'}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        main()
