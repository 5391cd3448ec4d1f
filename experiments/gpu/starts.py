# mypy: disable-error-code="import-not-found, no-any-return"
"""Programs of others' making on a GPU, each start of one in a process of its own.

Each program makes a small model with random weights, and computes something for three inputs. A
start is right if the results are those of eager, which a first process kept in a file. Starts of
one arm share a place, with the caches of compiled code: what a first start leaves there is what
breaks a second one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 240


class Start(NamedTuple):
    """Which one of an arm's starts of a program. The arm "eager" makes what is compared with."""

    arm: str
    program: str
    number: int


def _llama(layers: int, hidden: int, heads: int, shared: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config).cuda().eval()


def decoder(torch: Any) -> Callable[[int], Any]:
    model = _llama(layers=4, hidden=512, heads=8, shared=4)
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


def detector(torch: Any) -> Callable[[int], Any]:
    import torchvision

    model = torchvision.models.mobilenet_v3_small(num_classes=100).cuda().eval()
    call = model if os.environ.get("EAGER") else torch.compile(model, mode="max-autotune")
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [1.0, 1.0, 9.0, 9.0], [20.0, 20.0, 30.0, 30.0]])

    def run(number: int) -> Any:
        torch.manual_seed(number)
        scores = call(torch.randn(4, 3, 96, 96, device="cuda"))
        kept = torchvision.ops.nms(boxes.cuda(), scores[0, :3], 0.5)
        # With random weights the scores are tiny: alone, the kept boxes would make up the norm.
        return torch.cat([scores.flatten() / scores.norm(), kept.sort().values.float()])

    return run


def batching(torch: Any) -> Callable[[int], Any]:
    from transformers import CompileConfig, GenerationConfig
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    model = _llama(layers=2, hidden=256, heads=4, shared=4)
    options: dict[str, Any] = {"use_cuda_graph": False, "use_async_batching": False}
    if not os.environ.get("EAGER"):
        compiled = CompileConfig(mode="reduce-overhead", fullgraph=False, dynamic=True)
        options = {"varlen_compile_config": compiled, "decode_compile_config": compiled}
    batches = ContinuousBatchingConfig(num_blocks=32, max_batch_tokens=128, **options)
    wanted = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0)

    def run(number: int) -> Any:
        torch.manual_seed(number)
        prompts = [torch.randint(1, 1000, (length,)).tolist() for length in (7, 19, 33)]
        found = model.generate_batch(
            prompts, generation_config=wanted, continuous_batching_config=batches
        )
        tokens = [found[name].generated_tokens for name in sorted(found)]
        return torch.tensor(tokens, dtype=torch.float32)

    return run


def unet(torch: Any) -> Callable[[int], Any]:
    from diffusers import DDIMPipeline, DDIMScheduler, UNet2DModel

    model = UNet2DModel(
        sample_size=32,
        layers_per_block=1,
        block_out_channels=(64, 128),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    pipeline = DDIMPipeline(unet=model.cuda().eval(), scheduler=DDIMScheduler())
    pipeline.set_progress_bar_config(disable=True)
    if not os.environ.get("EAGER"):
        pipeline.unet = torch.compile(pipeline.unet, mode="reduce-overhead", fullgraph=True)

    def run(number: int) -> Any:
        generator = torch.Generator("cuda").manual_seed(number)
        found = pipeline(batch_size=2, generator=generator, num_inference_steps=5, output_type="np")
        return torch.tensor(found.images)

    return run


PROGRAMS = {
    "decoder": decoder,
    "encoder": encoder,
    "convolution": convolution,
    "detector": detector,
    "batching": batching,
    "unet": unet,
}


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


def run(work: Path, start: Start, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """Make one start with *environment* more, and say what came of it.

    The row has ``died``, or ``first`` (seconds), ``call_ms``, ``error`` (relative, to eager) and
    ``right``; and the lines of stderr that warn, and how often Inductor benchmarked.
    """
    place = work / f"{start.arm.replace(' ', '-').replace(':', '')}-{start.program}"
    place.mkdir(exist_ok=True)
    eager = {"ROCM_AUTOPATCH": "off", "EAGER": "1"} if start.arm == "eager" else {}
    command = [sys.executable, __file__, start.program, str(work / f"{start.program}.pt")]
    row: dict[str, Any] = start._asdict()
    try:
        done = subprocess.run(
            command,
            env={
                **os.environ,
                "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor"),
                "TRITON_CACHE_DIR": str(place / "triton"),
                "HF_HUB_OFFLINE": "1",
                "ROCM_AUTOPATCH_LOG": "quiet",
                "ROCM_AUTOPATCH_ASSUME": "accelerator=rocm",
                **environment,
                **eager,
            },
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return {**row, "died": f"not done after {seconds:.0f} s"}
    said = {line[:200] for line in done.stderr.splitlines() if re.search("warn|error", line, re.I)}
    row["warnings"] = sorted(said)[:8]
    row["benchmarked"] = len(re.findall("^AUTOTUNE ", done.stderr, re.M))
    if done.returncode:
        return {**row, "died": done.stderr[-400:], "status": done.returncode}
    return {**row, **json.loads(done.stdout.splitlines()[-1])}


def run_all(
    kept: Path,
    arms: Callable[[str], dict[str, str]],
    names: Iterable[str],
    programs: Iterable[str],
    at_once: int,
    seconds: float,
) -> dict[Start, dict[str, Any]]:
    """Two starts of each program under each arm of *names*, whose environment *arms* gives.

    Rows are kept in the file *kept* as they come, and what it has is not run again. After *seconds*
    no start begins.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    found = {Start(row["arm"], row["program"], row["number"]): row for row in rows}
    ends = time.monotonic() + seconds

    def one(start: Start) -> None:
        if start in found or time.monotonic() > ends:
            return
        environment = {} if start.arm == "eager" else arms(start.arm)
        found[start] = run(kept.parent, start, environment, LIMIT_S)
        with kept.open("a") as stream:
            print(json.dumps(found[start]), file=stream)
        print(json.dumps(found[start]), flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, [Start("eager", program, 0) for program in programs]))
        for number in (1, 2):
            list(pool.map(one, [Start(arm, p, number) for p in programs for arm in names]))
    return found


def table(
    found: dict[Start, dict[str, Any]], names: Iterable[str], programs: Iterable[str]
) -> None:
    """Print a line for each arm, with a cell for each start of each program."""
    print(" | ".join([" " * 26, *(f"{program} {n}" for program in programs for n in (1, 2))]))
    for arm in names:
        cells = [cell(found.get(Start(arm, p, number))) for p in programs for number in (1, 2)]
        print(" | ".join([f"{arm:26}", *cells]))


def cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "not run"
    if "died" in row:
        return "died"
    right = "right" if row["right"] else "WRONG"
    return f"{right}, {row['first']:.1f} s, {row['call_ms']} ms, {row['benchmarked']} searches"


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
