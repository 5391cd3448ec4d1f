"""On a machine with a GPU: frameworks' programs under each policy, in two starts.

    python experiments/gpu/programs.py WORK [--only NAME ...] [--under POLICY ...] [--at-once N]
        [--seconds S]

For an interpreter that has torch for that GPU, transformers, timm, torchvision, diffusers and our
wheel. The programs are of starts.py: transformers' ``generate`` with a static cache, which
transformers itself compiles with ``reduce-overhead``; its continuous batching, a convolution net of
timm and a pipeline of diffusers, all in the same mode; a net of torchvision in ``max-autotune``.
Each runs with TORCHINDUCTOR_MAX_AUTOTUNE=1, as in SGLang's ROCm images, without us and under
built-in policies. WORK/programs.jsonl keeps the results as they come. On a GPU that is not AMD's,
the fact that opens our gate is assumed: this shows what Inductor does, and nothing of HIP.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from starts import run_all, table

PROGRAMS = ("decoder", "convolution", "detector", "batching", "unet")
POLICIES = (
    *("off", "safe", "performance", "capture-guard", "sglang-compile"),
    *("debug", "no-hipblaslt", "no-library-search"),
)


def environment(policy: str) -> dict[str, str]:
    ours = {"ROCM_AUTOPATCH": "off"} if policy == "off" else {"ROCM_AUTOPATCH_POLICY": policy}
    return {"TORCHINDUCTOR_MAX_AUTOTUNE": "1", **ours}


def main() -> None:
    parser = argparse.ArgumentParser(description="Frameworks' programs under each policy.")
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--under", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--at-once", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=400, help="to begin starts in")
    asked = parser.parse_args()
    kept = asked.work / "programs.jsonl"
    found = run_all(kept, environment, asked.under, asked.only, asked.at_once, asked.seconds)
    table(found, asked.under, asked.only)


if __name__ == "__main__":
    main()
