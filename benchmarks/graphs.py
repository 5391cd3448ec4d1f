# mypy: allow-subclassing-any
"""The speed of a few models on a GPU, in the long run: without graphs, and with each kind of graph.

    python benchmarks/graphs.py [--models mlp denoiser ...] [--batches 1 8 64] [--json FILE]
    python benchmarks/graphs.py --host [--models convnet] [--batches 8]

It needs a GPU, torch and the wheel. All variants run in turn in one process, for inference only, in
bf16. Microseconds per call are medians over rounds; "host" is the time until the calls are issued.
With --cold, the first calls run in processes of their own, with empty caches, in turn.
With --host, only what the host needs for a call of ours is measured, more than for copying the
arguments and a replay: the model "convnet" has 36 weights and buffers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from rocm_autopatch.graphs import graphed, record
from rocm_autopatch.patches import compile_modes

# The options of Inductor's own mode: a mode's name would go through the table installed here.
NATIVE = {"triton.cudagraphs": True}
# Whose time on the host is compared with that of the graph alone.
HOST_WAYS, BARE = ("wrapper", "alias", "mode"), "copy+replay"
ROUNDS, CALLS, COLD_RUNS, COLD_CALLS = 15, 60, 3, 4


class Mlp(torch.nn.Module):
    """Three layers of 512: the time goes to launches."""

    def __init__(self) -> None:
        super().__init__()
        layers = [torch.nn.Linear(512, 512) for _ in range(3)]
        self.layers = torch.nn.Sequential(layers[0], torch.nn.GELU(), layers[1], torch.nn.GELU())
        self.last = layers[2]

    def forward(self, x: Any) -> Any:
        return self.last(self.layers(x))

    def arguments(self, batch: int) -> tuple[Any, ...]:
        return (torch.randn(batch, 512, device="cuda", dtype=torch.bfloat16),)


class Denoiser(torch.nn.Module):
    """Four MLP blocks, ten unrolled steps."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(4))
        self.ups = torch.nn.ModuleList(torch.nn.Linear(width, 4 * width) for _ in range(4))
        self.downs = torch.nn.ModuleList(torch.nn.Linear(4 * width, width) for _ in range(4))

    def forward(self, x: Any, step: Any) -> Any:
        for _ in range(10):
            y = x
            for norm, up, down in zip(self.norms, self.ups, self.downs):
                y = y + down(torch.nn.functional.gelu(up(norm(y))))
            x = x - y * step
        return x

    def arguments(self, batch: int) -> tuple[Any, ...]:
        made = {"device": "cuda", "dtype": torch.bfloat16}
        return torch.randn(batch, 16, 512, **made), torch.full((1,), 0.1, **made)


class Decoder(torch.nn.Module):
    """One token through four layers with a static cache of 256 keys and values."""

    def __init__(self, width: int = 512, heads: int = 8, length: int = 256) -> None:
        super().__init__()
        self.heads, self.length, self.width = heads, length, width
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(width, 3 * width) for _ in range(4))
        self.out = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(4))
        self.cache = torch.nn.Module()

    def arguments(self, batch: int) -> tuple[Any, ...]:
        made = {"device": "cuda", "dtype": torch.bfloat16}
        for layer in range(4):
            for name in ("k", "v"):
                shape = batch, self.heads, self.length, self.width // self.heads
                self.cache.register_buffer(f"{name}{layer}", torch.zeros(shape, **made))
        return torch.randn(batch, 1, self.width, **made), torch.tensor([7], device="cuda")

    def forward(self, x: Any, at: Any) -> Any:
        mask = (torch.arange(self.length, device=x.device) <= at)[None]
        for layer, (qkv, out) in enumerate(zip(self.qkv, self.out)):
            shape = x.shape[0], 1, 3, self.heads, self.width // self.heads
            q, k, v = qkv(x).view(shape).unbind(2)
            keys, values = getattr(self.cache, f"k{layer}"), getattr(self.cache, f"v{layer}")
            keys.index_copy_(2, at, k.transpose(1, 2))
            values.index_copy_(2, at, v.transpose(1, 2))
            attend = torch.nn.functional.scaled_dot_product_attention
            y = attend(q.transpose(1, 2), keys, values, attn_mask=mask)
            x = x + out(y.transpose(1, 2).reshape(x.shape))
        return x


