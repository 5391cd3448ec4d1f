# mypy: disable-error-code="import-not-found, no-any-return"
"""On a machine with a GPU: a compile inside a graph capture, without and with the capture patch.

    python experiments/gpu/capture.py [SETTING ...]

For an interpreter that has torch for that GPU; the patch is taken from this checkout. Each process
captures a call of a compiled function that has not been compiled, catches what it raises, and
captures the uncompiled function in its place, in the same capture. A line of what happened is
printed for each backend and setting, "off" being torch alone. Exit status 1: the guard was not what
it should be, which is an error before any harm. Unlike the other tests, nothing here is pretended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ["off", "guard", "skip-rng"]
BACKENDS = ["eager", "aot_eager", "inductor"]
DEVICE = "cuda"


def first_line(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0] if error else ""


def attempt(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error as a line."""
    try:
        return call()
    except Exception as error:
        return first_line(error)


def compile_in_capture(setting: str, backend: str) -> dict[str, Any]:
    """Compile in a capture in this process, and look at what is left afterwards."""
    import torch
    import torch._dynamo.convert_frame as convert_frame
    from torch._dynamo.utils import counters

    sys.path.insert(0, str(ROOT))
    from rocm_autopatch.patches import capture

    torch.manual_seed(0)
    x, new = torch.randn(2, 256, 256, device=DEVICE)
    weight = torch.randn(256, 256, device=DEVICE)

    def forward(x: Any) -> Any:
        return torch.softmax(torch.nn.functional.gelu(x @ weight), -1) + x

    def warm(call: Callable[[Any], Any]) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call(x)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()

    def replays(graph: Any, y: Any) -> bool:
        """Whether the graph computes what the uncompiled function does, of another input."""
        before = x.clone()
        x.copy_(new)
        y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        right = torch.allclose(y, forward(new), atol=1e-2)
        x.copy_(before)
        return right

    def capture_warm() -> bool:
        warm(compiled)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = compiled(x)
        return replays(graph, y)

    warm(forward)
    (row,) = capture.apply(convert_frame, [("capture", setting, "experiments/gpu", "")], (), False)
    compiled = torch.compile(forward, backend=backend)
    state, graph = torch.cuda.get_rng_state(), torch.cuda.CUDAGraph()
    seen: dict[str, Any] = {}

    def capture_cold() -> bool:
        with torch.cuda.graph(graph):
            allocated, start = torch.cuda.memory_allocated(), time.perf_counter()
            try:
                y = compiled(x)
                seen["raised"] = ""
            except Exception as error:
                seen["raised"] = first_line(error)
            seen["seconds"] = round(time.perf_counter() - start, 4)
            seen["graphs_compiled"] = counters["stats"]["unique_graphs"]
            seen["bytes_allocated"] = torch.cuda.memory_allocated() - allocated
            if seen["raised"]:
                y = forward(x)
        return replays(graph, y)

    return {
        "torch": f"{torch.__version__}, {torch.cuda.get_device_name()}",
        "row": f"{row['status']}: {row['reason']}",
        "this_capture_replays_right": attempt(capture_cold),
        **seen,
        "uses": row["uses"],
        "still_capturing": attempt(torch.cuda.is_current_stream_capturing),
        "rng_state_as_before": attempt(lambda: torch.equal(torch.cuda.get_rng_state(), state)),
        "stream_works": attempt(lambda: (x - x).sum().item() == 0),
        "warm_capture_replays_right": attempt(capture_warm),
    }


def guarded(seen: dict[str, Any]) -> bool:
    """Whether the guard said its word before anything else had happened."""
    return (
        seen["raised"].startswith("RuntimeError: torch.compile was about to compile forward (")
        and (seen["uses"], seen["graphs_compiled"], seen["bytes_allocated"]) == (1, 0, 0)
        and seen["still_capturing"] is False
        and all(
            seen[name] is True
            for name in (
                "this_capture_replays_right",
                "rng_state_as_before",
                "stream_works",
                "warm_capture_replays_right",
            )
        )
    )


def main(settings: list[str]) -> int:
    wrong = False
    for backend in BACKENDS:
        for setting in settings or SETTINGS:
            with tempfile.TemporaryDirectory() as cache:
                done = subprocess.run(
                    [sys.executable, __file__, "--one", setting, backend],
                    env={**os.environ, "ROCM_AUTOPATCH": "off", "TORCHINDUCTOR_CACHE_DIR": cache},
                    capture_output=True,
                    text=True,
                )
            if done.returncode:
                sys.exit(done.stderr)
            seen = json.loads(done.stdout.splitlines()[-1])
            print(json.dumps({"backend": backend, "setting": setting, **seen}), flush=True)
            if setting == "guard" and not seen["row"].startswith("skipped"):
                wrong = wrong or not guarded(seen)
    return int(wrong)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(compile_in_capture(*sys.argv[2:4])))
    else:
        sys.exit(main(sys.argv[1:]))
