# mypy: disable-error-code="import-not-found, no-any-return", allow-subclassing-any
"""Which calls of models' regions are replays, right, and, on a machine with a GPU, how fast.

    python experiments/gpu/regions.py WORK [--only NAME ...] [--jobs 12] [--seconds 500]
    python experiments/gpu/regions.py WORK --time PROCESSES [--only PHASE-NAME ...] [--seconds 500]

For an interpreter with torch for that GPU, transformers and timm. Each model is small, so that the
host counts. One process calls it through ``mode="reduce-overhead"`` with our graphs or torch's own,
without gradients or in training, and compares each call with eager mode: results, or the loss and
all gradients. A row has the calls of regions after the third of their signature, and how many of
them were replays. WORK/regions.jsonl keeps rows as they come; a second call does the rest.
Without a GPU, the stand-in of tests/graphs is in its place, and each call is compared with torch's
compile without graphs, which rounds as ours does: bfloat16 in eager mode does not.

With ``--time``, as many processes of each side, with our graphs and with torch's own, prepare a
model at once, after one of each that fills caches. Then they time it by turns, 20 steps at a time
and nine times, while the others wait. WORK/times.jsonl has the median milliseconds of a step, those
of each turn, the median milliseconds that the processor worked for a step, our replays, and the
megabytes that torch had reserved in the process at most, and in the end. What is printed compares
the medians of the processes. A second call adds to them. Names like ``train-usual-gpt2`` are models
of usual size, for memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SIZE = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "max_position_embeddings": 128,
}
_WIDE = {
    "d_model": 256,
    "vocab_size": 1000,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "dropout": 0.0,
}
_EXPERTS = {**SIZE, "num_key_value_heads": 2}
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# By name: the class of transformers, that of its config, the config's values, and what it is given.
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "bert": ("BertModel", "BertConfig", {**SIZE, **_NO_DROPOUT}, "hidden"),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "n_embd": 256,
            "n_layer": 2,
            "n_head": 4,
            "vocab_size": 1000,
            "n_positions": 128,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        "text",
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**SIZE, "num_key_value_heads": 2}, "text"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {**SIZE, "num_key_value_heads": 2}, "text"),
    "phi3": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {**SIZE, "num_key_value_heads": 2, "pad_token_id": 0},
        "text",
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**SIZE, "num_key_value_heads": 2, "head_dim": 64},
        "text",
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {
            "hidden_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 512,
            "vocab_size": 1000,
            "max_position_embeddings": 128,
            "dropout": 0.0,
            "word_embed_proj_dim": 256,
        },
        "text",
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**_WIDE, "max_position_embeddings": 128},
        "text",
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "d_model": 256,
            "d_kv": 64,
            "d_ff": 512,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 1000,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
        "text",
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **_WIDE,
            "max_source_positions": 64,
            "max_target_positions": 128,
            "num_mel_bins": 16,
            "pad_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "decoder_start_token_id": 2,
        },
        "sound",
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_EXPERTS, "num_local_experts": 4},
        "text",
    ),
    "granitemoe": (
        "GraniteMoeForCausalLM",
        "GraniteMoeConfig",
        {**_EXPERTS, "num_local_experts": 4, "num_experts_per_tok": 2},
        "text",
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**_EXPERTS, "num_local_experts": 4, "head_dim": 64},
        "text",
    ),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {
            **_EXPERTS,
            "num_experts": 4,
            "head_dim": 64,
            "moe_intermediate_size": 128,
            "num_experts_per_tok": 2,
        },
        "text",
    ),
}
# Of usual size: as transformers' defaults are, and eight texts of 256 or 32 pictures.
_USUAL: dict[str, dict[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "opt": {"dropout": 0.0},
    "bert": _NO_DROPOUT,
}
TIMM = (
    "resnet18",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "mobilenetv3_small_050",
    "mixer_s32_224",
    "resnet50",
)
NAMES = (*TRANSFORMERS, *TIMM)
# What is timed.
INFERENCE = (
    *("bert", "llama", "gemma2", "whisper"),
    *("resnet50", "vit_tiny_patch16_224", "convnext_atto"),
)
TRAINING = ("gpt2", "mixtral", "resnet50", "llama", "bert", "opt", "bart", "whisper")
TIMED = (*(f"infer-{name}" for name in INFERENCE), *(f"train-{name}" for name in TRAINING))
LENGTH, CALLS = 32, 14
# How often each process times its steps.
TURNS = 9


def make_model(name: str) -> tuple[Any, str]:
    import torch

    usual, name = name.startswith("usual-"), name.removeprefix("usual-")
    if name in TIMM:
        import timm

        model, kind = timm.create_model(name, num_classes=10), "image"
    else:
        import transformers

        cls, config, values, kind = TRANSFORMERS[name]
        values = _USUAL[name] if usual else values
        model = getattr(transformers, cls)(getattr(transformers, config)(**values))
    torch.manual_seed(0)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.03)
    for part, weight in model.named_parameters():
        if "gate.weight" in part or "router" in part:
            # With close scores, rounding decides which expert a token gets.
            torch.nn.init.normal_(weight, std=1.0)
    return model, kind


def make_batch(
    kind: str, number: int, dtype: Any, device: str, usual: bool = False
) -> dict[str, Any]:
    import torch

    draw = torch.Generator().manual_seed(number)
    if kind == "image":
        images = torch.randn(32 if usual else 4, 3, 224, 224, generator=draw)
        return {"x": images.to(device, dtype)}
    shape = (8, 256) if usual else (2, LENGTH)
    ids = torch.randint(4, 1000, shape, generator=draw).to(device)
    if kind == "hidden":
        return {"input_ids": ids}
    if kind == "sound":
        sound = torch.randn(2, 16, 128, generator=draw).to(device, dtype)
        return {"input_features": sound, "labels": ids}
    return {"input_ids": ids, "labels": ids}


def _main_result(made: Any) -> Any:
    for name in ("logits", "last_hidden_state"):
        if getattr(made, name, None) is not None:
            return getattr(made, name)
    return made


def _loss(made: Any) -> Any:
    found = getattr(made, "loss", None)
    if found is not None:
        return found
    import torch

    result = _main_result(made).float()
    # The mean square of what is normalized is constant, and its gradient is noise.
    wanted = torch.linspace(-1, 1, result.numel(), device=result.device).view_as(result)
    return (result - wanted).square().mean()


def _differs(one: Any, other: Any, most: float) -> float:
    """By how much of the largest value two tensors differ, 0 if that is less than *most*."""
    one, other = one.detach().float(), other.detach().float()
    apart = ((one - other).abs().max() / other.abs().max().clamp_min(1e-6)).item()
    return apart if not apart < most else 0.0


def make_step(name: str, training: bool, half: bool) -> tuple[Any, Any, Callable[[Any, int], Any]]:
    """A model, what it is compiled to, and a function that makes a step of either or of a copy."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, kind = make_model(name)
    dtype = torch.bfloat16 if half else torch.float32
    model = model.to(device, dtype).train(training)
    for part in model.modules():
        if isinstance(part, torch.nn.modules.batchnorm._BatchNorm):
            part.eval()
    usual = name.startswith("usual-")
    batches = [make_batch(kind, number, dtype, device, usual) for number in range(CALLS)]

    def step(function: Any, number: int) -> Any:
        values = batches[number % CALLS]
        args = (values["x"],) if kind == "image" else ()
        with torch.set_grad_enabled(training):
            made = function(*args, **({} if args else values))
            if not training:
                return _main_result(made)
            loss = _loss(made)
            loss.backward()
            return loss

    return model, torch.compile(model, mode="reduce-overhead"), step


