# mypy: allow-subclassing-any
"""Graphs compared with eager, and each way in which a capture can fail.

    python -m pytest tests/graphs

runs in an environment with torch, pytest and the wheel. With a GPU all tests run, and captures are
real. On CUDA they show what the API does, but nothing about HIP. Without a GPU there is a stand-in
for it, and tests that need a GPU are skipped. tests/test_graphs.py runs them like this.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import replayed
import stand_in

from rocm_autopatch import startup
from rocm_autopatch.graphs import (
    Bucket,
    Refused,
    attempts,
    buffers,
    capture,
    graph_cache,
    graphed,
    guards,
    observation,
    pytrees,
    record,
    verification,
    write_back,
)
from rocm_autopatch.graphs import mode as graphs_mode

REAL = torch.cuda.is_available()
GPU = torch.device("cuda", torch.cuda.current_device()) if REAL else torch.device("cpu")
# Torch warns about its own parts as if the caller's code were the cause.
pytestmark = pytest.mark.filterwarnings("default")
replaying = replayed.replaying
one_compile = pytest.mark.skipif(
    startup.release(torch.__version__) < (2, 11),
    reason="torch 2.6 compiles anew for each tensor that is marked; 2.7 to 2.10 were not tried",
)
needs_gpu = pytest.mark.skipif(not REAL, reason="no GPU here: python -m pytest tests/graphs")


class Pair(NamedTuple):
    left: Any
    right: Any


# The rows of the graphs that a test has made.
Seen = Callable[[], list[record.CallableRow]]


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield
    synchronize()


@pytest.fixture(scope="module", autouse=True)
def our_graphs() -> None:
    stand_in.graphs_in_modes()


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    if not REAL:
        stand_in.install()


def compiled(function: Any) -> Any:
    """Compiled on a GPU. On a CPU that would only take time for the C++ compiler."""
    return torch.compile(function, backend="inductor" if REAL else "eager")


def synchronize() -> None:
    if REAL:
        torch.cuda.synchronize()


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def mlp(width: int = 64, dtype: Any = torch.float32, device: Any = GPU) -> Any:
    layers = torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
    return torch.nn.Sequential(*layers).to(device, dtype)


def check(wrapped: Any, plain: Any, *calls: Any, **kwargs: Any) -> None:
    """Each call gives the plain function's result, and later calls do not change it."""
    kept = [(wrapped(*args, **kwargs), plain(*args, **kwargs)) for args in calls]
    synchronize()
    for got, wanted in kept:
        close(got, wanted)


def reasons(wrapped: Any) -> str:
    return " | ".join([*wrapped.row["plain"], *(one["reason"] for one in wrapped.row["refused"])])


# Against eager


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_model(compile: bool, dtype: Any) -> None:
    model = mlp(dtype=dtype)
    wrapped = graphed(compiled(model) if compile else model, verify=True)
    check(wrapped, model, *[(torch.randn(8, 64, device=GPU, dtype=dtype),) for _ in range(8)])
    (graph,) = wrapped.row["graphs"]
    assert (wrapped.row["replays"], graph["verified"]) == (6, True)
    assert graph["capture_seconds"] > 0
    if REAL:
        assert graph["memory_after"] >= graph["memory_before"] > 0


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="the fixture says so")
def test_a_test_that_replays_nothing_fails() -> None:
    wrapped = graphed(lambda x: x + 1)
    for _ in range(2):
        wrapped(torch.ones(2, device=GPU))


@pytest.mark.xfail(raises=AssertionError, strict=True, reason="the fixture says so")
@replayed.nothing("it is wrong to say so")
def test_a_test_that_replays_in_spite_of_its_mark_fails() -> None:
    wrapped = graphed(lambda x: x + 1)
    for _ in range(4):
        wrapped(torch.ones(2, device=GPU))


def test_signatures() -> None:
    def function(x: Any, y: Any, power: int = 1, *, scale: float = 1.0, flag: bool = False) -> Any:
        out = (x**power * scale + y.to(x.dtype)).sum(-1)
        return out.neg() if flag else out

    wrapped = graphed(function, limit=64)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for size in (1, 7, 64):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            for power in (1, 2):
                x = torch.randn(size, 16, device=GPU).to(dtype)
                calls.append(((x, torch.arange(16, device=GPU), power), {"flag": size == 7}))
                calls.append(((x.t().contiguous().t(), x, power), {"scale": 0.5}))
    for _ in range(5):
        for args, kwargs in calls:
            args = tuple(a.clone() if torch.is_tensor(a) else a for a in args)
            close(wrapped(*args, **kwargs), function(*args, **kwargs))
    assert len(wrapped.row["graphs"]) == len(calls)
    assert wrapped.row["replays"] == 3 * len(calls)


def test_pytrees() -> None:
    def function(batch: Any, pairs: Any) -> Any:
        x = batch["x"] + batch["deep"][0]
        q, k, v = x.chunk(3, dim=-1)
        return {"qkv": (q, k, v), "pair": Pair(pairs.left * 2, None), "list": [x, "text"]}

    wrapped = graphed(function)
    for step in range(6):
        x = torch.randn(4, 12, device=GPU)
        batch = {"x": x, "deep": [torch.full((12,), float(step), device=GPU), 3]}
        pairs = Pair(x[:, ::2], torch.ones(1, device=GPU).expand(5, 1))
        got, wanted = wrapped(batch, pairs), function(batch, pairs)
        assert type(got["pair"]) is Pair
        assert got["list"][1] == "text"
        close(got["qkv"], wanted["qkv"])
        assert [one.stride() for one in got["qkv"]] == [one.stride() for one in wanted["qkv"]]
        # Parts of one tensor still share memory.
        got["qkv"][0].zero_()
        close(got["qkv"][1], wanted["qkv"][1])
    assert wrapped.row["replays"] == 4


@needs_gpu
def test_results_and_weights_on_the_cpu() -> None:
    x = torch.ones(4, device=GPU)
    assert "the result has a tensor on cpu" in refused(lambda x: (x + 1, torch.ones(2)), x)
    scale = torch.tensor(2.0)
    for way in ("all", "none"):
        wrapped = graphed(lambda x: x * scale, guards=way)
        for factor in (1, 2, 3, 4, 5):
            scale.fill_(factor)
            close(wrapped(x), x * factor)
        # Guarded, the number is put on the GPU in each call.
        assert wrapped.row["replays"] == (3 if way == "all" else 0)
    assert "is on cpu, and a graph can only read the GPU" in reasons(wrapped)


def test_strides_of_results() -> None:
    functions: list[Callable[[Any], Any]] = [
        lambda x: (x + 1)[:, -1],
        lambda x: (x + 1).t(),
        lambda x: (x + 1)[:1].expand(5, 6),
        lambda x: ((x + 1)[::2], x.sum(), (x * 2).to(torch.int8)),
    ]
    for function in functions:
        wrapped = graphed(function)
        for _ in range(4):
            x = torch.randn(4, 6, device=GPU)
            got, wanted = wrapped(x), function(x)
            close(got, wanted)
            for one, other in zip(*map(torch.utils._pytree.tree_leaves, (got, wanted))):
                assert one.stride() == other.stride()
        assert wrapped.row["replays"] == 2


def test_results_are_kept() -> None:
    wrapped = graphed(lambda x: x * 2)
    x = torch.ones(1 << 20, device=GPU)
    kept = [wrapped(x * step) for step in range(8)]
    for step, one in enumerate(kept):
        assert one[0].item() == 2 * step == one[-1].item()
    assert wrapped.row["replays"] == 6


def test_aliased_results_are_not_overwritten() -> None:
    wrapped = graphed(lambda x: x * 2, outputs="alias")
    x = torch.ones(1024, device=GPU)
    for step in range(3):
        wrapped(x * step)
    first = wrapped(x * 10)
    place = first.data_ptr()
    second = wrapped(x * 20)
    assert second.data_ptr() == place  # it is the graph's own
    assert (first[0].item(), second[0].item()) == (20, 40)  # the held result was moved
    view = second[:4]
    del first, second
    with pytest.raises(Refused, match="view of the last call's result"):
        wrapped(x)
    assert view[0].item() == 40
    del view
    assert wrapped(x)[0].item() == 2


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.complex(x, x).conj(),
        lambda x: torch._neg_view(x * 2),
        lambda x: (x * 2)[::2],
        lambda x: (x * 2)[:1].expand(4),
        lambda x: (lambda y: (y, y[1:]))(x * 2),
    ],
    ids=["conjugate", "negative", "slice", "expanded", "shared"],
)
def test_an_aliased_result_stays_what_it_is(make: Any, inference: bool) -> None:
    wrapped = graphed(make, outputs="alias", guards="none")
    x = torch.arange(4.0, device=GPU)
    leaves = torch.utils._pytree.tree_leaves
    with torch.inference_mode(inference), torch.no_grad():
        for step in range(3):
            wrapped(x * step)
        first, wanted = leaves(wrapped(x * 10)), leaves(make(x * 10))
        strides = [one.stride() for one in first]
        second = leaves(wrapped(x * 20))
        assert all(map(torch.equal, first, wanted))
        assert all(map(torch.equal, second, leaves(make(x * 20))))
        assert strides == [one.stride() for one in first]
        if len(first) == 2:
            first[0].zero_()
            assert not first[1].any()


def test_aliased_results_are_moved_together_or_not_at_all() -> None:
    wrapped = graphed(lambda x: (lambda y: (y, y[1:]))(x * 2), outputs="alias", guards="none")
    x = torch.ones(4, device=GPU)
    for step in range(3):
        wrapped(x * step)
    whole, part = wrapped(x)
    view = part[1:]
    with pytest.raises(Refused, match="view of the last call's result"):
        wrapped(x)
    whole.zero_()
    assert not view.any()


