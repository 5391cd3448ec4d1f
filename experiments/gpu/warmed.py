# mypy: disable-error-code="import-not-found, no-any-return"
"""On a machine with a GPU: first calls with empty caches, warm ones, and packed ones elsewhere.

    python experiments/gpu/warmed.py WORK [--seconds S]

For an interpreter that has torch for that GPU, transformers, timm and our wheel. Four programs ask
for ``reduce-overhead``, under ``performance``: ``generate``, BERT and ViT of proven.py, and a
training step of GPT-2. Each starts with empty caches once (``cold``), in a second process
(``warm``), and, after all of them were packed and their root was moved away, with the archive
seeded into an empty root (``seeded``) and with it in the image's layer (``layer``), three times
each. The programs of one kind run beside each other, ``--at-once`` of them, in each kind alike.
WORK/warmed.jsonl keeps the results as they come. It uses the root of this user's caches, which must
be empty, and needs root for the layer. On a GPU that is not AMD's, the fact that opens our gate is
assumed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import proven

from rocm_autopatch.startup import caches

PROGRAMS = ("generate", "bert", "vit", "training")
KINDS = ("cold", "warm", "seeded", "layer")
STARTS = 3
OURS = {
    "ROCM_AUTOPATCH_ASSUME": "accelerator=rocm,proven=graphs",
    "ROCM_AUTOPATCH_POLICY": "performance",
    "ROCM_AUTOPATCH_LOG": "quiet",
}
ROOT = Path.home() / ".cache" / caches.BELOW_HOME


def training(torch: Any) -> Callable[[], Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=4)).cuda().train()
    compiled = torch.compile(model, mode=proven.MODE)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 50000, (4, 256), device="cuda")

    def step() -> Any:
        optimizer.zero_grad()
        with torch.enable_grad():
            compiled(tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def one(program: str) -> None:
    """Print the seconds of the first call and of a later one, and what the caches had."""
    import torch
    import torch._inductor.compile_fx
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    with torch.no_grad():
        call = (training if program == "training" else getattr(proven, program))(torch)
        torch.cuda.synchronize()
        seconds = []
        for _ in range(6):
            began = time.perf_counter()
            call()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    import rocm_autopatch

    report: dict[str, Any] = rocm_autopatch.status()
    counted = {
        f"{part} {name}": number
        for part in ("inductor", "aot_autograd")
        for name, number in counters[part].items()
        if "cache" in name
    }
    ours = {name: report["caches"][name] for name in ("place", "reason", "hits", "misses")}
    print(json.dumps({"seconds": seconds, "torch": counted, **ours}), flush=True)


def command(*words: str) -> None:
    print("+ rocm-autopatch", *words, flush=True)
    began = time.monotonic()
    environ = {**os.environ, **OURS}
    done = subprocess.run([sys.executable, "-m", "rocm_autopatch", *words], env=environ)
    print(f"  status {done.returncode}, {time.monotonic() - began:.1f} s", flush=True)


def prepare(kind: str, archive: Path) -> None:
    """Have the caches that a kind of start begins with."""
    # What torch keeps elsewhere would be warm without us.
    for path in Path("/tmp").glob("torchinductor_*"):
        shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(Path.home() / ".triton", ignore_errors=True)
    if kind == "cold" and ROOT.exists() and any(ROOT.iterdir()):
        sys.exit(f"{ROOT} is not empty")
    if kind in ("seeded", "layer"):
        if not archive.exists():
            command("cache", "pack", str(archive))
        shutil.rmtree(ROOT, ignore_errors=True)
        shutil.rmtree(caches.OWN % os.geteuid(), ignore_errors=True)
        shutil.rmtree(caches.LAYER, ignore_errors=True)
        into = ["--into", caches.LAYER] if kind == "layer" else []
        command("cache", "seed", str(archive), *into)


def main() -> None:
    parser = argparse.ArgumentParser(description="First calls with packed caches.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=500, help="to begin starts in")
    parser.add_argument("--at-once", type=int, default=4, help="programs beside each other (4)")
    asked = parser.parse_args()
    end = time.monotonic() + asked.seconds
    asked.work.mkdir(parents=True, exist_ok=True)
    archive = asked.work / "caches.tar.gz"
    first: dict[tuple[str, str], list[float]] = {}

    def start(kind: str, program: str) -> None:
        if time.monotonic() > end:
            return
        done = subprocess.run(
            [sys.executable, __file__, "--one", program],
            env={**os.environ, **OURS},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            print(f"{program} {kind}: {done.stderr[-2000:]}", file=sys.stderr, flush=True)
            return
        row = {"kind": kind, "program": program, **json.loads(done.stdout.splitlines()[-1])}
        first.setdefault((program, kind), []).append(row["seconds"][0])
        with (asked.work / "warmed.jsonl").open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(
            f"{program} {kind}: first call {row['seconds'][0]:.2f} s, {row['hits']} hits, "
            f"{row['misses']} misses; {row['torch']}",
            flush=True,
        )

    for kind in KINDS:
        # One start differs from the next by 15 %.
        for _ in range(1 if kind == "cold" else STARTS):
            prepare(kind, archive)
            with ThreadPoolExecutor(asked.at_once) as pool:
                list(pool.map(partial(start, kind), PROGRAMS))
    for program in PROGRAMS:
        times = {kind: median(first[program, kind]) for kind in KINDS if (program, kind) in first}
        told = [f"{kind} {seconds:.2f} s" for kind, seconds in times.items()]
        ratios = [
            f"{times[kind] / times['warm']:.2f} of warm"
            for kind in ("seeded", "layer")
            if kind in times and "warm" in times
        ]
        print(f"{program}: {', '.join(told)}: {', '.join(ratios)}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2])
    else:
        main()
