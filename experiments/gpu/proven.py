# mypy: disable-error-code="import-not-found, no-any-return"
"""On a machine with a GPU and evidence: real programs under ``safe``, beside torch alone.

    python experiments/gpu/proven.py WORK [--seconds S]

For an interpreter that has torch for that GPU, transformers, timm and our wheel, where
``rocm-autopatch prove`` has left its evidence in /etc/rocm-autopatch/evidence. Three programs ask
for ``reduce-overhead``: transformers' ``generate`` with a static cache and 64 tokens, BERT base for
1x128 tokens, ViT base for 4 images. First each side fills its caches. Then a process of each side
is started, and the two take turns at one sample each. Nothing else runs meanwhile, because
``generate`` is as fast as the CPU: beside other starts, samples were 86 to 167 ms on either side.
WORK/proven.jsonl keeps the results as they come; a second call goes on from there. On a GPU that
is not AMD's, the fact that opens our gate is assumed.
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
from itertools import product
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


def one(program: str) -> None:
    """Print the milliseconds of a call, several calls in a sample, one sample a line of stdin."""
    import torch
    import torch._inductor.compile_fx

    torch.manual_seed(0)
    with torch.no_grad():
        call = globals()[program](torch)
        for _ in range(8):
            call()
        torch.cuda.synchronize()
        print("ready", flush=True)
        calls = 1 if program == "generate" else 20
        for _ in sys.stdin:
            began = time.perf_counter()
            for _ in range(calls):
                call()
            torch.cuda.synchronize()
            print(1000 * (time.perf_counter() - began) / calls, flush=True)
    import rocm_autopatch

    report: dict[str, Any] = rocm_autopatch.status()
    modes = {row["name"]: row["after"] for row in report["compile_modes"]}
    # Why a call was no replay.
    graphs = [
        {key: row[key] for key in ("name", "calls", "replays", "plain", "refused", "dropped")}
        | {"captured": len(row["graphs"])}
        for row in report["graphs"]
    ]
    print(json.dumps({"mode": modes.get(MODE, MODE), "graphs": graphs}), flush=True)


class Side:
    """A process of a program under one side's environment."""

    def __init__(self, work: Path, program: str, side: str) -> None:
        caches = {"TORCHINDUCTOR_CACHE_DIR": str(work / f"{program}-{side}")}
        self.row: dict[str, Any] = {"program": program, "side": side, "samples": []}
        self._stderr = work / f"{program}-{side}.stderr"
        with self._stderr.open("w") as stream:
            self._process = subprocess.Popen(
                [sys.executable, __file__, "--one", program],
                env={**os.environ, **SIDES[side], **caches},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            )

    def said(self) -> str:
        """The next line. Raises RuntimeError if the process has ended."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._stderr.read_text()[-2000:])
        return line

    def sample(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.row["samples"].append(float(self.said()))

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self.row |= json.loads(self.said())
        self._process.wait()


def fill(work: Path, program: str, side: str) -> None:
    """Compile a program, so that later starts find it in the caches."""
    made = Side(work, program, side)
    made.said()
    made.end()


def pair(work: Path, program: str, turn: int) -> list[dict[str, Any]]:
    """Both sides' rows, of two processes that took turns."""
    order = list(SIDES) if turn % 2 else list(reversed(SIDES))
    made = [Side(work, program, side) for side in order]
    for one in made:
        one.said()
    for _ in range(SAMPLES):
        for one in made:
            one.sample()
    for one in made:
        one.end()
    return [{"turn": turn, **one.row} for one in made]


def main() -> None:
    parser = argparse.ArgumentParser(description="Real programs under safe with evidence.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=400, help="to begin starts in")
    asked = parser.parse_args()
    work, end = asked.work, time.monotonic() + asked.seconds
    work.mkdir(parents=True, exist_ok=True)
    kept = work / "proven.jsonl"
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []

    # Caches are gone with the machine, so they are always filled.
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda cell: fill(work, *cell), product(PROGRAMS, SIDES)))
    done = {(row["turn"], row["program"]) for row in rows}
    for turn, program in product(range(1, ROUNDS + 1), PROGRAMS):
        if (turn, program) in done or time.monotonic() > end:
            continue
        try:
            rows += (found := pair(work, program, turn))
        except RuntimeError as error:
            print(f"{program}: {error}", file=sys.stderr, flush=True)
            continue
        with kept.open("a") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in found)
    for program in PROGRAMS:
        own = [row for row in rows if row["program"] == program]
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