def test_an_aliased_result_that_dlpack_holds() -> None:
    """It has the address, and no tensor of its own that could be moved."""
    wrapped = graphed(lambda x: x * 2, outputs="alias")
    x = torch.ones(1024, device=GPU)
    for step in range(3):
        wrapped(x * step)
    held = torch.from_dlpack(wrapped(x * 10))
    with pytest.raises(Refused, match="view of the last call's result"):
        wrapped(x * 20)
    assert held[0].item() == 20
    del held
    assert wrapped(x)[0].item() == 2


@pytest.mark.parametrize("way", ["graphed", "mode"])
def test_a_pool_of_the_program(way: str, monkeypatch: pytest.MonkeyPatch, seen: Seen) -> None:
    """Where what is captured would lie there, nothing is captured. A replay may be there."""
    model = mlp()
    function = torch.compile(model, mode="reduce-overhead") if way == "mode" else graphed(model)
    for outside in [False] * 5 + [True] + [False] * 2:
        monkeypatch.setattr(capture.CapturePool, "has_own_memory", lambda self, own=outside: own)
        x = torch.randn(8, 64, device=GPU)
        close(function(x), model(x))
    (row,) = seen()
    assert row["plain"] == {graph_cache.WARMING: 2, attempts.IN_POOL: 3}
    assert row["replays"] == 3


@needs_gpu
@pytest.mark.skipif(
    startup.release(torch.__version__) < (2, 11), reason="there the outer pool gets all"
)
def test_a_graph_that_is_captured_in_a_pool_of_the_program() -> None:
    model = mlp()
    wrapped = graphed(model)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.randn(8, 64, device=GPU)
        for _ in range(4):
            wrapped(x)
    del x, pool
    others = [torch.zeros(8, 64, device=GPU) for _ in range(64)]
    for _ in range(4):
        x = torch.randn(8, 64, device=GPU)
        close(wrapped(x), model(x))
    assert wrapped.row["replays"] == 6
    assert not any(one.any() for one in others)


def test_aliased_results_of_another_signature() -> None:
    """A graph may overwrite what was free when it was captured: a later graph's result."""
    wrapped = graphed(lambda x: (x * 2).sin().softmax(-1), outputs="alias")
    short, long = torch.randn(64, device=GPU), torch.randn(128, device=GPU)
    for _ in range(4):
        wrapped(short)
    for _ in range(4):
        kept = wrapped(long)
    was = kept.clone()
    wrapped(short)
    assert torch.equal(kept, was)
    assert wrapped.row["replays"] == 5


def test_buckets() -> None:
    model = mlp()
    wrapped = graphed(compiled(model), buckets=[Bucket("batch", (8, 32), {"input": 0})])
    sizes = (3, 8, 5, 1, 7, 32, 9, 30, 17, 2)
    check(wrapped, model, *[(torch.randn(size, 64, device=GPU),) for size in sizes])
    assert len(wrapped.row["graphs"]) == 2
    assert wrapped(torch.randn(33, 64, device=GPU)).shape == (33, 64)
    assert "bucket batch: the call exceeds its last size, 32" in reasons(wrapped)


def test_a_mask_in_a_bucket() -> None:
    def attend(x: Any, mask: Any) -> Any:
        scores = (x @ x.transpose(-1, -2)).masked_fill(~mask[:, None, :], float("-inf"))
        return scores.softmax(-1) @ x

    bucket = Bucket("tokens", (16, 64), {"x": 1, "mask": 1}, outputs=1)
    wrapped = graphed(attend, buckets=[bucket])
    for tokens in (3, 16, 11, 5, 40, 63, 50, 17):
        x = torch.randn(2, tokens, 32, device=GPU)
        mask = torch.ones(2, tokens, dtype=torch.bool, device=GPU)
        close(wrapped(x, mask), attend(x, mask))
    assert wrapped.row["replays"] == 4


# Weights


@pytest.mark.parametrize("guards", ["all", "none"])
def test_weights(guards: str) -> None:
    model = mlp()
    wrapped = graphed(compiled(model), guards=guards)
    x = torch.randn(8, 64, device=GPU)
    check(wrapped, model, *[(x,)] * 4)
    model[0].weight.mul_(3)  # in place
    check(wrapped, model, (x,))
    assert wrapped.row["replays"] == 3
    model[0].weight.data = torch.randn(128, 64, device=GPU)  # new memory
    check(wrapped, model, *[(x,)] * 4)
    model[2].weight = torch.nn.Parameter(torch.randn(64, 128, device=GPU))  # a new parameter
    check(wrapped, model, *[(x,)] * 4)
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()}, assign=True)
    check(wrapped, model, *[(x,)] * 4)
    model[1] = torch.nn.ReLU()  # another submodule
    check(wrapped, model, *[(x,)] * 4)
    assert len(wrapped.row["graphs"]) >= 5


def test_attributes_of_modules() -> None:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)
            self.dropout = torch.nn.Dropout(0.0)
            self.scale: Any = 2
            self.kind = "sum"

        def forward(self, x: Any) -> Any:
            y = self.dropout(self.linear(x)) * self.scale
            return y.sum(-1) if self.kind == "sum" else y.amax(-1)

    model = Scaled().to(GPU)
    wrapped = graphed(model)
    x = torch.randn(4, 8, device=GPU)
    whole = torch.ones(4, 8, dtype=torch.int32, device=GPU)
    for scale, kind in ((2, "sum"), (3.5, "sum"), (True, "max"), (1, "max"), (1.0, "max")) * 2:
        model.scale, model.kind = scale, kind
        check(wrapped, model, *[(x,)] * 4)
    assert len(wrapped.row["graphs"]) == 5
    # What compiles anew needs one call before its capture.
    assert wrapped.row["replays"] == 2 + 4 * 3 + 5 * 4
    model.dropout.p = 1.0
    check(wrapped, model, *[(x,)] * 4)
    assert len(wrapped.row["graphs"]) == 6
    # A whole number and a fraction that are equal make results of different types.
    times = graphed(lambda x, by=model: x * by.scale)
    for scale in (1, 1.0, 1, 1.0):
        model.scale = scale
        assert [times(whole).dtype for _ in range(4)] == [(whole * scale).dtype] * 4


def test_train_and_eval() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.BatchNorm1d(16)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    model, other = Model().to(GPU), Model().to(GPU)
    wrapped = graphed(model)
    for training in (False, True, False, True):
        model.train(training), other.train(training)
        for _ in range(4):
            x = torch.randn(8, 16, device=GPU)
            close(wrapped(x), other(x))
            close(model.inner.running_mean, other.inner.running_mean)
    assert model.inner.num_batches_tracked == other.inner.num_batches_tracked == 8
    assert wrapped.row["replays"] == 2 + 3 + 2 * 4
    # Autograd counts replays as writes, too.
    assert model.inner.num_batches_tracked._version >= 8


class Decoder(torch.nn.Module):
    """One step with a cache of keys and values in buffers."""

    def __init__(self, width: int = 64, length: int = 32) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.register_buffer("keys", torch.zeros(2, length, width))
        self.register_buffer("values", torch.zeros(2, length, width))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        self.keys.index_copy_(1, self.at, k)
        self.values.index_copy_(1, self.at, v)
        mask = torch.arange(self.keys.shape[1], device=x.device) <= self.at
        out = torch.nn.functional.scaled_dot_product_attention(q, self.keys, self.values, mask)
        self.at.add_(1)
        return out


@pytest.mark.parametrize("compile", [False, True])
def test_a_cache_moves_on_once_a_call(compile: bool) -> None:
    model = Decoder().to(GPU)
    other = Decoder().to(GPU)
    other.load_state_dict(model.state_dict())
    wrapped = graphed(compiled(model) if compile else model, verify=True)
    # The first attention in a process chooses an order of its kinds: another setting of torch.
    torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 8, 8, device=GPU)] * 3)
    for step in range(10):
        x = torch.randn(2, 1, 64, device=GPU)
        close(wrapped(x), other(x))
        assert model.at.item() == other.at.item() == step + 1
    close(model.keys, other.keys)
    assert wrapped.row["replays"] == 8
    assert not wrapped.row["graphs"][0]["verified"]  # because that would be one more step


# Threads


def in_threads(function: Any, plain: Any, streams: bool, calls: int) -> None:
    """Four threads with different numbers get the plain function's results.

    A stand-in's capture undoes what other threads write meanwhile: there, calls that may capture
    follow each other, and all others come after them.
    """
    failed = []
    turn, all_captured = threading.Lock(), threading.Barrier(4)
    in_turn = 0 if REAL else 6

    def work(seed: int) -> None:
        try:
            generator = torch.Generator(GPU).manual_seed(seed)
            stream = torch.cuda.Stream() if streams else None
            with torch.no_grad(), torch.cuda.stream(stream):
                for number in range(calls):
                    mine = torch.randn(16, 256, device=GPU, generator=generator)
                    if number == in_turn:
                        all_captured.wait(60)
                    with turn if number < in_turn else contextlib.nullcontext():
                        got = function(mine)
                    wanted = plain(mine)
                    if REAL:
                        torch.cuda.current_stream().synchronize()
                    close(got, wanted)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


STREAMS = [False, pytest.param(True, marks=needs_gpu)]