def use_our_graphs() -> None:
    """Have our graphs in ``mode="reduce-overhead"``, in training, too."""
    import torch

    from rocm_autopatch.patches import compile_modes

    if not torch.cuda.is_available():
        sys.path.insert(0, str(ROOT / "tests/graphs"))
        import stand_in

        stand_in.install()
    entries: Any = [("reduce-overhead", compile_modes.TRAINING_GRAPHS, "performance", "")]
    compile_modes.apply(torch, entries, (), False)


def run_one(name: str, training: bool, half: bool, ours: bool) -> dict[str, Any]:
    """Call a model in this process beside eager mode and return a row."""
    import copy

    import torch

    if ours:
        use_our_graphs()
    model, compiled, step = make_step(name, training, half)
    plain, most = copy.deepcopy(model), 0.06 if half else 2e-3
    if not torch.cuda.is_available():
        plain, most = torch.compile(plain), 1e-4
    wrong: list[str] = []
    for number in range(CALLS):
        torch.compiler.cudagraph_mark_step_begin()
        got = step(compiled, number)
        wanted = step(plain, number)
        apart = _differs(got, wanted, most)
        if training:
            pairs = zip(model.named_parameters(), plain.parameters())
            for (_, mine), other in pairs:
                # For what is not used, compiled code has zeros.
                one, two = (
                    torch.zeros_like(weight) if weight.grad is None else weight.grad
                    for weight in (mine, other)
                )
                if max(one.abs().max(), two.abs().max()) > 1e-4:
                    apart = max(apart, _differs(one, two, 5 * most))
            with torch.no_grad():
                for mine, other in zip(model.parameters(), plain.parameters()):
                    mine.grad = other.grad = None
                    mine.mul_(0.999)
                    other.copy_(mine)
        if apart:
            wrong.append(f"call {number}: {apart:.2g}")
    return {"wrong": wrong, **(_count_replays() if ours else {})}


