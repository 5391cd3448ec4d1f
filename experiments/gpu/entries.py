"""On a machine with a GPU: each entry of the performance policy alone, in two starts.

    python experiments/gpu/entries.py WORK [--at-once N] [--seconds S]

For an interpreter that has torch for that GPU, transformers, timm and our wheel. Three programs of
starts.py run under ``safe``, under ``safe`` with one entry more, and under ``performance``: a
decoder with a static cache (transformers' ``generate``), an encoder and a convolution net.
WORK/results.jsonl keeps results as they come. On a GPU that is not AMD's, the fact that opens our
gate is assumed: that shows what Inductor does, and nothing of HIP.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from starts import run_all, table

PROGRAMS = ("decoder", "encoder", "convolution")
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
POLICIES = {
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Each entry of performance, in two starts.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=540, help="to begin starts in")
    asked = parser.parse_args()

    def environment(arm: str) -> dict[str, str]:
        policy: Path = asked.work / f"{list(POLICIES).index(arm)}.yaml"
        policy.write_text(POLICIES[arm])
        return {"ROCM_AUTOPATCH_POLICY": str(policy)}

    kept = asked.work / "results.jsonl"
    found = run_all(kept, environment, POLICIES, PROGRAMS, asked.at_once, asked.seconds)
    table(found, POLICIES, PROGRAMS)


if __name__ == "__main__":
    main()