@pytest.mark.parametrize("streams", STREAMS)
def test_threads(streams: bool) -> None:
    model = mlp(256)
    wrapped = graphed(compiled(model))
    wrapped(torch.randn(16, 256, device=GPU))
    in_threads(wrapped, model, streams, 200)
    assert wrapped.row["replays"] >= 700
    assert len(wrapped.row["graphs"]) == 1


# What a capture can't have


def usable() -> None:
    """The device works as before: numbers are drawn, and memory that a stream used is freed."""
    assert torch.ones(3, device=GPU).sum().item() == 3
    assert torch.randn(100, device=GPU).std().item() > 0
    if REAL:
        other = torch.cuda.Stream()
        before = torch.cuda.memory_allocated()
        used = torch.ones(1 << 22, device=GPU)
        used.record_stream(other)
        del used
        torch.cuda.synchronize()
        torch.empty(1 << 20, device=GPU)
        # Garbage of earlier tests may be collected meanwhile.
        assert torch.cuda.memory_allocated() <= before


def refused(function: Any, *args: Any, calls: int = 5) -> str:
    """A function that can't be captured runs without a graph, and the GPU works as before."""
    wrapped = graphed(function, guards="none")
    for _ in range(calls):
        close(wrapped(*args), function(*args))
    synchronize()
    assert wrapped.row["replays"] == 0
    usable()
    return reasons(wrapped)


def refused_anyway(function: Any, *args: Any, guards: str = "none") -> str:
    """A function whose results differ from call to call runs without a graph."""
    wrapped = graphed(function, guards=guards)
    for _ in range(5):
        wrapped(*args)
    assert wrapped.row["replays"] == 0
    return reasons(wrapped)


@needs_gpu
@replayed.nothing("it is about refusals")
def test_a_synchronisation() -> None:
    x = torch.randn(8, device=GPU)
    assert "waits for the GPU" in refused(lambda x: x * x.sum().item(), x)
    assert "waits for the GPU" in refused(lambda x: x[x > 0].sum(), x)

    def waits(x: Any) -> Any:
        torch.cuda.synchronize()
        return x + 1

    assert "waits for the GPU" in refused(waits, x)


@needs_gpu
@replayed.nothing("it is about refusals")
def test_a_tensor_of_the_cpu() -> None:
    x = torch.randn(8, device=GPU)
    assert "CPU tensor" in refused(lambda x: x + torch.arange(8.0).to(GPU), x)
    assert "an argument is on cpu" in refused(lambda x, y: x + y.to(GPU), x, torch.ones(8))


@needs_gpu
@replayed.nothing("it is about a refusal")
def test_an_allocation_past_torch() -> None:
    runtime = next(
        ctypes.CDLL(line.split()[-1])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libcudart" in line or "libamdhip64" in line
    )
    allocate = getattr(runtime, "cudaMalloc", None) or runtime.hipMalloc

    def function(x: Any) -> Any:
        place = ctypes.c_void_p()
        allocate(ctypes.byref(place), 1 << 20)
        return x + 1

    why = refused(function, torch.ones(4, device=GPU), calls=12)
    # The kernel after it sees the error of the allocation, or that of a broken capture.
    assert "allocates memory without torch" in why or "illegal in a capture broke it" in why