def time_one(name: str, ours: bool) -> None:
    """Prepare a model in this process, time it for each line on stdin, and print a row at its end.

    After each time it prints a line.
    """
    import torch

    if ours:
        use_our_graphs()
    phase, _, model_name = name.partition("-")
    row: dict[str, Any] = {"name": name, "side": "ours" if ours else "native"}
    try:
        run_steps = _make_steps(model_name, phase == "train")
        run_steps(20)
        print("ready", flush=True)
        found, worked = [], []
        for _ in sys.stdin:
            run_steps(4)
            began, began_work = time.perf_counter(), time.process_time()
            run_steps(20)
            worked.append((time.process_time() - began_work) / 20 * 1000)
            found.append((time.perf_counter() - began) / 20 * 1000)
            print("timed", flush=True)
        if not found:
            return
        row["ms"], row["cpu_ms"] = median(found), median(worked)
        row["all_ms"] = [round(one, 3) for one in found]
        row.update(_count_replays() if ours else {})
        row["most_mb"] = torch.cuda.max_memory_reserved() / 2**20
        row["end_mb"] = torch.cuda.memory_reserved() / 2**20
    except Exception as error:
        row["error"] = str(error)[:200]
    print(json.dumps(row), flush=True)


def _make_steps(name: str, training: bool) -> Callable[[int], None]:
    """A function that makes so many steps, in training with an optimizer."""
    import torch

    model, compiled, step = make_step(name, training, False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4) if training else None

    def run_steps(count: int) -> None:
        for number in range(count):
            torch.compiler.cudagraph_mark_step_begin()
            step(compiled, number)
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()

    return run_steps


def _count_replays() -> dict[str, Any]:
    from rocm_autopatch.graphs import record

    rows = record.render_rows()
    why: dict[str, int] = {}
    for row in rows:
        for reason, count in row["plain"].items():
            why[reason] = why.get(reason, 0) + count
    first = why.pop("the first calls of a signature run without a graph", 0)
    return {
        "calls": sum(row["calls"] for row in rows) - first,
        "replays": sum(row["replays"] for row in rows),
        "first": first,
        "plain": why,
        "refused": sorted({one["reason"] for row in rows for one in row["refused"]}),
    }


def _environ(caches: Path) -> dict[str, str]:
    return {
        **os.environ,
        "ROCM_AUTOPATCH": "off",
        "ROCM_AUTOPATCH_LOG": "quiet",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TORCHINDUCTOR_CACHE_DIR": str(caches),
        "OMP_NUM_THREADS": "1",
    }


def _run(job: tuple[str, str, str, str], work: Path) -> str:
    name, phase, _, side = job
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--one", *job],
            env=_environ(work / "caches" / "-".join((phase, name, side))),
            capture_output=True,
            text=True,
            timeout=280,
        )
        row = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else {}
        if not row:
            row = {"error": done.stderr.strip().splitlines()[-1:]}
    except subprocess.TimeoutExpired:
        row = {"error": ["280 seconds were over"]}
    row = {"job": job, "s": round(time.monotonic() - began), **row}
    return json.dumps(row)


