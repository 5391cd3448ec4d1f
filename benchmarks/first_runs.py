"""What the first run of a set of switches compiles, with Triton's kernels shared between sets.

    .work/amd/bin/python benchmarks/first_runs.py [--sets KEY=VALUE ...]

For an interpreter with torch and a GPU, or with the AMD compiler and a GPU that compiles and does
not run (``make amd``). The program is a training step of two transformer layers. The base fills
caches first. Then each set compiles it twice in processes of their own: with empty caches, and with
an empty cache of Inductor's and Triton's kernels of all sets before it, as ``rocm-autopatch tune``
runs it. The seconds are those of the compile, and those of all cores in the whole process: they
count where many first runs are beside each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import geometric_mean

from rocm_autopatch.measure.ab.runner import own_caches

_SETS = (
    "max_fusion_size=128",
    "combo_kernels=true",
    "triton.persistent_reductions=false",
    "split_reductions=false",
    "triton.prefer_nd_tiling=true",
    "loop_ordering_after_fusion=true",
)


def compile_once(switch: str) -> None:
    """Print the seconds of a compile with a switch, in this process."""
    import torch
    import torch._inductor.config as config

    key, _, value = switch.partition("=")
    width = 512
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    net = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to("cuda")
    x = torch.randn(16, 256, width, device="cuda")
    began = time.perf_counter()
    with config.patch({key: json.loads(value)} if key else {}):
        torch.compile(net)(x).square().mean().backward()
    print(time.perf_counter() - began)


def seconds(switch: str, caches: Mapping[str, str]) -> tuple[float, float]:
    """The seconds of a compile in a process of its own, and those of all cores.

    Raises CalledProcessError.
    """
    before = os.times()
    done = subprocess.run(
        [sys.executable, __file__, "--one", switch],
        env={**os.environ, "ROCM_AUTOPATCH": "off", **caches},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    after = os.times()
    cores = sum(after[2:4]) - sum(before[2:4])
    return float(done.stdout.split()[-1]), cores


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sets", nargs="+", default=_SETS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        compile_once(asked.one)
        return
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        kernels = place / "kernels"
        print(
            "base: {:.1f} s, {:.1f} of all cores".format(
                *seconds("", own_caches(place / "base", kernels))
            )
        )
        ratios = []
        for number, switch in enumerate(asked.sets):
            own = seconds(switch, own_caches(place / f"own{number}"))
            shared = seconds(switch, own_caches(place / f"shared{number}", kernels))
            ratios.append([b / a for a, b in zip(own, shared)])
            words = [
                f"{a:.1f} s, {b:.1f} shared ({ratio:.2f})"
                for a, b, ratio in zip(own, shared, ratios[-1])
            ]
            print(f"{switch}: {'; of all cores '.join(words)}", flush=True)
        means = [f"{geometric_mean(its):.2f}" for its in zip(*ratios)]
        print(f"geometric means of the ratios: {' and '.join(means)}")


if __name__ == "__main__":
    main()