class TestArgumentsChangedInPlace:
    """Small ones are copied before a replay, and back after it."""

    @staticmethod
    def step(number: int) -> Any:
        def function(x: Any, *caches: Any) -> Any:
            for cache in caches[:number]:
                cache[1:3].mul_(0.5)
                cache += x.sum()
            return sum(caches, x) * 2

        return function

    @pytest.mark.parametrize("inference", [False, True])
    @pytest.mark.parametrize("number", [1, 2, 5])
    @pytest.mark.parametrize("compile", [False, True])
    def test_each_call_has_others(self, number: int, compile: bool, inference: bool) -> None:
        plain = self.step(number)
        function = graphed(compiled(plain) if compile else plain, verify=True)
        with torch.inference_mode(inference):
            for _ in range(6):
                x = torch.randn(4, device=GPU)
                # Columns of a matrix: they are not dense.
                mine = [torch.randn(4, 3, device=GPU)[:, 1] for _ in range(5)]
                others = [torch.randn(4, 3, device=GPU)[:, 1].copy_(cache) for cache in mine]
                versions = [0 if inference else cache._version for cache in mine]
                close(function(x, *mine), plain(x, *others))
                for index, (cache, other) in enumerate(zip(mine, others)):
                    close(cache, other)
                    if not inference:
                        assert (cache._version > versions[index]) == (index < number)
        # What is compiled in inference mode is compiled a second time.
        assert function.row["replays"] >= 2
        assert all(graph["verified"] for graph in function.row["graphs"])

    def test_nothing_is_returned(self) -> None:
        def plain(x: Any) -> None:
            x.add_(1)

        function = graphed(plain, verify=True)
        for number in range(6):
            x = torch.full((4,), float(number), device=GPU)
            assert function(x) is None
            close(x, torch.full_like(x, number + 1.0))
        assert function.row["replays"] == 4

    def test_random_numbers(self) -> None:
        def plain(x: Any) -> Any:
            return x.add_(torch.rand(4, device=GPU)) + torch.rand(4, device=GPU)

        function = graphed(plain, verify=True)
        seen = []
        for one in (function, plain):
            torch.manual_seed(3)
            for _ in range(5):
                x = torch.zeros(4, device=GPU)
                seen.append((one(x), x))
        for mine, other in zip(seen[:5], seen[5:]):
            close(mine[0], other[0])
            close(mine[1], other[1])
        assert function.row["replays"] == 3

    @pytest.mark.parametrize("apart", [0, 2, 4])
    def test_one_that_shares_memory_with_another(self, apart: int) -> None:
        """It may do so in one call, and not in the next one of the same signature."""
        plain = self.step(1)
        function = graphed(plain)
        for number in range(12):
            x, memory = torch.randn(4, device=GPU), torch.randn(8, device=GPU)
            sides = []
            for whole in (memory, memory.clone()):
                second = whole[apart : apart + 4]
                sides.append((whole[:4], second if number % 3 == 2 else second.clone()))
            mine, others = sides
            close(function(x, *mine), plain(x, *others))
            for one, other in zip(mine, others):
                close(one, other)
        assert function.row["replays"] == 6
        assert sum("shares memory" in reason for reason in function.row["plain"]) == 1

    # With other seeds, the call that is observed has arguments that share memory: a refusal.
    @pytest.mark.parametrize("seed", [0, 5])
    @pytest.mark.parametrize("mode", [False, True])
    def test_random_calls(self, seen: Seen, mode: bool, seed: int) -> None:
        """Caches that stay, are new, or are parts of one memory, in random turns."""
        chance = random.Random(seed)
        writes = [chance.randrange(3) for _ in range(chance.randint(1, 4))]

        def plain(x: Any, *caches: Any) -> Any:
            for number in writes:
                caches[number][:2] += x * caches[(number + 1) % 3].sum()
            return caches[0] * x.mean() + caches[1]

        fast = torch.compile(plain, mode="reduce-overhead") if mode else graphed(plain)
        mine: list[Any] = []
        for _ in range(60):
            # Torch's own compile is wrong where arguments share memory in some calls alone.
            how = chance.choice(("same", "same", "new", "new" if mode else "parts"))
            if how != "same" or not mine:
                memory = torch.randn(12, device=GPU)
                starts = [chance.randrange(0, 9) for _ in range(3)]
                sides = []
                for whole in (memory, memory.clone()):
                    parts = [whole[start : start + 4] for start in starts]
                    sides.append(parts if how == "parts" else [part.clone() for part in parts])
                mine, others = sides
            x = torch.randn(2, device=GPU)
            close(fast(x, *mine), plain(x, *others))
            for one, other in zip(mine, others):
                close(one, other)
                for tensor in (one, other):
                    tensor.clamp_(-1, 1)
        assert sum(row["replays"] for row in seen()) >= 30

    def test_one_that_is_a_weight(self) -> None:
        layer = torch.nn.Linear(4, 4, device=GPU)

        def plain(x: Any, y: Any) -> Any:
            y.mul_(2)
            return layer(x)

        function = graphed(plain)
        for number in range(8):
            x, before = torch.randn(4, device=GPU), layer.bias.clone()
            y = layer.bias if number >= 4 else torch.ones(4, device=GPU)
            got = function(x, y.detach())
            close(got, layer(x))
            close(layer.bias, 2 * before if number >= 4 else before)
        assert any("shares memory" in reason for reason in function.row["plain"])

    @pytest.mark.parametrize("guards", ["all", "none"])
    def test_what_is_large(self, monkeypatch: pytest.MonkeyPatch, guards: str) -> None:
        """It stays where it is, or has no graph."""
        monkeypatch.setattr(write_back, "MOST", 15)
        small = graphed(lambda x: x * 2)
        plain = self.step(1)
        function = graphed(plain, guards=guards)
        mine, other = torch.ones(4, device=GPU), torch.ones(4, device=GPU)
        for _ in range(5):
            x = torch.randn(4, device=GPU)
            close(function(x, mine), plain(x, other))
            close(mine, other)
            small(x)
        assert function.row["replays"] == (3 if guards == "all" else 0)
        wanted = "changes an argument in place (shape [4]), and 0 MiB would be copied"
        assert (wanted in reasons(function)) == (guards == "none")

    @pytest.mark.parametrize("compile", [False, True])
    @pytest.mark.parametrize("inference", [False, True])
    def test_a_write_that_was_not_seen(self, inference: bool, compile: bool) -> None:
        """What is observed in inference mode is the content, and some writes do not change it."""

        def plain(x: Any) -> Any:
            x.mul_(2)
            return x + 1

        for verify in (False, True):
            function = graphed(compiled(plain) if compile else plain, verify=verify)
            with torch.inference_mode(inference):
                for value in (0, 0, 3, 1, 0, 2, 3, 4):
                    x, other = (torch.full((4,), float(value), device=GPU) for _ in range(2))
                    close(function(x), plain(other))
                    close(x, other)
            assert function.row["replays"] >= 4

    def test_one_signature_of_several(self, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
        """Small ones that move are copied, and large ones of other calls stay where they are."""
        monkeypatch.setattr(write_back, "MOST", 100)
        fast = torch.compile(step, mode="reduce-overhead", dynamic=True)
        large = [torch.zeros(20, 4, device=GPU) for _ in range(2)]
        for number in range(20):
            at, x = torch.tensor([number % 4], device=GPU), torch.randn(1, 4, device=GPU)
            small = [torch.zeros(4, 4, device=GPU) for _ in range(2)]
            for mine, other in (small, large):
                close(fast(mine, at, x), step(other, at, x))
                close(mine, other)
        assert sum(row["replays"] for row in seen()) >= 30

    def test_layers_that_share_their_code(self, seen: Seen) -> None:
        """Each has other weights, and each call another cache."""

        def layer(weight: Any, cache: Any, x: Any) -> Any:
            cache.add_(x @ weight)
            return cache * 2

        fast = torch.compile(layer, mode="reduce-overhead")
        weights = [torch.nn.Parameter(torch.randn(4, 4, device=GPU)) for _ in range(3)]
        for _ in range(10):
            for weight in weights:
                x, cache = (torch.randn(2, 4, device=GPU) for _ in range(2))
                other = cache.clone()
                close(fast(weight, cache, x), layer(weight, other, x))
                close(cache, other)
        assert sum(row["replays"] for row in seen()) >= 15

    @replayed.nothing("it is about a refusal")
    def test_what_shares_its_own_memory(self) -> None:
        def plain(x: Any) -> Any:
            x[0] += 1
            return x * 2

        said = refused_anyway(plain, torch.zeros(2, device=GPU).expand(2, 2))
        assert "its elements share memory" in said

    @pytest.mark.parametrize("guards", ["all", "none"])
    @pytest.mark.parametrize("inference", [False, True])
    def test_what_is_padded(self, guards: str, inference: bool) -> None:
        bucket = Bucket("batch", sizes=(8,), inputs={"x": 0})
        function = graphed(lambda x: x.add_(1) * 2, buckets=[bucket], guards=guards)
        with torch.inference_mode(inference):
            for size in (5, 5, 3, 8, 2, 5):
                x = torch.ones(size, 2, device=GPU)
                close(function(x), torch.full((size, 2), 4.0, device=GPU))
                close(x, torch.full((size, 2), 2.0, device=GPU))
        assert function.row["replays"] == 4

    @pytest.mark.parametrize("guards", ["all", "none"])
    def test_other_memory(self, guards: str) -> None:
        def plain(x: Any) -> Any:
            x.set_(torch.ones(4, device=GPU))
            return x * 2

        function, other = graphed(plain, guards=guards), graphed(lambda x: x * 2)
        for _ in range(5):
            x = torch.zeros(4, device=GPU)
            close(function(x), torch.full_like(x, 2))
            close(x, torch.ones_like(x))
            other(x)
        if guards == "none":
            assert "gives other memory to an argument" in reasons(function)

    @replayed.nothing("it is about a refusal")
    def test_an_argument_that_is_returned(self) -> None:
        said = refused_anyway(lambda x: x.add_(1), torch.zeros(4, device=GPU))
        assert "shares memory with an argument" in said

    @pytest.mark.skipif(REAL, reason="only the stand-in can be wrong")
    @replayed.nothing("it is about a refusal after a capture")
    def test_a_wrong_replay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is noticed, and each call changes the argument once."""
        monkeypatch.setattr(stand_in.StandIn, "wrong", True)
        plain = self.step(1)
        function = graphed(plain, verify=True)
        for _ in range(5):
            x, cache = torch.randn(4, device=GPU), torch.randn(4, device=GPU)
            other = cache.clone()
            close(function(x, cache), plain(x, other))
            close(cache, other)
        assert function.row["replays"] == 0
        assert "differs from a plain call" in reasons(function)

    @replayed.nothing("the graph is refused after the error")
    def test_an_error_in_the_call_that_verifies(self) -> None:
        """The call is made again, and finds the argument as it was."""
        calls = []

        def plain(x: Any) -> Any:
            x.add_(1)
            calls.append(1)
            if len(calls) == 3:
                raise ValueError("once")
            return x * 2

        function = graphed(plain, verify=True, guards="none")
        for _ in range(4):
            x = torch.zeros(4, device=GPU)
            close(function(x), torch.full_like(x, 2))
            close(x, torch.ones_like(x))

    @pytest.mark.skipif(REAL, reason="only the stand-in breaks when it is asked to")
    @replayed.nothing("it is about a refusal")
    def test_a_broken_capture(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stand_in.StandIn, "broken", RuntimeError("no"))
        function = graphed(lambda x: x.add_(1) + 1, verify=True)
        for _ in range(5):
            x = torch.zeros(4, device=GPU)
            close(function(x), torch.full_like(x, 2))
            close(x, torch.ones_like(x))
        assert function.row["replays"] == 0


def test_random_numbers() -> None:
    model = torch.nn.Sequential(mlp(), torch.nn.Dropout(0.5)).train()
    wrapped = graphed(model)
    x = torch.randn(8, 64, device=GPU)
    results = [wrapped(x) for _ in range(5)]
    assert not any(torch.equal(results[0], one) for one in results[1:])
    assert wrapped.row["replays"] == 3
    # The numbers are those that plain calls draw, also those of the calls that capture and verify.
    for function in (wrapped, graphed(model, verify=True)):
        torch.manual_seed(1)
        drawn = [function(x) for _ in range(6)]
        torch.manual_seed(1)
        close(drawn, [model(x) for _ in range(6)])
    model.eval()
    check(wrapped, model, *[(x,)] * 4)
    assert wrapped.row["replays"] == 3 + 6 + 3


@needs_gpu
def test_random_numbers_of_the_first_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the begin of a capture, torch 2.11 sets their offset to 0, on its stream, maybe late.

    It must not come after a replay has set it. The first replay is verified, so it comes at once.
    """
    begin = torch.cuda.CUDAGraph.capture_begin

    def late(self: Any, *args: Any, **kwargs: Any) -> None:
        # Some 50 ms. The capture itself takes less.
        torch.cuda._sleep(100_000_000)
        begin(self, *args, **kwargs)

    def draw(x: Any) -> Any:
        torch.cuda._sleep(400_000_000)
        return torch.nn.functional.dropout(x)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", late)
    x = torch.ones(1 << 10, device=GPU)
    wrapped = graphed(draw, verify=True, guards="none")
    drawn = []
    for function in (wrapped, draw):
        torch.manual_seed(1)
        drawn.append([function(x) for _ in range(4)])
    close(*drawn)
    assert not wrapped.row["refused"]
    assert wrapped.row["replays"] == 2


@replayed.nothing("it is about a refusal")
def test_random_numbers_of_python() -> None:
    x = torch.ones(4, device=GPU)
    assert "random numbers on the CPU" in refused_anyway(lambda x: x * random.random(), x)
    numpy = pytest.importorskip("numpy")
    for draw in (random.random, numpy.random.rand):
        for way in ("all", "none"):
            wrapped = graphed(lambda x, draw=draw: x * float(draw()), guards=way)
            assert len({wrapped(x)[0].item() for _ in range(6)}) == 6


@replayed.nothing("it is about a refusal")
def test_a_collective(tmp_path: Path) -> None:
    dist = torch.distributed
    dist.init_process_group(
        "nccl" if REAL else "gloo", f"file://{tmp_path}/store", world_size=1, rank=0
    )
    try:

        def function(x: Any) -> Any:
            x = x * 2
            dist.all_reduce(x)
            return x

        assert "runs a collective" in refused(function, torch.ones(4, device=GPU))
    finally:
        dist.destroy_process_group()


@replayed.nothing("it is about a refusal")
def test_state_in_python() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def forward(self, x: Any) -> Any:
            self.step += 1
            return x * self.step

    wrapped = graphed(Model())
    x = torch.ones(4, device=GPU)
    assert [wrapped(x)[0].item() for _ in range(12)] == [*range(1, 13)]
    assert guards.NOTHING in reasons(wrapped)


@replayed.nothing("it is about refusals")
def test_a_result_that_is_part_of_an_argument() -> None:
    assert "shares memory with an argument" in refused(lambda x: x[1:], torch.ones(4, device=GPU))
    model = mlp()
    why = refused(lambda x: (model[0].weight, x + 1)[0], torch.ones(4, device=GPU))
    assert "shares memory with an argument or a weight" in why


def test_gradients() -> None:
    model = mlp()
    wrapped = graphed(model)
    x = torch.randn(8, 64, device=GPU)
    with torch.enable_grad():
        for _ in range(4):
            wrapped(x).sum().backward()
    assert model[0].weight.grad is not None
    assert wrapped.row["replays"] == 0
    assert "gradients are needed" in reasons(wrapped)
    with torch.inference_mode():
        check(wrapped, model, *[(x,)] * 4)
    assert wrapped.row["replays"] == 2


@needs_gpu
def test_a_capture_of_somebody_else_s() -> None:
    model = mlp()
    wrapped = graphed(model)
    x = torch.randn(8, 64, device=GPU)
    check(wrapped, model, *[(x,)] * 4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = wrapped(x)
    graph.replay()
    close(out, model(x))
    assert "another capture is under way" in reasons(wrapped)


def test_compiled_before_captured() -> None:
    wrapped = graphed(compiled(mlp()), warmup=1)
    x = torch.randn(8, 64, device=GPU)
    for _ in range(4):
        wrapped(x)
    assert wrapped.row["refused"] == []
    assert wrapped.row["replays"] == 3  # the first call compiled, and was observed


@needs_gpu
def test_memory_comes_back() -> None:
    wrapped = graphed(lambda x: (x @ x).relu(), limit=2)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    for size in (1024, 2048, 3072, 4096):
        x = torch.randn(size, size, device=GPU)
        for _ in range(4):
            wrapped(x)
    assert (len(wrapped.row["graphs"]), wrapped.row["dropped"]) == (4, 2)
    del x
    held = torch.cuda.memory_reserved()
    wrapped.clear()
    torch.cuda.empty_cache()
    # The workspace of cuBLAS stays.
    assert torch.cuda.memory_reserved() <= before + (40 << 20) < held


def test_taking_turns_beyond_the_limit() -> None:
    wrapped = graphed(lambda x: x + 1, limit=2)
    for _ in range(6):
        for size in (1, 2, 3):
            wrapped(torch.ones(size, device=GPU))
    assert wrapped.row["dropped"] == 0
    assert len(wrapped.row["graphs"]) == 2
    assert "limit of 2 graphs" in reasons(wrapped)


# The compile mode


@pytest.fixture
def seen() -> Seen:
    count = len(record.render_rows())
    return lambda: record.render_rows()[count:]


def test_the_mode(seen: Seen) -> None:
    model = mlp()
    fast = torch.compile(model, mode="reduce-overhead")
    assert fast._orig_mod is model
    assert list(fast.state_dict()) == [f"_orig_mod.{name}" for name in model.state_dict()]
    assert fast.get_submodule("0") is model[0]
    x = torch.randn(8, 64, device=GPU)
    check(fast, model, *[(torch.randn(8, 64, device=GPU),) for _ in range(6)])
    (row,) = seen()
    assert (row["origin"], row["replays"]) == ("reduce-overhead", 4)
    assert row["graphs"][0]["verified"]
    model[0].weight.mul_(2)
    check(fast, model, (x,))
    model[0].weight.data = torch.randn(128, 64, device=GPU)
    check(fast, model, *[(x,)] * 4)
    model[2].weight = torch.nn.Parameter(torch.randn(64, 128, device=GPU))
    check(fast, model, *[(x,)] * 4)
    model.to(torch.float64)
    check(fast, model, *[(x.double(),)] * 4)
    with torch.enable_grad():
        fast(x.double()).sum().backward()
    assert model[0].weight.grad is not None


@replayed.nothing("it makes the inputs of a graph alone")
def test_a_graph_holds_no_weights() -> None:
    weight, x = torch.randn(8, 8, device=GPU), torch.randn(8, device=GPU)
    inputs = buffers.CopiedInputs([weight, x], [0])
    inputs.captured()
    inputs.copy([weight, x])
    old = weakref.ref(weight)
    del weight
    assert old() is None


def test_replaced_weights_are_freed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 32, device=GPU))
    fast = torch.compile(model, mode="reduce-overhead")
    x = torch.randn(8, 64, device=GPU)
    check(fast, model, *[(x,)] * 4)
    old = weakref.ref(model[0].weight)
    model[0].weight = torch.nn.Parameter(torch.randn(32, 64, device=GPU))
    check(fast, model, *[(x,)] * 4)
    gc.collect()
    assert old() is None


