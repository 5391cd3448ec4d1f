"""The figures that benchmarks/amd has kept, as a section of docs/measurements.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.amd import __main__ as benchmark
from surroundings import amd_torch

TITLE = "In AMD's compiler, on a CPU"
ABOUT = """\
What compiling costs for a layer each of seven models (Llama 3 8B, Mixtral 8x7B, BERT, ViT,
ConvNeXt, a UNet, a training step of GPT-2; bf16), for MI300X and MI355X, by [a GPU that compiles
and does not run](design.md#a-gpu-that-compiles-and-does-not-run), so without benchmarks. Ratios
to torch alone, the smallest and the largest. *image* has the `TORCHINDUCTOR_*` variables of
SGLang's images. Seconds are rough. [All figures](../benchmarks/amd/figures.jsonl)."""
SAYS = """\
- With the image's variables, the compiler makes all GEMM templates, and twice as many configs of
  other kernels. Under `safe` it compiles what torch alone compiles.
- A mode that searches is asked for by the program. Under `safe` it searches configs of all
  kernels but GEMMs."""
BASE = "torch alone"


def section(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the section. Of rows for the same cell, the last that did not fail counts."""
    found = {(row["gpu"], row["model"], row["arm"]): row for row in rows if "failed" not in row}
    days = sorted({row.get("made", "2026-11-23") for row in found.values()})
    torches = sorted({row["torch"] for row in found.values()})
    yield f"### {TITLE}"
    yield (
        f"`make amd`; 2 CPU cores that other programs used too, torch {', '.join(torches)}, Triton "
        f"{amd_torch.TRITON}; {', '.join(days)}."
    )
    yield from ("", *ABOUT.splitlines())
    yield ""
    yield "| | kernels | CPU seconds | GEMM kernels |"
    yield "|---|---:|---:|---:|"
    # Arms that compile as many kernels are one row.
    arms: dict[tuple[str, str], list[str]] = {}
    seconds: dict[tuple[str, str], list[float]] = {}
    for arm in benchmark.arms():
        pairs = [
            (row, found[key[0], key[1], BASE])
            for key, row in found.items()
            if key[2] == arm and (key[0], key[1], BASE) in found
        ]
        if not pairs or arm == BASE:
            continue
        gemms = sorted(row["gemm_candidates"] for row, _ in pairs)
        kernels = _range(row["candidates"] / base["candidates"] for row, base in pairs)
        group = kernels, f"{gemms[0]} to {gemms[-1]}" if gemms[-1] else "0"
        arms.setdefault(group, []).append(arm)
        seconds.setdefault(group, []).extend(row["cpu"] / base["cpu"] for row, base in pairs)
    for (kernels, templates), names in arms.items():
        cpu = _range(seconds[kernels, templates])
        yield f"| {'; '.join(names)} | {kernels} | {cpu} | {templates} |"
    yield ""
    yield from SAYS.splitlines()


def _range(ratios: Iterable[float]) -> str:
    ordered = sorted(ratios)
    low, high = f"{ordered[0]:.1f}", f"{ordered[-1]:.1f}"
    return low if low == high else f"{low} to {high}"


def kept() -> list[dict[str, Any]]:
    """The rows that benchmarks/amd has kept."""
    lines = benchmark.KEPT.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
