# mypy: disable-error-code="import-not-found", allow-subclassing-any
"""What a replay of a compiled region costs the processor in training, without the graph itself.

    python benchmarks/region_price.py [--checkout DIRECTORY ...] [--layers 12] [--whole]
        [--rounds 3]

It needs torch, and no GPU: the stand-in of tests/graphs captures layers that share their code, and
then each graph does nothing. What is left are the checks, the copies of arguments and the results.
With --whole, all layers are one region. One process of each checkout after the other measures, in
each round; without --checkout that is this one. The table has the microseconds of all replays of a
step, and of one region's forward and backward in the middle of the step: medians of the processes,
and their quotients to the first one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SIZE, WARM, STEPS = 32, 12, 200


def measure(count: int, whole: bool) -> list[float]:
    """Train so many layers in this process: microseconds of a step, a forward and a backward."""
    import stand_in
    import torch

    from rocm_autopatch import startup
    from rocm_autopatch.graphs import training

    if startup.release(torch.__version__) < (2, 6):
        sys.exit(f"torch {torch.__version__} has no training graphs: it needs 2.6 or later")
    stand_in.install()
    stand_in.graphs_in_modes()

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(SIZE) for _ in range(2))
            self.maps = torch.nn.ModuleList(torch.nn.Linear(SIZE, SIZE) for _ in range(6))

        def forward(self, x: Any, mask: Any) -> Any:
            query, key, value = (one(self.norms[0](x)) for one in self.maps[:3])
            scores = torch.softmax(query @ key.transpose(-1, -2) * 0.2 + mask, -1)
            x = x + self.maps[3](scores @ value)
            return x + self.maps[5](torch.nn.functional.gelu(self.maps[4](self.norms[1](x))))

    layers = torch.nn.ModuleList(Layer() for _ in range(count))
    x, mask = torch.randn(2, 8, SIZE), torch.zeros(2, 8, 8)

    def run_all(calls: Any) -> Any:
        result = x
        for call in calls:
            result = call(result, mask)
        return result

    def compiled(function: Any) -> Any:
        return torch.compile(function, mode="reduce-overhead", dynamic=False)

    regions = 1 if whole else count
    forward = compiled(run_all) if whole else run_all
    calls = layers if whole else [compiled(one) for one in layers]

    def run_step() -> None:
        forward(calls).square().mean().backward()
        layers.zero_grad()

    for _ in range(WARM):
        run_step()
    _make_graphs_empty()
    found: list[float] = []
    for owner in (training.CompiledForward, training.CompiledBackward):
        _time_calls(owner, found)
    steps = []
    for _ in range(STEPS):
        found.clear()
        run_step()
        steps.append([sum(found), found[regions // 2], found[regions + regions // 2]])
    return [median(column) * 1e6 for column in zip(*steps[STEPS // 4 :])]


def _make_graphs_empty() -> None:
    import gc

    from rocm_autopatch.graphs import graph_cache, states

    for cache in [one for one in gc.get_objects() if type(one) is graph_cache.GraphCache]:
        for state in cache.states():
            if isinstance(state, states.CapturedState):
                state.graph, state.next_check = lambda: None, 0


def _time_calls(owner: Any, found: list[float]) -> None:
    call = owner.__call__

    def timed(self: Any, inputs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(self, inputs)
        finally:
            found.append(time.perf_counter() - began)

    owner.__call__ = timed


def run_process(checkout: Path, layers: int, whole: bool, caches: str) -> list[float]:
    """Let a process measure the package of a checkout. Exits with its error, if it has one."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "tests" / "graphs")]),
        "TORCHINDUCTOR_CACHE_DIR": caches,
        "OMP_NUM_THREADS": "1",
        "ROCM_AUTOPATCH": "off",
    }
    command = [sys.executable, __file__, "--measure", "--layers", str(layers)]
    command += ["--whole"] * whole
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{checkout}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
    row: list[float] = json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The processor's price of a replayed region.")
    parser.add_argument("--checkout", type=Path, nargs="+", default=[ROOT])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        print(json.dumps(measure(asked.layers, asked.whole)))
        return
    if asked.layers < 1 or asked.rounds < 1:
        parser.error("--layers and --rounds are at least 1")
    for one in asked.checkout:
        if not (one / "tests" / "graphs" / "stand_in.py").is_file():
            parser.error(f"{one} is no checkout: it has no tests/graphs/stand_in.py")
    rows: dict[Path, list[list[float]]] = {one: [] for one in asked.checkout}
    with tempfile.TemporaryDirectory() as caches:
        for _ in range(asked.rounds):
            for checkout, found in rows.items():
                found.append(run_process(checkout.resolve(), asked.layers, asked.whole, caches))
    first: list[float] = []
    print("checkout: microseconds of a step's replays, of a forward, of a backward")
    for checkout, found in rows.items():
        medians = [median(column) for column in zip(*found)]
        first = first or medians
        cells = [f"{one:.0f} ({one / other:.2f})" for one, other in zip(medians, first)]
        print(f"{checkout}: {', '.join(cells)}")


if __name__ == "__main__":
    main()