def test_the_mode_with_a_search(seen: Seen) -> None:
    model = mlp()
    fast = torch.compile(model, mode="max-autotune")
    check(fast, model, *[(torch.randn(8, 64, device=GPU),) for _ in range(6)])
    (row,) = seen()
    assert (row["origin"], row["replays"]) == ("max-autotune", 4)
    # The search of the mode, without Inductor's own capture.
    options = torch._inductor.list_mode_options
    wrapper = torch._TorchCompileInductorWrapper("max-autotune", None, None)
    plain = options("max-autotune-no-cudagraphs")
    assert plain.get("max_autotune")
    assert wrapper.config == options("max-autotune") == plain


def test_the_mode_with_graph_breaks_and_recompiles(seen: Seen) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = mlp(), 2

        def forward(self, x: Any) -> Any:
            x = self.inner(x) * self.scale
            torch._dynamo.graph_break()
            return x.relu() + 1

    model = Model()
    fast = torch.compile(model, mode="reduce-overhead")
    for scale in (2, 3, 2):
        model.scale = scale
        check(fast, model, *[(torch.randn(8, 64, device=GPU),) for _ in range(4)])
    for size in (4, 5, 6, 4, 5, 6, 4, 5, 6):
        check(fast, model, (torch.randn(size, 64, device=GPU),))
    assert sum(row["replays"] for row in seen()) > 10


def test_layers_that_share_their_code(seen: Seen) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Any) -> Any:
            return self.inner(x) + x

    layers = [Layer() for _ in range(6)]
    for layer in layers:
        layer.compile(mode="reduce-overhead")
    x = torch.randn(8, 64, device=GPU)
    for _ in range(5):
        wanted = got = x
        for layer in layers:
            got, wanted = layer(got), layer.forward(wanted)
        close(got, wanted)
    # What two calls have shown holds for all layers.
    assert sum(row["replays"] for row in seen()) == 5 * 6 - 3


def test_the_mode_with_a_cache(seen: Seen) -> None:
    model, other = Decoder().to(GPU), Decoder().to(GPU)
    other.load_state_dict(model.state_dict())
    fast = torch.compile(model, mode="reduce-overhead")
    for step in range(8):
        x = torch.randn(2, 1, 64, device=GPU)
        close(fast(x), other(x))
        assert model.at.item() == step + 1
    close(model.values, other.values)
    assert sum(row["replays"] for row in seen()) == 6


def step(cache: Any, at: Any, x: Any) -> Any:
    cache.index_copy_(0, at, x)
    return cache.sum(0)


def prompt(function: Any, calls: int = 5) -> Any:
    """Calls with a cache of their own, as transformers' ``generate`` makes one for each prompt."""
    cache, other = (torch.zeros(8, 4, device=GPU) for _ in range(2))
    torch._dynamo.mark_static_address(cache)
    for number in range(calls):
        at, x = torch.tensor([number], device=GPU), torch.randn(1, 4, device=GPU)
        close(function(cache, at, x), step(other, at, x))
    assert torch.equal(cache, other)
    return cache


def test_an_argument_that_is_changed_in_place(seen: Seen) -> None:
    """It stays where it is: a program passes its cache as an argument, without a mark."""
    fast = torch.compile(step, mode="reduce-overhead", dynamic=False)
    for length in (8, 8, 6):
        cache, other = (torch.zeros(length, 4, device=GPU) for _ in range(2))
        for number in range(6):
            at, x = torch.tensor([number], device=GPU), torch.randn(1, 4, device=GPU)
            close(fast(cache, at, x), step(other, at, x))
            close(cache, other)
        assert cache._version >= 6
    one, two = seen()
    assert (sum(one["plain"].values()), one["replays"]) == (2, 10)
    assert (sum(two["plain"].values()), two["replays"]) == (2, 4)


def test_an_argument_of_many_shapes_at_one_place(seen: Seen) -> None:
    fast = torch.compile(step, mode="reduce-overhead", dynamic=True)
    memory, other = (torch.zeros(16, 4, device=GPU) for _ in range(2))
    for length in (8, 9, 10, 8, 9, 10) * 4:
        at, x = torch.tensor([length - 2], device=GPU), torch.randn(1, 4, device=GPU)
        close(fast(memory[:length], at, x), step(other[:length], at, x))
    close(memory, other)
    assert sum(row["replays"] for row in seen()) == 3 * 6


def test_an_argument_that_is_changed_at_each_place(seen: Seen) -> None:
    """From the third place on it is copied, and copied back."""
    fast = torch.compile(step, mode="reduce-overhead")
    kept: list[Any] = []
    for number in range(40):
        at, x = torch.tensor([number % 4], device=GPU), torch.randn(1, 4, device=GPU)
        if number % 5 == 0:
            kept = [torch.zeros(4, 4, device=GPU) for _ in range(2)]
        close(fast(kept[0], at, x), step(kept[1], at, x))
        close(*kept)
    (row,) = seen()
    assert [one["replays"] for one in row["graphs"]][-1] >= 25
    assert len(row["graphs"]) <= 3
    assert not any("new addresses" in reason for reason in row["plain"])


