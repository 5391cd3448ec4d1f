"""Make docs/amd-compiler.md from the figures that benchmarks/amd has kept.

python tools/amd_page.py > docs/amd-compiler.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.amd import __main__ as benchmark
from surroundings import amd_torch
from surroundings.compiling_gpu import gpus

HEAD = """\
# In AMD's compiler: the figures

`make amd` made them, on a CPU of two cores that other programs used too; `make docs` made this
page of them. The device is [a GPU that compiles and does not
run](design.md#a-gpu-that-compiles-and-does-not-run): the compiler is AMD's, and nothing that it
makes is run. So this is what compiling costs. What benchmarking the candidates on a GPU would add
is missing. [What the figures say](performance.md#in-amds-compiler-on-a-cpu) is on another page.

- The models have one layer of each kind and the widths of Llama 3 8B (with a vocabulary of
  32,000), BERT base, Mixtral 8x7B (narrower experts and vocabulary), ViT base, ConvNeXt tiny, the
  first level of Stable Diffusion's UNet, and GPT-2 in a training step; bf16.
- "image" has the `TORCHINDUCTOR_*` variables of SGLang's images; only rows with that word have
  them. A mode is `torch.compile(mode=...)`. "safe + KEY" is `safe` with a switch that
  `performance` may turn on.
- Each arm ran once, in a process of its own, with empty caches and one compile thread.
- A cell has the compiled kernels (of them for GEMMs), CPU seconds of the first call, the size of
  the compiled code, and the 32-bit registers that threads spill, summed over the compiled
  kernels. The counts and sizes are exact. The seconds are rough: they depend on what else ran.
- An empty cell was not measured.
"""


BASE = "torch alone"


def page(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of the page. Of rows for the same cell, the last that did not fail counts."""
    found = {(row["gpu"], row["model"], row["arm"]): row for row in rows if "failed" not in row}
    yield from HEAD.splitlines()
    days = sorted({row.get("made", "2026-11-23") for row in found.values()})
    torches = sorted({row["torch"] for row in found.values()})
    yield f"- torch {', '.join(torches)}, Triton {amd_torch.TRITON}; {', '.join(days)}."
    yield from _summary(found)
    for gpu in benchmark.GPUS:
        yield ""
        yield f"## {gpus.GPUS[gpu].name} ({gpus.GPUS[gpu].gfx})"
        yield "| | " + " | ".join(benchmark.MODELS) + " |"
        yield "|---|" + "---:|" * len(benchmark.MODELS)
        for arm in benchmark.arms():
            cells = [_cell(found.get((gpu, model, arm))) for model in benchmark.MODELS]
            if any(cells):
                yield f"| {arm} | " + " | ".join(cells) + " |"


def _summary(found: Mapping[benchmark.Key, Mapping[str, Any]]) -> Iterator[str]:
    """Each arm as ratios to torch alone: the smallest and the largest one."""
    yield ""
    yield "## In short"
    yield f"Ratios to `{BASE}`, the smallest and the largest over the models and both GPUs."
    yield ""
    yield "| | models | kernels | CPU seconds | bytes of code | GEMM kernels |"
    yield "|---|---:|---:|---:|---:|---:|"
    for arm in benchmark.arms():
        own = {key: row for key, row in found.items() if key[2] == arm}
        pairs = [
            (row, found[key[0], key[1], BASE])
            for key, row in own.items()
            if (key[0], key[1], BASE) in found
        ]
        if not pairs or arm == BASE:
            continue
        cells = [
            _range(row[name] / base[name] for row, base in pairs)
            for name in ("candidates", "cpu", "bytes")
        ]
        gemms = sorted(row["gemm_candidates"] for row, _ in pairs)
        cells.append(f"{gemms[0]} to {gemms[-1]}" if gemms[-1] else "0")
        models = len({model for _, model, _ in own})
        yield f"| {arm} | {models} | {' | '.join(cells)} |"


def _range(ratios: Iterable[float]) -> str:
    low, *_, high = sorted(ratios)
    return f"{low:.1f} to {high:.1f}" if f"{low:.1f}" != f"{high:.1f}" else f"{low:.1f}"


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    spilled = f", {row['spilled']:,} spilled" if row["spilled"] else ""
    gemms = f" ({row['gemm_candidates']})" if row["gemm_candidates"] else ""
    size = f"{row['bytes'] / 1024:,.0f} KiB"
    return f"{row['candidates']}{gemms}, {row['cpu']:.0f} s, {size}{spilled}"


def kept() -> list[dict[str, Any]]:
    """The rows that benchmarks/amd has kept."""
    lines = benchmark.KEPT.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    print("\n".join(page(kept())))
