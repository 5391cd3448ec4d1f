# mypy: disable-error-code="import-not-found, no-any-return", allow-subclassing-any
"""On a machine with a GPU: one compile without us, by hand, and with us, side by side in one run.

    python experiments/gpu/compare.py [MODE ...]

For an interpreter that has torch for that GPU and our wheel. Each process compiles one denoiser
with TORCHINDUCTOR_MAX_AUTOTUNE=1 in its environment. "By hand" is a block of settings at the
program's beginning, with a replacement of torch.compile (docs/claims.md, block-by-hand). On a GPU
that is not AMD's, the fact that opens our gate is assumed: that shows what Inductor does, and
nothing of HIP.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

RUNS = 2
STEPS, BLOCKS, WIDTH, TOKENS = 10, 4, 1024, 256
SIDES = {
    "without": {"ROCM_AUTOPATCH": "off"},
    "by hand": {"ROCM_AUTOPATCH": "off", "BY_HAND": "1"},
    "with": {"ROCM_AUTOPATCH_ASSUME": "accelerator=rocm"},
}


def by_hand() -> None:
    """The block of docs/claims.md, block-by-hand and safe-compile."""
    import torch
    import torch._inductor.config as inductor

    inductor.max_autotune = False
    inductor.max_autotune_gemm_backends = "ATEN"
    inductor.coordinate_descent_tuning = False
    inductor.triton.cudagraphs = False
    inductor.triton.cudagraph_trees = False
    inductor.memory_planning = False
    inductor.epilogue_fusion = True
    inductor.pattern_matcher = True
    inductor.reorder_for_locality = True
    original: Any = torch.compile

    def safe_compile(model: Any = None, **kwargs: Any) -> Any:
        if kwargs.get("mode") in (None, "reduce-overhead"):
            kwargs["mode"] = "default"
        return original(model, **kwargs)

    torch.compile = safe_compile


def compile_one(mode: str) -> dict[str, Any]:
    """Compile and call the model in this process."""
    import torch

    if "BY_HAND" in os.environ:
        by_hand()

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
            self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    class Denoiser(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))

        def forward(self, x: Any) -> Any:
            for _ in range(STEPS):
                x = x - self.blocks(x) / STEPS
            return x

    replays = []
    graphs: Any = torch.cuda.CUDAGraph
    replay = graphs.replay

    def counted(graph: Any) -> None:
        replays.append(graph)
        replay(graph)

    graphs.replay = counted
    torch.manual_seed(0)
    model = Denoiser().cuda().bfloat16().eval()
    x = torch.randn(1, TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(model, mode=mode)
    with torch.no_grad():
        start = time.perf_counter()
        compiled(x)
        torch.cuda.synchronize()
        cold = time.perf_counter() - start
        for _ in range(10):
            compiled(x)
        torch.cuda.synchronize()
        replays.clear()
        start = time.perf_counter()
        for _ in range(100):
            result = compiled(x)
        torch.cuda.synchronize()
        warm = (time.perf_counter() - start) / 100
        difference = (result - model(x)).abs().max().item()
    return {
        "torch": f"{torch.__version__}, {torch.cuda.get_device_name()}",
        "cold_compile_s": round(cold, 2),
        "warm_call_ms": round(warm * 1000, 3),
        "graph_replays_of_100_calls": len(replays),
        "largest_difference_to_eager": difference,
    }


def main(modes: list[str]) -> None:
    for mode in modes or ["reduce-overhead", "max-autotune"]:
        for _ in range(RUNS):
            for side, more in SIDES.items():
                with tempfile.TemporaryDirectory() as cache:
                    done = subprocess.run(
                        [sys.executable, __file__, "--one", mode],
                        env={
                            **os.environ,
                            **more,
                            "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
                            "TORCHINDUCTOR_CACHE_DIR": cache,
                        },
                        capture_output=True,
                        text=True,
                    )
                if done.returncode:
                    sys.exit(done.stderr)
                seen = json.loads(done.stdout.splitlines()[-1])
                seen["gemms_benchmarked"] = done.stderr.count("AUTOTUNE ")
                print(json.dumps({"mode": mode, "side": side, **seen}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(compile_one(sys.argv[2])))
    else:
        main(sys.argv[1:])