def test_places_that_never_return(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while each call has a tensor of its own: capturing ends, and results stay right."""
    monkeypatch.setattr(write_back, "MOST", 0)
    fast = torch.compile(step, mode="reduce-overhead")
    kept: list[Any] = []
    for number in range(250):
        at, x = torch.tensor([1], device=GPU), torch.randn(1, 4, device=GPU)
        fresh = [torch.zeros(4, 4, device=GPU) for _ in range(2)]
        kept.append(kept[0] if 0 < number < 4 else fresh)
        close(fast(kept[-1][0], at, x), step(kept[-1][1], at, x))
        close(*kept[-1])
    (row,) = seen()
    assert row["dropped"] >= 8
    assert len(row["graphs"]) < 200
    assert any("new addresses" in reason for reason in row["plain"])


@replayed.nothing("it compares tensors alone")
def test_parts_of_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checksums and samples of a large tensor are made without a copy of it."""
    monkeypatch.setattr(observation, "_SUMMED", (100, 100))
    wide = torch.randn(8, 64, 50, device=GPU)
    tensors = [wide, wide[:, :, :47], wide[0].t(), wide[0, 0].half()[:33], wide[:1] > 0, wide[:0]]
    for one in tensors:
        flat = one.contiguous().reshape(-1).view(torch.uint8)
        whole = flat if flat.numel() % 4 else flat.view(torch.int32)
        parts = [int(observation._weighted_sum(part)) for part in whole.split(100)]
        if one.is_contiguous() or one.dim() < 2:
            sums = torch.tensor(parts, device=GPU)
            assert observation._checksum_of(one) == int(observation._weighted_sum(sums))
        assert all(part.numel() <= 100 for part in observation._integer_parts(one))
        sample = verification._sample_tensor(one, 30)
        assert sample.numel() <= 30
        assert sample.untyped_storage().data_ptr() == one.untyped_storage().data_ptr()
    assert [verification._sample_tensor(one, 1 << 20) is one for one in tensors] == [True] * len(
        tensors
    )


@pytest.mark.parametrize("moves", [False, True])
def test_an_argument_that_is_changed_uncounted(moves: bool) -> None:
    """There is a checksum of it, and no copy: it sees values that are only moved, too."""

    def function(x: Any) -> Any:
        # Autograd does not count it.
        x.data.copy_(x.flip(0) if moves else x + 1)
        return x * 2

    wrapped = graphed(function, verify=True)
    x = torch.arange(8.0, device=GPU)
    other = x.clone()
    for _ in range(5):
        close(wrapped(x), function(other))
        close(x, other)
    assert wrapped.row["replays"] == 3


@one_compile
def test_a_cache_for_each_prompt(seen: Seen) -> None:
    """What was observed with the first one holds for all: their first call is captured."""
    fast = torch.compile(step, mode="reduce-overhead")
    kept = [prompt(fast) for _ in range(3)]
    (row,) = seen()
    assert sum(row["plain"].values()) == 2
    assert [one["replays"] for one in row["graphs"]] == [3, 5, 5]
    # Replays count as writes, too.
    assert kept[2]._version >= 5


@one_compile
@replayed.nothing("it is about a refusal")
def test_what_has_no_graph_with_one_cache_has_none_with_the_next(seen: Seen) -> None:
    @torch.library.custom_op("rocm_autopatch_tests::dice", mutates_args=())  # type: ignore[untyped-decorator]
    def dice(x: torch.Tensor) -> torch.Tensor:
        return x + 1e-9 * random.random()

    dice.register_fake(torch.empty_like)

    def thrown(cache: Any, at: Any, x: Any) -> Any:
        cache.index_copy_(0, at, x)
        return cache.sum(0) + dice(x).sum() - x.sum()

    fast = torch.compile(thrown, mode="reduce-overhead")
    kept = [prompt(fast) for _ in range(3)]
    (row,) = seen()
    assert (len(kept), row["graphs"], len(row["refused"])) == (3, [], 1)
    assert sum(row["plain"].values()) == row["calls"] == 15


@one_compile
@pytest.mark.parametrize("inference", [False, True])
def test_caches_that_share_their_memory(seen: Seen, inference: bool) -> None:
    """They are observed anew: what is written to one is then read from the other."""

    def both(one: Any, two: Any, x: Any) -> Any:
        one.add_(x)
        # Inductor would return the argument itself if the factor were 1.
        return two * 2

    fast = torch.compile(both, mode="reduce-overhead")
    with torch.inference_mode(inference):
        for shared in (False, True):
            one, mine = torch.zeros(4, device=GPU), torch.zeros(4, device=GPU)
            two, other = (it.view(4) if shared else torch.zeros_like(it) for it in (one, mine))
            for cache in (one, two):
                torch._dynamo.mark_static_address(cache)
            for _ in range(5):
                x = torch.randn(4, device=GPU)
                close(fast(one, two, x), both(mine, other, x))
    assert [one["replays"] for row in seen() for one in row["graphs"]] == [3, 3]


def test_a_graph_holds_no_cache() -> None:
    fast = torch.compile(step, mode="reduce-overhead")
    old = weakref.ref(prompt(fast))
    gc.collect()
    assert old() is None


def test_models_of_one_thread_share_their_memory(seen: Seen) -> None:
    """They run one after the other, and their results are copied at once."""
    elsewhere: list[Any] = []
    thread = threading.Thread(
        target=lambda: elsewhere.append(capture.CapturePools.of_this_thread())
    )
    thread.start()
    thread.join()
    mine = capture.CapturePools.of_this_thread()
    assert mine is capture.CapturePools.of_this_thread()
    assert mine is not elsewhere[0]
    models = [mlp() for _ in range(3)]
    fast = [torch.compile(model, mode="reduce-overhead") for model in models]
    x = torch.randn(8, 64, device=GPU)
    for _ in range(6):
        for one, model in zip(fast, models):
            close(one(x), model(x))
    # What two calls have shown holds for all models.
    assert sum(row["replays"] for row in seen()) == 3 * 6 - 3


@needs_gpu
def test_memory_of_dropped_models_comes_back() -> None:
    def reserved() -> int:
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return int(torch.cuda.memory_reserved())

    x = torch.randn(256, 1024, device=GPU)
    was = []
    for _ in range(4):
        model = mlp(1024)
        fast = torch.compile(model, mode="reduce-overhead")
        check(fast, model, *[(x,)] * 5)
        del model, fast
        torch._dynamo.reset()
        was.append(reserved())
    # The first one initializes libraries.
    assert max(was[1:]) <= was[0]


def test_a_capture_while_another_thread_is_in_a_plain_call() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def function(x: Any) -> Any:
        if len(x) == 1:
            begun.set()
            assert go_on.wait(60)
        return x * 2

    wrapped = graphed(function)
    one, two = torch.ones(1, 4, device=GPU), torch.ones(2, 4, device=GPU)

    def work() -> None:
        with torch.no_grad():
            wrapped(one)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(60)
        for _ in range(4):
            close(wrapped(two), two * 2)
    finally:
        go_on.set()
        thread.join()
    assert [row["replays"] for row in wrapped.row["graphs"]] == [2]


@needs_gpu
def test_workspaces() -> None:
    """A graph of ours stays right when they are freed, and frees none that others use."""
    # The sum is divided among blocks, whose parts lie in the workspace.
    x, y = (torch.randn(64, 1 << 17, device=GPU, dtype=torch.bfloat16) for _ in range(2))
    bias = torch.randn(64, device=GPU, dtype=torch.bfloat16)

    def function(x: Any) -> Any:
        return x @ y.t(), torch.addmm(bias, x, y.t())

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode():
        with torch.cuda.stream(stream):
            function(x)
        with torch.cuda.graph(graph, stream=stream):
            own = function(x)
        wanted, wrapped = function(x), graphed(function)
        for _ in range(4):
            wrapped(x)
        others = [torch.full((1 << 20,), 7.0, device=GPU) for _ in range(200)]
        graph.replay()
        close(own, wanted)
        # As Inductor's graphs do, and from torch 2.12 on the end of any graph of the stream.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        others += [torch.full((1 << 20,), 7.0, device=GPU) for _ in range(200)]
        for _ in range(3):
            close(wrapped(x), wanted)
        torch.cuda.synchronize()
        assert all(bool((other == 7).all()) for other in others)
    assert wrapped.row["replays"] == 5


@needs_gpu
@replayed.nothing("its graphs are captured by hand, in another process")
def test_workspaces_of_two_threads() -> None:
    """They are in the same memory, as long as the process has no graphs of others."""
    program = Path(__file__).with_name("workspaces_of_threads.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *others = map(int, done.stdout.split())
    assert first > 0
    if capture._can_free_workspaces:
        assert others == [first] * 3


def test_default_and_reduce_overhead_of_one_function(seen: Seen) -> None:
    def function(x: Any) -> Any:
        return x * 2 + 1

    plain, graphs = torch.compile(function), torch.compile(function, mode="reduce-overhead")
    x = torch.ones(4, device=GPU)
    for _ in range(5):
        close(plain(x), graphs(x))
    assert [row["replays"] for row in seen()] == [3]


@pytest.mark.parametrize("streams", STREAMS)
def test_threads_in_the_mode(seen: Seen, streams: bool) -> None:
    model = mlp(256)
    fast = torch.compile(model, mode="reduce-overhead")
    fast(torch.randn(16, 256, device=GPU))
    in_threads(fast, model, streams, 100)
    assert sum(row["replays"] for row in seen()) > 300


@needs_gpu
def test_threads_that_compile(seen: Seen) -> None:
    # Each thread has graphs of its own. What is below them belongs to the process.
    for _ in range(10):
        torch._dynamo.reset()
        model = mlp(256)
        fast = torch.compile(model, mode="reduce-overhead")
        with torch.enable_grad():
            # So each thread compiles anew: it needs no gradients.
            fast(torch.randn(16, 256, device=GPU))
        in_threads(fast, model, True, 20)
    assert any(row["replays"] for row in seen())


@needs_gpu
@replayed.nothing("the replays are in another process, which tells of them")
def test_the_policy() -> None:
    """The hook and the performance policy, with a program that does not mention us."""
    program = """
import json, torch, rocm_autopatch
model = torch.nn.Linear(64, 64, device="cuda")
fast = torch.compile(model, mode="reduce-overhead")
with torch.no_grad():
    for _ in range(6):
        x = torch.randn(4, 64, device="cuda")
        torch.testing.assert_close(fast(x), model(x), rtol=1e-2, atol=1e-2)
report = rocm_autopatch.status()
print(json.dumps([[row["replays"] for row in report["graphs"]], report["errors"]]))
"""
    env = {
        **os.environ,
        "ROCM_AUTOPATCH": "on",
        "ROCM_AUTOPATCH_ASSUME": "accelerator=rocm,proven=graphs",
        "ROCM_AUTOPATCH_POLICY": "performance",
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[[4], []]\n", done.stdout + done.stderr


@replayed.nothing("the mode has no graphs here")
def test_nothing_of_the_mode_breaks_a_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs_mode, "CompiledRegion", None)
    fast = torch.compile(mlp(), mode="reduce-overhead")
    assert fast(torch.randn(8, 64, device=GPU)).shape == (8, 64)


@pytest.mark.skipif(startup.release(torch.__version__) < (2, 11), reason="there is no aot_compile")
@replayed.nothing("what is saved has no graphs")
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_what_is_compiled_to_be_saved(mode: str, tmp_path: Path) -> None:
    def function(x: Any) -> Any:
        return x.sin() + 1

    x = torch.randn(8, 64, device=GPU)
    with contextlib.ExitStack() as stack:
        if hasattr(torch._dynamo.config, "enable_aot_compile"):
            stack.enter_context(torch._dynamo.config.patch(enable_aot_compile=True))
        compiled: Any = torch.compile(function, mode=mode, fullgraph=True)
        saved = compiled.aot_compile(((x,), {}))
        saved.save_compiled_function(str(tmp_path / "saved"))
    close(saved(x), function(x))


# What can be tested without a GPU


def test_copies() -> None:
    import copy
    import pickle

    model = mlp()
    wrapped = graphed(model, limit=3, name="mine")
    x = torch.randn(2, 64, device=GPU)
    check(wrapped, model, *[(x,)] * 4)
    for other in (copy.copy(wrapped), copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped))):
        assert (other.row["name"], other.row["calls"]) == ("mine", 0)
        check(other, model, *[(x,)] * 4)
        assert other.row["replays"] == 2
    assert wrapped.row["calls"] == 4