class ConvNet(torch.nn.Module):
    """Six convolutions with norms, on 32 x 32 pictures."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[Any] = []
        for wide_in, wide_out in ((3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)):
            layers += [torch.nn.Conv2d(wide_in, wide_out, 3, padding=1, bias=False)]
            layers += [torch.nn.BatchNorm2d(wide_out), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Any) -> Any:
        return self.layers(x).flatten(1)

    def arguments(self, batch: int) -> tuple[Any, ...]:
        return (torch.randn(batch, 3, 32, 32, device="cuda", dtype=torch.bfloat16),)


MODELS: dict[str, Callable[[], Any]] = {
    "mlp": Mlp,
    "denoiser": Denoiser,
    "decoder": Decoder,
    "convnet": ConvNet,
}


def bare(
    function: Callable[..., Any], arguments: tuple[Any, ...], copy: bool
) -> Callable[..., Any]:
    """A graph captured by hand (docs/claims.md, manual-capture), with and without copied inputs."""
    statics = [one.clone() for one in arguments]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function(*statics)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function(*statics)

    def replay(*given: Any) -> Any:
        if copy:
            for static, one in zip(statics, given):
                static.copy_(one)
        graph.replay()
        return result

    return replay


def ways(
    model: Any, arguments: tuple[Any, ...], only: Sequence[str] = ()
) -> dict[str, Callable[[], Callable[..., Any]]]:
    """By name, what makes each way to call a model; all of them, or *only* some."""
    compiled = torch.compile(model, dynamic=False)
    found = {
        "eager": lambda: model,
        "compiled": lambda: compiled,
        "native": lambda: torch.compile(model, dynamic=False, options=NATIVE),
        "mode": lambda: torch.compile(model, dynamic=False, mode="reduce-overhead"),
        "wrapper": lambda: graphed(compiled),
        "promise": lambda: graphed(compiled, guards="none"),
        "alias": lambda: graphed(compiled, outputs="alias", guards="none"),
        "make_graphed": lambda: torch.cuda.make_graphed_callables(
            lambda *given: compiled(*given), arguments
        ),
        "copy+replay": lambda: bare(compiled, arguments, copy=True),
        "replay": lambda: bare(compiled, arguments, copy=False),
    }
    return {way: make for way, make in found.items() if not only or way in only}


def timed(
    function: Callable[..., Any], arguments: tuple[Any, ...], calls: int
) -> tuple[float, float]:
    """Microseconds per call: until the GPU is done, and of the host alone."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        function(*arguments)
    issued = time.perf_counter()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1e6 / calls, (issued - started) * 1e6 / calls


def measure(name: str, batch: int, only: Sequence[str] = ()) -> dict[str, Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = MODELS[name]().to("cuda", torch.bfloat16).eval().requires_grad_(False)
    arguments = model.arguments(batch)
    wanted = model(*arguments).clone()
    made: dict[str, Callable[..., Any]] = {}
    found: dict[str, Any] = {}
    for way, make in ways(model, arguments, only).items():
        try:
            function = make()
            first = function(*arguments).clone()
            for _ in range(5):
                got = function(*arguments)
            torch.testing.assert_close(first, wanted, rtol=5e-2, atol=5e-2)
            torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)
        except Exception as error:
            found[way] = {"failed": f"{type(error).__name__}: {error}"[:200]}
            continue
        made[way] = function
        found[way] = {"rounds": [], "host": []}
    for _ in range(ROUNDS):
        for way, function in made.items():
            whole, _ = timed(function, arguments, CALLS)
            # Only few calls: the queue of launches must not fill, or the host would wait.
            _, host = timed(function, arguments, 20)
            found[way]["rounds"].append(whole)
            found[way]["host"].append(host)
    for one in found.values():
        for key in ("rounds", "host"):
            if key in one:
                values = one.pop(key)
                one[{"rounds": "us", "host": "host_us"}[key]] = round(statistics.median(values), 2)
                one[f"{key}_low_high"] = [round(min(values), 2), round(max(values), 2)]
    return found


