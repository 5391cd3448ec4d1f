"""What transformers' continuous batching decides for a mode of torch.compile, without and with us.

    python experiments/live/continuous_batching.py

In an environment with transformers, a torch of a ROCm build, or the label of one, and the wheel.
transformers asks ``torch._inductor.list_mode_options`` whether a mode captures graphs. If it does,
transformers does not capture its own, and does not batch asynchronously. Where no GPU is there, a
stand-in says that graphs can be captured. Exit status 1: with us a mode that captures nothing turns
transformers' graphs off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
PROGRAM = Path(__file__).with_name("programs") / "batching_modes.py"


def decided(**env: str) -> dict[str, list[bool]]:
    """By mode, whether transformers captures graphs of its own, and batches asynchronously."""
    command = [sys.executable, "-Wignore", str(PROGRAM), *MODES]
    done = subprocess.run(
        command, env={**os.environ, **env}, check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, list[bool]] = json.loads(done.stdout)
    return found


def main() -> int:
    print(f"{'mode':28}{'own graphs, asynchronous: without us':40}safe    performance")
    off = decided(ROCM_AUTOPATCH="off")
    ours = {name: decided(ROCM_AUTOPATCH_POLICY=name) for name in ("safe", "performance")}
    for mode in MODES:
        print(f"{mode:28}{off[mode]!s:40}{ours['safe'][mode]!s}  {ours['performance'][mode]!s}")
    return int(any(said != [True, True] for some in ours.values() for said in some.values()))


if __name__ == "__main__":
    sys.exit(main())