def test_a_submodule() -> None:
    model = torch.nn.Sequential(mlp(), torch.nn.ReLU())
    model[0].forward = graphed(model[0].forward)
    other = torch.nn.Sequential(mlp(), torch.nn.ReLU())
    other.load_state_dict(model.state_dict())
    check(model, other, *[(torch.randn(2, 64, device=GPU),) for _ in range(4)])
    assert model[0].forward.row["replays"] == 2


def test_weights_at_odd_places() -> None:
    flat = torch.randn(101, device=GPU, dtype=torch.bfloat16)
    weight = flat[1:101].view(10, 10)
    wrapped = graphed(lambda x: x @ weight, verify=True)
    check(wrapped, lambda x: x @ weight, *[(torch.ones(2, 10, device=GPU).bfloat16(),)] * 4)
    assert (wrapped.row["replays"], wrapped.row["graphs"][0]["verified"]) == (2, True)


def test_constants_and_structure() -> None:
    x = torch.ones(2, device=GPU)
    function = graphed(lambda x, how: x * how["times"] if how["times"] else x + 1, limit=32)
    for how in (0, 0.0, -0.0, 1, 1.0, True, 2):
        for _ in range(4):
            close(function(x, {"times": how}), x * how if how else x + 1)
    # 1, 1.0 and True are equal, and so are the zeros. But each may lead to another program.
    assert len(function.row["graphs"]) == 7
    promised = graphed(lambda x, how: x * how["times"], guards="none")
    assert "is a builtins.object" in reasons_of_call(promised, x, {"times": object()})
    assert "builtins.object" not in reasons_of_call(function, x, {"times": object()})


def reasons_of_call(wrapped: Any, *args: Any) -> str:
    with pytest.raises(TypeError):
        wrapped(*args)
    return reasons(wrapped)


@replayed.nothing("it is about refusals")
def test_arguments_that_no_graph_can_have() -> None:
    strict = graphed(lambda x: x, fallback=False)
    with pytest.raises(Refused, match=r"torch\.sparse_coo tensor; only strided"):
        strict(torch.ones(2, 2, device=GPU).to_sparse())

    class Subclass(torch.Tensor):
        pass

    with pytest.raises(Refused, match=r"an argument is a .*Subclass"):
        strict(torch.ones(2, device=GPU).as_subclass(Subclass))
    for way in ("all", "none"):
        strict = graphed(lambda x: x, fallback=False, guards=way)
        with torch.enable_grad(), pytest.raises(Refused, match="gradients are needed"):
            strict(torch.ones(2, device=GPU, requires_grad=True))
    window = torch.arange(4.0, device=GPU).as_strided((3, 2), (1, 1))
    wrapped = graphed(lambda x: x * 2)
    check(wrapped, lambda x: x * 2, *[(window,)] * 4)
    assert "elements of an argument share memory" in reasons(wrapped)
    nothing = graphed(lambda: torch.ones(1, device=GPU), guards="none")
    assert [nothing().item() for _ in range(4)] == [1, 1, 1, 1]
    assert "no argument is a tensor" in reasons(nothing)


def test_a_mode_of_torch_s_sees_each_operation() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            Count.seen += 1
            return function(*args, **(kwargs or {}))

    wrapped = graphed(lambda x: x + 1)
    x = torch.ones(2, device=GPU)
    for _ in range(4):
        wrapped(x)
    assert wrapped.row["replays"] == 2
    with Count():
        wrapped(x)
    assert Count.seen == 1
    assert torch.vmap(wrapped)(x).tolist() == [2, 2]


def test_settings_of_torch() -> None:
    wrapped = graphed(lambda x: x @ x)
    x = torch.randn(8, 8, device=GPU)
    for _ in range(4):
        wrapped(x)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(4):
            assert wrapped(x).dtype == (torch.bfloat16 if REAL else torch.float32)
    torch.set_float32_matmul_precision("high")
    wrapped(x)
    torch.set_float32_matmul_precision("highest")
    assert wrapped(x).dtype == torch.float32
    # Without a GPU, torch leaves its autocast off.
    entries = len(wrapped._graphs.signatures)
    assert (len(wrapped.row["graphs"]), entries) == ((2, 3) if REAL else (1, 2))


@pytest.mark.parametrize("setting", ["gradients", "inference", "dtype", "deterministic"])
def test_each_setting_has_a_graph_of_its_own(setting: str) -> None:
    wrapped = graphed(lambda x: x * 2)
    x = torch.ones(4, device=GPU)
    gradients = setting == "gradients"

    def changed() -> None:
        kept = torch.get_default_dtype()
        if setting == "dtype":
            torch.set_default_dtype(torch.float64)
        if setting == "deterministic":
            torch.use_deterministic_algorithms(True)
        try:
            inference = setting == "inference"
            # inference_mode(False) would turn gradients on.
            mode = torch.inference_mode() if inference else torch.set_grad_enabled(gradients)
            with mode:
                assert wrapped(x).is_inference() == inference
        finally:
            torch.set_default_dtype(kept)
            torch.use_deterministic_algorithms(False)

    for _ in range(4):
        wrapped(x)
    for _ in range(4):
        changed()
    for _ in range(2):
        wrapped(x)
        changed()
    assert [graph["replays"] for graph in wrapped.row["graphs"]] == [4, 4]


@replayed.nothing("it compares signatures alone")
def test_like_the_last_call() -> None:
    """What says at once that arguments have the last signature never says so of others."""
    x, y = torch.randn(4, 4, device=GPU), torch.randn(2, device=GPU)
    signatures = pytrees.SignatureLookup()
    assert signatures.again([x, y]) is None
    first = signatures.of([x, y])
    assert signatures.again([x, y]) is None  # Signatures may take turns.
    again = signatures.of([x, y])
    assert again == first
    if hasattr(torch._C._dynamo.guards, "TensorGuards"):
        assert signatures.again((x, y)) is again
        assert signatures.again([x * 2, y * 2]) is again

    class Own(torch.Tensor):
        pass

    others: list[list[Any]] = [
        [x],
        [x, y, y],
        [y, x],
        [x.t(), y],
        [x[:3], y],
        [x[:, None], y],
        [x.double(), y],
        [x.to("meta"), y],
        [x.int(), y],
        [x, 2],
        [x, None],
    ]
    for other in others:
        assert signatures.again(other) is None
        assert signatures.of(other) != first
        assert [signatures.of([x, y]), signatures.of([x, y])] == [first, first]
    for refused in (x.to_sparse(), x.as_subclass(Own)):
        assert signatures.again([refused, y]) is None


@replayed.nothing("it makes signatures alone")
def test_a_signature_holds_no_argument() -> None:
    signatures = pytrees.SignatureLookup()
    x = torch.ones(2, device=GPU)
    signatures.of([x]), signatures.of([x])
    gone = weakref.ref(x)
    del x
    assert gone() is None


@pytest.mark.parametrize("guards", [True, False])
def test_calls_unlike_the_last_one(monkeypatch: pytest.MonkeyPatch, guards: bool) -> None:
    """Each argument of a call may differ from the last call's. Torch may have no guards."""
    if not guards:
        monkeypatch.setattr(pytrees, "_guards", None)

    def add(x: Any, y: Any, by: Any = 1) -> Any:
        return x + y * by

    wrapped = graphed(add, limit=32)
    x, y = torch.randn(4, 4, device=GPU), torch.randn(4, device=GPU)
    calls = [(x, y), (x.t(), y), (x[:2], y), (x.int(), y), (y, x), (x, y, 2), (x, y, 2.0), (x, 3)]
    for repeat in (4, 1, 2):
        for args in calls:
            check(wrapped, add, *[args] * repeat)
    assert wrapped(x=x, y=y).equal(x + y)
    assert wrapped.row["replays"] == len(calls) * (2 + 1 + 2)


