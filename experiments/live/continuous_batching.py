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

MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune")
PROGRAM = """
import json
from transformers import CompileConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import initialization

initialization.get_accelerator_graph_name = lambda: "cuda"
found = {}
for mode in %r:
    compiled = CompileConfig(mode=mode)
    config = ContinuousBatchingConfig(
        varlen_compile_config=compiled, decode_compile_config=compiled
    )
    initialization.decide_use_cuda_graphs(
        config, is_attn_mask_needed=False, cuda_graph_requested=False
    )
    initialization.decide_use_async_batching(config, is_attn_mask_needed=False)
    found[mode] = [all(config.use_cuda_graph), config.use_async_batching]
print(json.dumps(found))
""" % (MODES,)


def decided(**env: str) -> dict[str, list[bool]]:
    """By mode, whether transformers captures graphs of its own, and batches asynchronously."""
    command = [sys.executable, "-Wignore", "-c", PROGRAM]
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