class TimedProcess:
    """A process that prepares a model, and times it when it is told to."""

    def __init__(self, name: str, side: str, work: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--times", side, name],
            env=_environ(work / "caches" / f"{name}-{side}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._row = ""

    def wait_until_ready(self) -> str:
        """Wait, and return what it says then: a row, if it failed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("ready", "{")):
                return "" if line.startswith("ready") else line
        return ""

    def time_once(self) -> None:
        """Let it time its model once, and wait."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # It may have ended with an error.
        with suppress(BrokenPipeError):
            self._process.stdin.write("go\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            self._row = line if line.startswith("{") else ""

    def take_row(self) -> str:
        """Return its row: it has timed often enough."""
        out, _ = self._process.communicate()
        return self._row or next((one for one in out.splitlines() if one.startswith("{")), "")

    def end(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.communicate()


def fill_caches(names: Sequence[str], work: Path, jobs: int) -> None:
    """Let a process of each side prepare each model, so that those that are timed find caches."""

    def fill(one: tuple[str, str]) -> None:
        process = TimedProcess(*one, work)
        process.wait_until_ready()
        process.end()

    missing = [
        (name, side)
        for name in names
        for side in ("ours", "native")
        if not (work / "caches" / f"{name}-{side}").exists()
    ]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(fill, missing))


def compare_times(names: Sequence[str], count: int, work: Path, seconds: float, jobs: int) -> None:
    """Time models in processes by turns, keep rows, and print a comparison of the medians."""
    end = time.monotonic() + seconds
    fill_caches(names, work, jobs)
    kept = work / "times.jsonl"
    kept.touch()
    for name in names:
        if time.monotonic() > end:
            break
        # Neither side is always the first one.
        sides = ["ours", "native", "native", "ours"] * count
        processes = [TimedProcess(name, side, work) for side in sides[: 2 * count]]
        rows = [process.wait_until_ready() for process in processes]
        for _ in range(TURNS):
            for row, process in zip(rows, processes):
                if not row:
                    process.time_once()
        rows = [row or process.take_row() for row, process in zip(rows, processes)]
        with kept.open("a") as stream:
            stream.writelines(row.strip() + "\n" for row in rows if row)
        print_medians([name], [json.loads(row) for row in rows if row])
    print("all processes:")
    print_medians(names, [json.loads(line) for line in kept.read_text().splitlines()])


def print_medians(names: Sequence[str], rows: list[dict[str, Any]]) -> None:
    """Print medians of milliseconds and megabytes of both sides, and their ratios."""
    by_side: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_side.setdefault((row["name"], row["side"]), []).append(row)
    for name in names:
        ours, native = (by_side.get((name, side), []) for side in ("ours", "native"))
        cells = [f"{len(ours)} and {len(native)} processes"]
        for key in ("ms", "cpu_ms", "most_mb", "end_mb"):
            one, other = ([row[key] for row in side if key in row] for side in (ours, native))
            if one and other:
                pair = median(one), median(other)
                cells.append(f"{key} {pair[0]:.3f} / {pair[1]:.3f} = {pair[0] / pair[1]:.3f}")
        cells += [row["error"] for row in (*ours, *native) if "error" in row]
        print(f"{name}: {', '.join(cells)}", flush=True)


def main() -> None:
    """Run all that is asked for and not done yet."""
    parser = argparse.ArgumentParser(description="Replays of regions, beside eager mode.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--phases", nargs="+", default=["infer", "train"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--sides", nargs="+", default=["ours"])
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--time", type=int, metavar="PROCESSES")
    asked = parser.parse_args()
    for name in asked.only or ():
        _, _, model = name.rpartition("-") if asked.time else ("", "", name)
        if model not in NAMES or (asked.time and not name.startswith(("infer-", "train-"))):
            parser.error(f"--only {name}: nothing is called so")
    asked.work.mkdir(parents=True, exist_ok=True)
    if asked.time:
        names = asked.only or TIMED
        compare_times(names, asked.time, asked.work, asked.seconds, asked.jobs)
        return
    kept = asked.work / "regions.jsonl"
    done = set()
    if kept.exists():
        done = {tuple(json.loads(line)["job"]) for line in kept.read_text().splitlines()}
    jobs = [
        (name, phase, dtype, side)
        for name in asked.only or NAMES
        for phase in asked.phases
        for dtype in asked.dtypes
        for side in asked.sides
    ]
    end = time.monotonic() + asked.seconds

    def run(job: tuple[str, str, str, str]) -> None:
        if job in done or time.monotonic() > end:
            return
        line = _run(job, asked.work)
        with kept.open("a") as stream:
            stream.write(line + "\n")
        print(line, flush=True)

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(run, jobs))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        model_, phase_, dtype_, side_ = sys.argv[2:6]
        found = run_one(model_, phase_ == "train", dtype_ == "bfloat16", side_ == "ours")
        print(json.dumps(found))
    elif sys.argv[1:2] == ["--times"]:
        time_one(sys.argv[3], sys.argv[2] == "ours")
    else:
        main()
