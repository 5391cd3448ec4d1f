# mypy: disable-error-code="import-not-found, no-any-return"
"""On a machine with a GPU: each entry of the performance policy alone, in two starts.

    python tests/gpu/entries.py WORK [--at-once N] [--seconds S]

For an interpreter that has torch for that GPU, transformers, timm and our wheel. Three programs of
others' making run under ``safe``, under ``safe`` with one entry more, and under ``performance``:
a decoder with a static cache (transformers' ``generate``), an encoder and a convolution net. Each
runs in two processes with one cache of compiled code in WORK: what a first start leaves there is
what breaks a second one. A run is right if it computes for three inputs what eager computes.
Results are kept in WORK/results.jsonl as they come; what is there already is not run again. On a
GPU that is not AMD's, the fact that opens our gate is assumed: that shows what Inductor does, and
nothing of HIP.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_CONFIG = {
    "coordinate_descent_tuning": "true",
    "aggressive_fusion": "true",
    "group_fusion": "true",
    "max_fusion_size": "128",
    "benchmark_kernel": "true",
    "triton.multi_kernel": "1",
    "shape_padding": "true",
    "freezing": "true",
}
_HEAD = "version: 1\nextends: safe\n"
ARMS = {
    "safe": _HEAD,
    **{
        key: f"{_HEAD}config: {{torch._inductor.config: {{{key}: {{default: {value}}}}}}}\n"
        for key, value in _CONFIG.items()
    },
    "recompile_limit": (
        _HEAD + "config: {torch._dynamo.config: {recompile_limit: {default: 256}}}\n"
    ),
    "reduce-overhead: graphs": _HEAD + "compile_modes: {reduce-overhead: graphs}\n",
    "performance": "version: 1\nextends: performance\n",
    # As it was until these two were seen to break programs.
    "performance and both": (
        "version: 1\nextends: performance\nconfig:\n  torch._inductor.config:\n"
        "    freezing: {default: true}\n    triton.multi_kernel: {default: 1}\n"
    ),
}


def decoder(torch: Any) -> Callable[[int], Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    model = LlamaForCausalLM(config).cuda().eval()
    if not os.environ.get("EAGER"):
        model.generation_config.cache_implementation = "static"

    def run(number: int) -> Any:
        torch.manual_seed(number)
        prompt = torch.randint(0, 1000, (1, 32), device="cuda")
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_logits=True,
            disable_compile=bool(os.environ.get("EAGER")),
        )
        return torch.stack(found.logits)

    return run


def encoder(torch: Any) -> Callable[[int], Any]:
    from transformers import BertConfig, BertModel

    size = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
    model = BertModel(BertConfig(vocab_size=1000, intermediate_size=1024, **size)).cuda().eval()
    call = model if os.environ.get("EAGER") else torch.compile(model, mode="reduce-overhead")

    def run(number: int) -> Any:
        torch.manual_seed(number)
        return call(torch.randint(0, 1000, (2, 64), device="cuda")).last_hidden_state

    return run


def convolution(torch: Any) -> Callable[[int], Any]:
    import timm

    model = timm.create_model("resnet18", num_classes=100).cuda().eval()
    call = model if os.environ.get("EAGER") else torch.compile(model, mode="reduce-overhead")

    def run(number: int) -> Any:
        torch.manual_seed(number)
        return call(torch.randn(4, 3, 224, 224, device="cuda"))

    return run


PROGRAMS = {"decoder": decoder, "encoder": encoder, "convolution": convolution}


def measure(program: str, reference: Path) -> dict[str, Any]:
    """Run a program in this process: its results against those in *reference*, and its times."""
    import torch

    # As the reference was computed: what is compared is compiling.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    run = PROGRAMS[program](torch)
    with torch.no_grad():
        began = time.perf_counter()
        results = [run(0).clone()]
        torch.cuda.synchronize()
        first = time.perf_counter() - began
        results += [run(number).clone() for number in (1, 2)]
        times = []
        for _ in range(10):
            torch.cuda.synchronize()
            began = time.perf_counter()
            run(2)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    if os.environ.get("EAGER"):
        torch.save([one.cpu() for one in results], reference)
        return {"first": round(first, 2), "call_ms": round(sorted(times)[5] * 1e3, 2)}
    wanted = torch.load(reference)
    errors = [float((one.cpu() - want).norm() / want.norm()) for one, want in zip(results, wanted)]
    return {
        "first": round(first, 2),
        "call_ms": round(sorted(times)[5] * 1e3, 2),
        "error": max(errors),
        "right": all(error < 1e-3 for error in errors),
    }


def _start(work: Path, arm: str, program: str, start: int, seconds: float) -> dict[str, Any]:
    place = work / f"{list(ARMS).index(arm) if arm in ARMS else 'eager'}-{program}"
    place.mkdir(exist_ok=True)
    policy = place / "policy.yaml"
    policy.write_text(ARMS.get(arm, ""))
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
        "TRITON_CACHE_DIR": str(place / "triton"),
        "HF_HUB_OFFLINE": "1",
        "ROCM_AUTOPATCH_LOG": "quiet",
        **(
            {"ROCM_AUTOPATCH": "off", "EAGER": "1"}
            if arm == "eager"
            else {
                "ROCM_AUTOPATCH_ASSUME": "accelerator=rocm",
                "ROCM_AUTOPATCH_POLICY": str(policy),
            }
        ),
    }
    command = [sys.executable, __file__, "--one", program, str(work / f"{program}.pt")]
    row: dict[str, Any] = {"arm": arm, "program": program, "start": start}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return {**row, "died": f"not done after {seconds:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "Error" in line or "assert" in line]
        return {**row, "died": (said or ["?"])[-1][:300], "status": done.returncode}
    return {**row, **json.loads(lines[-1])}


def main() -> None:
    parser = argparse.ArgumentParser(description="Each entry of performance, in two starts.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=540, help="to begin runs in")
    arguments = parser.parse_args()
    work: Path = arguments.work
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "results.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(row["arm"], row["program"], row["start"]) for row in rows}
    ends = time.monotonic() + arguments.seconds

    def run(asked: tuple[str, str, int]) -> None:
        if asked in done or time.monotonic() > ends:
            return
        row = _start(work, *asked, seconds=240)
        rows.append(row)
        with kept.open("a") as stream:
            print(json.dumps(row), file=stream)
        print(json.dumps(row), flush=True)

    for program in PROGRAMS:
        run(("eager", program, 0))
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for start in (1, 2):
            list(pool.map(run, [(arm, program, start) for arm in ARMS for program in PROGRAMS]))
    found = {(row["arm"], row["program"], row["start"]): row for row in rows}
    for arm in ARMS:
        asked = [(arm, program, start) for program in PROGRAMS for start in (1, 2)]
        print(" | ".join([f"{arm:26}", *(_cell(found.get(key)) for key in asked)]))


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not run"
    if "died" in row:
        return "died"
    return f"{'right' if row['right'] else 'WRONG'}, {row['first']:.0f} s, {row['call_ms']} ms"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[3]))))
    else:
        main()