def test_a_dropped_graph_is_not_replayed() -> None:
    model = mlp()
    wrapped = graphed(model)
    x = torch.randn(8, 64, device=GPU)
    check(wrapped, model, *[(x,)] * 4)
    wrapped.clear()
    kept = [wrapped(x), wrapped(x)]
    assert len(wrapped.row["graphs"]) == 1
    check(wrapped, model, *[(x,)] * 2)
    assert (len(wrapped.row["graphs"]), wrapped.row["replays"]) == (2, 4)
    # Two places of a weight take turns.
    one, other = (torch.randn(128, 64, device=GPU) for _ in range(2))
    for _ in range(2):
        for place in (one, other):
            model[0].weight.data = place
            check(wrapped, model, *[(x,)] * 4)
    # What two calls have shown holds for all places.
    assert wrapped.row["replays"] == 4 + 4 * 4
    del kept


@replayed.nothing("it is about wrong options")
def test_options() -> None:
    wrongs = ({"outputs": "copy"}, {"limit": 0}, {"warmup": 0}, {"guards": "some"})
    for wrong in (*wrongs, {"guards": "none", "guard_filter_fn": len}):
        with pytest.raises(ValueError, match=r"is not one of|at least 1|guards"):
            graphed(len, **wrong)
    with pytest.raises(ValueError, match="cut the results"):
        graphed(len, outputs="alias", buckets=[Bucket("b", (1,), {"x": 0})])
    with pytest.raises(ValueError, match="only positive sizes"):
        Bucket("b", (0,), {"x": 0})
    with pytest.raises(ValueError, match="at least one input"):
        Bucket("b", (1,), {})

    @graphed(name="mine", limit=3)  # type: ignore[untyped-decorator]
    def decorated(x: Any) -> Any:
        """Said here."""
        return x

    assert (decorated.__name__, decorated.__doc__, decorated.row["name"]) == (
        "decorated",
        "Said here.",
        "mine",
    )


@replayed.nothing("it is about wrong buckets")
def test_buckets_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"bucket b: .*Sequential has no argument inptu; it has"):
        graphed(mlp(), buckets=[Bucket("b", (4,), {"inptu": 0})])
    bucket = Bucket("batch", (4,), {"x": 0, "y": 1})
    wrapped = graphed(lambda x, y: x, buckets=[bucket])
    with pytest.raises(ValueError, match=r"different sizes: \[2, 3\]"):
        wrapped(torch.ones(2), torch.ones(1, 3))
    with pytest.raises(ValueError, match="y has no dimension 1"):
        wrapped(torch.ones(2), torch.ones(2))
    short = graphed(lambda x: x.sum(), buckets=[Bucket("batch", (4,), {"x": 0})])
    with pytest.raises(Refused, match="no dimension 0 of size 4"):
        short(torch.ones(2, device=GPU))


def test_padding_is_filled_anew() -> None:
    wrapped = graphed(
        lambda x: x.cumsum(0).flip(0).cumsum(0).flip(0) + x.sum(),
        buckets=[Bucket("batch", (8,), {"x": 0}, outputs=None)],
    )
    for size in (8, 8, 8, 3, 5, 1, 7):
        got = wrapped(torch.ones(size, device=GPU))
        padded = torch.nn.functional.pad(torch.ones(size, device=GPU), (0, 8 - size))
        close(got, padded.cumsum(0).flip(0).cumsum(0).flip(0) + size)
    assert wrapped.row["replays"] == 5


@replayed.nothing("there is no second call of a signature")
def test_many_signatures_are_forgotten() -> None:
    wrapped = graphed(lambda x: x + 1, limit=2)
    for size in range(1, 200):
        wrapped(torch.ones(size, device=GPU))
    assert len(wrapped._graphs.signatures) <= 8 * 2 + 2
    assert wrapped.row["calls"] == 199


@replayed.nothing("it is about a refusal")
def test_a_result_with_a_constant_that_changes() -> None:
    from itertools import count

    numbers = count()
    wrapped = graphed(lambda x: (x + 1, next(numbers)), guards="none")
    assert [wrapped(torch.ones(1, device=GPU))[1] for _ in range(4)][:2] == [0, 1]
    assert "constant that differs from call to call" in reasons(wrapped)
    assert wrapped.row["replays"] == 0


@replayed.nothing("it looks at functions alone")
def test_what_a_function_reaches() -> None:
    from functools import partial

    from rocm_autopatch.graphs.promise import WatchedWeights

    model, other, tensor = mlp(), mlp(), torch.ones(1, device=GPU)

    class Holder:
        def method(self, x: Any) -> Any:
            return held(x)

    held = torch.compile(model)
    functions = [
        *(model, held, partial(lambda m, x: m(x), model), Holder().method, model.forward),
        *(lambda x, m=model: m(x), torch.no_grad()(lambda x: [m(x) for m in (model,)])),
    ]
    for function in functions:
        tensors = WatchedWeights(function).tensors
        assert {*map(id, tensors)} == {*map(id, model.parameters())}
    both = WatchedWeights(lambda x: {"a": model, "b": [other]} and x + tensor)
    assert len(both.tensors) == 9


needs_stand_in = pytest.mark.skipif(REAL, reason="shown by the GPU itself")


@needs_stand_in
@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        ("CUDA error: operation not permitted when stream is capturing", "waits for the GPU"),
        ("hipErrorStreamCaptureUnsupported", "waits for the GPU"),
        ("hipErrorStreamCaptureUnjoined", "is not joined before the end"),
        ("HIP out of memory. Tried to allocate 2 GiB", "not enough memory"),
        ("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture", "random numbers"),
        ("something else", "the capture failed: RuntimeError: something else"),
    ],
)
@replayed.nothing("it is about refusals")
def test_errors_of_a_capture(monkeypatch: pytest.MonkeyPatch, said: str, meaning: str) -> None:
    monkeypatch.setattr(stand_in.StandIn, "broken", RuntimeError(said))
    assert meaning in refused(lambda x: x + 1, torch.ones(2))


@needs_stand_in
def test_a_capture_that_another_thread_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = RuntimeError("hipErrorStreamCaptureInvalidated")
    wrapped, other = graphed(lambda x: x + 1), graphed(lambda x: x + 1)
    for number in range(12):
        monkeypatch.setattr(stand_in.StandIn, "broken", broken if number < 5 else None)
        close(wrapped(torch.ones(2)), torch.full((2,), 2.0))
    assert (wrapped.row["replays"], wrapped.row["refused"]) == (6, [])
    monkeypatch.setattr(stand_in.StandIn, "broken", broken)
    for _ in range(12):
        other(torch.ones(2))
    assert "illegal in a capture broke it" in reasons(other)


@needs_stand_in
@pytest.mark.parametrize("size", [4, 1 << 23])
@replayed.nothing("it is about a refusal after a capture")
def test_a_replay_that_differs(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """As HIP is reported to handle illegal work in a capture: no error, but wrong numbers."""
    monkeypatch.setattr(stand_in.StandIn, "wrong", True)
    wrapped = graphed(lambda x: x * 2, verify=True)
    x = torch.ones(size)
    for _ in range(5):
        close(wrapped(x), x * 2)
    assert "a replay differs from a plain call" in reasons(wrapped)
    fast = torch.compile(mlp(), mode="reduce-overhead")
    plain = fast._orig_mod
    check(fast, plain, *[(torch.randn(2, 64),)] * 5)


@needs_stand_in
def test_the_report(seen: Seen) -> None:
    import rocm_autopatch
    from rocm_autopatch.record.sentences import report_lines

    wrapped = graphed(lambda x: x + 1, name="plus one")
    for _ in range(5):
        wrapped(torch.ones(2))
    report: dict[str, Any] = rocm_autopatch.status()
    assert [row["replays"] for row in report["graphs"] if row["name"] == "plus one"] == [3]
    assert any(
        "plus one: 3 of 5 calls replayed 1 graph [graphed]" in line for line in report_lines(report)
    )


def test_the_report_of_many_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_GRAPHS", 3)
    wrapped = graphed(lambda x: x + 1, limit=1, guards="none")
    for size in range(1, 9):
        for _ in range(5):
            wrapped(torch.ones(size, device=GPU))
    row = wrapped.row
    assert len(row["graphs"]) == 4  # with the one that is there
    assert row["dropped"] == 7
    assert (row["calls"], row["replays"]) == (40, 24)


def test_a_program_that_raises_from_its_capture_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One capture is tried. After it, calls are observed, and they raise as without us."""
    captures, calls = 0, 0
    real = capture.CapturePool.capture

    def counted(self: Any, *args: Any) -> Any:
        nonlocal captures
        captures += 1
        return real(self, *args)

    def function(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if 2 < calls < 7:
            raise LookupError("the program's own")
        return x + 1

    monkeypatch.setattr(capture.CapturePool, "capture", counted)
    wrapped, x = graphed(function, guards="none", verify=False), torch.ones(4, device=GPU)
    for number in range(6):
        with pytest.raises(LookupError) if number > 1 else contextlib.nullcontext():
            wrapped(x)
    assert captures == 1
    for _ in range(3):
        close(wrapped(x), x + 1)
    assert (wrapped.row["replays"], wrapped.row["refused"]) == (2, [])