def first_calls(name: str, batch: int, way: str) -> list[float]:
    """Seconds of each of the first calls in this process."""
    model = MODELS[name]().to("cuda", torch.bfloat16).eval().requires_grad_(False)
    arguments = model.arguments(batch)
    torch.cuda.synchronize()
    seconds = []
    function: Any = None
    for _ in range(COLD_CALLS):
        started = time.perf_counter()
        if function is None:
            function = ways(model, arguments)[way]()
        function(*arguments)
        torch.cuda.synchronize()
        seconds.append(round(time.perf_counter() - started, 4))
    return seconds


def host(name: str, batch: int) -> None:
    """Print what the host needs for a call of ours, more than for copy and replay."""
    found = measure(name, batch, (*HOST_WAYS, BARE))
    failed = [f"{way}: {one['failed']}" for way, one in found.items() if "failed" in one]
    if failed:
        print(f"{name}, batch {batch}: {'; '.join(failed)}", flush=True)
        return
    model = MODELS[name]()
    model.arguments(batch)
    tensors = len([*model.parameters(), *model.buffers()])
    least = found[BARE]["host_us"]
    more = ", ".join(f"{way} +{found[way]['host_us'] - least:.1f}" for way in HOST_WAYS)
    print(f"{name}, batch {batch}, {tensors} tensors: {BARE} {least:.1f} us, {more}", flush=True)


def cold(name: str, batch: int) -> None:
    print(f"\n{name}, batch {batch}: seconds of the first {COLD_CALLS} calls, empty caches")
    for _ in range(COLD_RUNS):
        for way in ("compiled", "native", "mode"):
            with tempfile.TemporaryDirectory() as cache:
                caches = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": f"{cache}/triton"}
                command = [sys.executable, __file__, "--child", way, name, str(batch)]
                env = {**os.environ, **caches}
                done = subprocess.run(command, env=env, capture_output=True, text=True)
            print(f"  {way:8} {done.stdout.strip() or done.stderr[-300:]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--json", help="where to write all numbers")
    parser.add_argument("--cold", action="store_true", help="the first calls")
    parser.add_argument("--host", action="store_true", help="only the host's share of our calls")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    compile_modes.apply(torch, [("reduce-overhead", "graphs", "benchmark", "")], (), False)
    if chosen.child:
        way, name, batch = chosen.child
        with torch.no_grad():
            print(first_calls(name, int(batch), way))
        return
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, bf16")
    if chosen.cold:
        for name in chosen.models:
            cold(name, chosen.batches[0])
        return
    if chosen.host:
        with torch.no_grad():
            for name in chosen.models:
                for batch in chosen.batches:
                    host(name, batch)
        return
    print(f"{ROUNDS} rounds of {CALLS} calls, all ways by turns; ratio to native in parentheses")
    results: dict[str, Any] = {}
    with torch.no_grad():
        for name in chosen.models:
            for batch in chosen.batches:
                results[f"{name} {batch}"] = found = measure(name, batch)
                native = found["native"].get("us")
                print(f"\n{name}, batch {batch}")
                for way, one in found.items():
                    if "failed" in one:
                        print(f"  {way:13} {one['failed']}")
                        continue
                    ratio = f"({one['us'] / native:.3f})" if native else ""
                    print(
                        f"  {way:13} {one['us']:9.1f} us {ratio:8}  host {one['host_us']:8.1f} us"
                        f"  {one['rounds_low_high']}"
                    )
                sys.stdout.flush()
    results["record"] = record.render_rows()
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
