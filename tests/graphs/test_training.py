# mypy: allow-subclassing-any
"""Training in the mode, compared with eager: every gradient of every step.

    python -m pytest tests/graphs

As in test_graphs.py, there is a stand-in where there is no GPU. Most tests train one model, so that
little is compiled.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import fuzz
import replayed
import stand_in
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from rocm_autopatch.graphs import (
    Refused,
    attempts,
    borrowed_outputs,
    capture,
    graph_cache,
    host_backup,
    layout,
    passes,
    record,
    soundness,
    training,
    verification,
)
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.graphs.refusal import CaptureBusy
from rocm_autopatch.graphs.states import CapturedState
from rocm_autopatch.measure.prove import bench, trials

REAL = torch.cuda.is_available()
GPU = torch.device("cuda", torch.cuda.current_device()) if REAL else torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("default")
replaying = replayed.replaying
MODE = "reduce-overhead"
WARMING = "the first calls of a signature run without a graph"
HELD = "what its last replay saved or returned is still in use"
needs_gpu = pytest.mark.skipif(not REAL, reason="a CPU has no memory of graphs")
NEEDED = "what its forward saved or returned is still needed after it"
PLAIN_FORWARD = "its forward ran without a graph"
Seen = Callable[[], list[record.CallableRow]]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Of large results only parts are compared. Here most of them are large.
    monkeypatch.setattr(verification, "_COMPARED", 64)
    # A backward may have the memory of large results. Here most of them are small.
    monkeypatch.setattr(borrowed_outputs, "_SMALL", 0)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    if not REAL:
        stand_in.install()
    stand_in.graphs_in_modes()


@pytest.fixture
def seen() -> Seen:
    # What other tests have compiled may still be called, by garbage that is collected later.
    count = len(record._rows)
    return lambda: [record.finished_row(one) for one in record._rows[count:] if one["plain"]]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.two = torch.nn.Linear(32, 8)

    def forward(self, x: Any) -> Any:
        return self.two(torch.nn.functional.gelu(self.norm(self.one(x)))).softmax(-1)


def batch(rows: int = 8) -> Any:
    return torch.randn(rows, 16, device=GPU)


class Pair:
    """A model in the mode, and an equal one in eager mode, with an optimizer each."""

    def __init__(self, model: Any = None, **kwargs: Any) -> None:
        self.model = (Net() if model is None else model).to(GPU)
        self.other = copy.deepcopy(self.model)
        self.fast = torch.compile(self.model, mode=MODE, **kwargs)
        self.optimizers = [
            torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (self.model, self.other)
        ]

    def both(self, step: Callable[[Any], Any]) -> None:
        """A step of each, from the same state of the generator, and the same gradients."""
        state = torch.cuda.get_rng_state() if REAL else torch.get_rng_state()
        results = []
        for function in (self.fast, self.other):
            (torch.cuda.set_rng_state if REAL else torch.set_rng_state)(state)
            results.append(step(function))
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
        self.same()

    def same(self) -> None:
        for (name, one), other in zip(self.model.named_parameters(), self.other.parameters()):
            assert (one.grad is None) == (other.grad is None), name
            if one.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4, msg=name)
        for one, other in zip(self.model.buffers(), self.other.buffers()):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)

    def step(self, set_to_none: bool = True) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)


def trained(function: Any, x: Any) -> Any:
    loss = function(x).square().mean()
    loss.backward()
    return loss.detach()


def counts(rows: list[record.CallableRow]) -> list[tuple[int, dict[str, int]]]:
    return [(row["replays"], row["plain"]) for row in rows]


def test_steps(seen: Seen) -> None:
    pair = Pair()
    for _ in range(9):
        x = batch()
        pair.both(partial(trained, x=x))
        pair.step()
    forward, backward = seen()
    assert backward["name"] == f"backward of {forward['name']}"
    assert counts([forward, backward]) == [(7, {WARMING: 2}), (7, {WARMING: 2})]
    assert forward["graphs"][0]["verified"]
    assert backward["graphs"][0]["verified"]


def test_results_are_the_program_s(seen: Seen) -> None:
    """A caller may keep results, and may change them."""
    pair, kept = Pair(), []
    for _ in range(6):
        x = batch()
        kept.append((pair.fast(x), pair.other(x)))
        kept[-1][0].square().mean().backward()
        kept[-1][1].square().mean().backward()
        pair.step()
    for got, wanted in kept:
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    assert seen()[0]["replays"] == 4


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_add_up(seen: Seen, set_to_none: bool) -> None:
    pair = Pair()
    for number in range(12):
        x = batch()
        pair.both(partial(trained, x=x))
        if number % 3 == 2:
            pair.step(set_to_none)
    forward, backward = seen()
    assert (forward["replays"], backward["replays"]) == (10, 10)


@pytest.mark.usefixtures("all_inside")
def test_a_gradient_that_dlpack_holds() -> None:
    """It is what later gradients are added to, and no replay writes there."""
    pair = Pair()
    held: list[list[Any]] = []
    for number in range(9):
        pair.both(partial(trained, x=batch()))
        if number == 3:
            pair.step()
        if number == 4:
            for model in (pair.model, pair.other):
                held.append([torch.from_dlpack(one.grad) for one in model.parameters()])
        if held:
            torch.testing.assert_close(*held, rtol=1e-3, atol=1e-4)


def test_gradients_that_the_program_begins_to_keep(seen: Seen) -> None:
    """Nothing overwrites them. From the second time on it gets copies."""
    pair = Pair()
    kept: list[list[Any]] = []

    def gradients(model: Any) -> list[Any]:
        grads = [one.grad for one in model.parameters()]
        return [*grads, *(grad[:1] for grad in grads)]

    for number in range(14):
        pair.both(partial(trained, x=batch()))
        if number > 3:
            kept.append([gradients(model) for model in (pair.model, pair.other)])
        pair.step()
        for both in kept:
            torch.testing.assert_close(*both, rtol=1e-3, atol=1e-4)
        del kept[:-2]
    forward, backward = seen()
    assert counts([forward, backward]) == [
        (11, {WARMING: 2, HELD: 1}),
        (11, {WARMING: 2, PLAIN_FORWARD: 1}),
    ]


def test_gradients_that_the_program_keeps_over_the_next_forward(seen: Seen) -> None:
    """A variable has the last one, which is no weight's any more. The first calls show it."""
    pair = Pair(Parts())
    for _ in range(8):
        pair.both(partial(trained, x=batch()))
        *_, kept = [(one.grad, one.grad.clone()) for one in pair.model.parameters()]
        pair.step()
        assert torch.equal(*kept)
    assert counts(seen()) == [(6, {WARMING: 2})] * 4


def test_sparse_gradients_of_the_program_s_own(seen: Seen) -> None:
    """Such a gradient has no single memory."""
    pair = Pair(torch.nn.Linear(16, 8))
    kept = []
    for number in range(9):
        for model in (pair.model, pair.other):
            model.weight.grad = torch.ones(8, 16, device=GPU).to_sparse()
        pair.both(partial(trained, x=batch()))
        pair.same()
        if number > 4:
            kept = [one.grad for one in pair.model.parameters()]
        pair.step()
    assert kept
    assert all(row["replays"] >= 5 for row in seen())


def test_two_forwards_before_a_backward(seen: Seen) -> None:
    pair = Pair()

    def step(function: Any) -> Any:
        one, two = function(x), function(y)
        (one.square().mean() + 2 * two.square().mean()).backward()
        return one.detach() + two.detach()

    for _ in range(8):
        x, y = batch(), batch()
        pair.both(step)
        pair.step()
    forward, backward = seen()
    # The second forward finds the first one's values in use. From the second time on it has a graph
    # of its own, and so has its backward.
    assert counts([forward]) == [(13, {WARMING: 2, HELD: 1})]
    assert len(forward["graphs"]) == len(backward["graphs"]) == 2
    assert backward["plain"][PLAIN_FORWARD] <= 4
    assert backward["replays"] >= 10


def test_a_number_that_no_call_determines(seen: Seen) -> None:
    """Attention without dropout saves such a seed on a GPU.

    Torch compares it with an exception, whose frames hold the first replay's results until garbage
    is collected. They do not count among what holds them for good: that would hide a later user.
    """
    custom_op: Any = torch.library.custom_op
    numbers = itertools.count(1 << 40)

    @custom_op("autopatch_tests::seeded", mutates_args=())  # type: ignore[untyped-decorator]
    def seeded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * x, torch.full((), next(numbers), device=x.device)

    @custom_op("autopatch_tests::unseeded", mutates_args=())  # type: ignore[untyped-decorator]
    def unseeded(grad: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
        return 2 * grad

    seeded.register_fake(lambda x: (torch.empty_like(x), x.new_empty((), dtype=torch.int64)))
    unseeded.register_fake(lambda grad, seed: torch.empty_like(grad))
    seeded.register_autograd(
        lambda ctx, grad, _: unseeded(grad, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
    )

    class Seeded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def forward(self, x: Any) -> Any:
            return seeded(self.net(x))[0].sin()

    def two_forwards(function: Any, x: Any) -> Any:
        one, two = function(x), function(x + 1)
        (one.square().mean() + 2 * two.square().mean()).backward()
        return one.detach() + two.detach()

    pair = Pair(Seeded())
    gc.disable()
    for step in (*[trained] * 4, *[two_forwards] * 3):
        pair.both(partial(step, x=batch()))
        pair.step()
        gc.collect()
    gc.enable()
    for one in (seeded, unseeded):
        one._lib._destroy()
    forward, backward = seen()
    assert (forward["refused"], backward["refused"]) == ([], [])
    assert (forward["plain"][HELD], backward["plain"][PLAIN_FORWARD]) == (1, 1)


def test_a_forward_without_a_backward(seen: Seen) -> None:
    pair = Pair()
    for _ in range(4):
        x = batch()
        pair.both(partial(trained, x=x))
        kept = pair.fast(x)  # It saves values, and nobody uses them.
        pair.step()
    del kept
    for _ in range(4):
        x = batch()
        pair.both(partial(trained, x=x))
        pair.step()
    forward, _ = seen()
    assert forward["replays"] >= 4


def test_a_retained_graph(seen: Seen) -> None:
    with torch._functorch.config.patch(donated_buffer=False):
        pair = Pair()

        def step(function: Any) -> Any:
            loss = function(x).square().mean()
            loss.backward(retain_graph=True)
            (2 * loss).backward()
            return loss.detach()

        for _ in range(7):
            x = batch()
            pair.both(step)
            pair.step()
    forward, backward = seen()
    assert (forward["replays"], backward["replays"]) == (5, 10)


def test_errors_are_torch_s(seen: Seen) -> None:
    pair = Pair()
    for _ in range(6):
        x = batch()
        pair.both(partial(trained, x=x))
        pair.step()
    loss = pair.fast(x).square().mean()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    del loss
    loss = pair.fast(x).square().mean()
    with torch.no_grad():
        pair.model.two.weight.mul_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    del loss
    for model in (pair.model, pair.other):
        model.zero_grad()
    pair.both(lambda function: trained(function, x))
    forward, backward = seen()
    assert (forward["replays"], backward["replays"]) == (7, 6)


def test_evaluation_between_steps(seen: Seen) -> None:
    pair = Pair()

    def evaluated(function: Any) -> Any:
        with torch.no_grad():
            return function(x)

    for _ in range(6):
        x = batch()
        pair.both(partial(trained, x=x))
        pair.both(evaluated)
        pair.step()
        pair.both(evaluated)
    assert sorted(row["replays"] for row in seen()) == [4, 4, 10]


def test_dropout_draws_anew(seen: Seen) -> None:
    """Each step draws the numbers that the compiled function draws without graphs."""
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.5)).to(GPU)
    fast = torch.compile(model, mode=MODE)
    plain = torch.compile(copy.deepcopy(model))
    x = batch().requires_grad_()
    for _ in range(2):
        drawn = []
        for function in (fast, plain):
            torch.manual_seed(1)
            rows = []
            for _ in range(7):
                result = function(x)
                (grad,) = torch.autograd.grad(result.sum(), x)
                rows.append((result.detach(), grad))
            drawn.append(rows)
        torch.testing.assert_close(*drawn)
        assert not torch.equal(drawn[0][5][0], drawn[0][6][0])
    assert [row["replays"] for row in seen()] == [12, 12]


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * torch.rand_like(grad)


def test_a_backward_that_draws(seen: Seen) -> None:
    """No step draws the numbers of another one, also not of the one that is captured."""

    class Model(Net):
        def forward(self, x: Any) -> Any:
            return super().forward(Noisy.apply(x))

    model = Model().to(GPU)
    ways = [torch.compile(model, mode=MODE), torch.compile(copy.deepcopy(model))]
    x = batch().requires_grad_()
    drawn = []
    for function in ways:
        torch.manual_seed(1)
        drawn.append([torch.autograd.grad(function(x).square().sum(), x) for _ in range(7)])
    torch.testing.assert_close(*drawn)
    assert [row["replays"] for row in seen()] == [5, 5]


OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9)
NO_BACKWARD = pytest.mark.skipif(OLD, reason="before torch 2.9 no backward of it has a graph")


class Summed(torch.nn.Module):
    """Its backward needs no argument."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16))

    def forward(self, x: Any) -> Any:
        return (x.sum(0) * self.weight).tanh()


@pytest.mark.parametrize(
    ("make", "reentrant", "replays"),
    [
        pytest.param(Net, False, 4, marks=NO_BACKWARD),
        (Net, True, 5),
        pytest.param(Summed, False, 4, marks=NO_BACKWARD),
    ],
)
def test_checkpoints(seen: Seen, make: Any, reentrant: bool, replays: int) -> None:
    pair = Pair(make())
    between: list[Any] = []

    def step(function: Any) -> Any:
        result = checkpoint(function, x, use_reentrant=reentrant)
        # What is saved again does not lie where it was saved before.
        between.extend(torch.empty(16, device=GPU) for _ in range(20))
        loss = result.square().mean()
        loss.backward()
        return loss.detach()

    for _ in range(7):
        x = batch().requires_grad_()
        pair.both(step)
        pair.step()
    assert min(row["replays"] for row in seen()) >= replays


def test_saved_tensors_elsewhere(seen: Seen) -> None:
    """A hook moves what is saved, as torch.autograd.graph.save_on_cpu does."""
    pair = Pair()
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one)

    def step(function: Any) -> Any:
        with hooks:
            loss = function(x).square().mean()
        loss.backward()
        return loss.detach()

    for number in range(10):
        x = batch()
        pair.both(step if number % 3 else partial(trained, x=x))
        pair.step()
    # A backward that reads something elsewhere is a plain call.
    assert [row["replays"] for row in seen()] == [8, 2]


def test_hooks_of_weights(seen: Seen) -> None:
    pair = Pair()

    def tripled(weight: Any) -> None:
        weight.grad.mul_(3)

    for model in (pair.model, pair.other):
        model.two.weight.register_hook(lambda grad: grad * 2)
        model.one.weight.register_post_accumulate_grad_hook(tripled)
    for _ in range(7):
        x = batch()
        pair.both(partial(trained, x=x))
        pair.step()
    assert [row["replays"] for row in seen()] == [5, 5]


def test_weights_that_change(seen: Seen) -> None:
    pair = Pair()

    def some() -> None:
        for _ in range(4):
            x = batch()
            pair.both(partial(trained, x=x))
            pair.step()

    some()
    for model in (pair.model, pair.other):
        model.one.weight.data = model.one.weight.data.clone() * 0.5
    some()
    for model in (pair.model, pair.other):
        model.norm.weight.requires_grad_(False)
        model.zero_grad()
    some()
    # Torch 2.11 compiles nothing anew for a weight that needs no gradient any more.
    assert [row["replays"] for row in seen()] in ([6, 6, 2, 2], [10, 10])


def test_gradients_of_an_input(seen: Seen) -> None:
    pair = Pair()

    def step(function: Any) -> Any:
        given = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(function(2 * given).square().sum(), given)
        return grad

    for _ in range(7):
        x = batch()
        pair.both(step)
    assert [row["replays"] for row in seen()] == [5, 5]


def test_shapes(seen: Seen) -> None:
    pair = Pair(dynamic=False)
    for rows in (8, 8, 8, 4, 8, 4, 8, 4, 4, 8, 4, 8):
        x = batch(rows)
        pair.both(partial(trained, x=x))
        pair.step()
    assert [row["replays"] > 0 for row in seen()] == [True] * 4


def test_mixed_precision(seen: Seen) -> None:
    pair = Pair()
    scalers = {
        one: torch.amp.GradScaler(GPU.type, init_scale=64.0) for one in (pair.fast, pair.other)
    }

    def step(function: Any) -> Any:
        with torch.autocast(GPU.type, dtype=torch.bfloat16):
            loss = function(x).float().square().mean()
        scalers[function].scale(loss).backward()
        return loss.detach()

    for _ in range(6):
        x = batch()
        with contextlib.suppress(NotImplementedError):
            state = [step(function) for function in (pair.fast, pair.other)]
            torch.testing.assert_close(*state, rtol=2e-2, atol=2e-2)
        for scaler, optimizer in zip(scalers.values(), pair.optimizers):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    for one, other in zip(pair.model.parameters(), pair.other.parameters()):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2)
    assert [row["replays"] for row in seen()] == [4, 4]


def test_a_batch_norm(seen: Seen) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8, bias=False), torch.nn.BatchNorm1d(8))
    pair = Pair(model)

    def step(function: Any) -> Any:
        loss = (function(x) - 1).square().mean()
        loss.backward()
        return loss.detach()

    for _ in range(7):
        x = batch()
        pair.both(step)
        pair.step()
    assert [row["replays"] for row in seen()] == [5, 5]


def test_a_compiled_optimizer(seen: Seen) -> None:
    pair = Pair()
    optimizers = [
        torch.optim.AdamW(one.parameters(), lr=1e-2, foreach=True)
        for one in (pair.model, pair.other)
    ]
    steps = [torch.compile(optimizers[0].step, mode=MODE), optimizers[1].step]
    for _ in range(8):
        x = batch()
        pair.both(partial(trained, x=x))
        for optimizer, step in zip(optimizers, steps):
            step()
            optimizer.zero_grad()
    for one, other in zip(pair.model.parameters(), pair.other.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert sorted(row["replays"] for row in seen()) == [6, 6, 6]


def test_data_parallel(tmp_path: Path, seen: Seen) -> None:
    """Collectives stay outside of the graphs, which hand out copies of gradients then."""
    dist = torch.distributed
    dist.init_process_group(
        "nccl" if REAL else "gloo", f"file://{tmp_path}/store", world_size=1, rank=0
    )
    try:
        pair = Pair()
        parallel = torch.nn.parallel.DistributedDataParallel
        pair.fast = torch.compile(parallel(pair.model), mode=MODE)
        pair.other = parallel(pair.other)
        for _ in range(7):
            x = batch()
            pair.both(partial(trained, x=x))
            pair.step()
        assert [row["replays"] for row in seen()] == [5, 5]
    finally:
        dist.destroy_process_group()


def test_a_process_group_that_comes_later(tmp_path: Path, seen: Seen) -> None:
    """From then on gradients are copies: a collective may read them on another stream."""
    pair = Pair()

    def train() -> Any:
        for _ in range(7):
            pair.step()
            pair.both(partial(trained, x=batch()))
        return layout.storage_key(pair.model.one.weight.grad)

    owners = capture.CapturePools.of_this_thread().owners
    assert train() in owners
    dist = torch.distributed
    dist.init_process_group(
        "nccl" if REAL else "gloo", f"file://{tmp_path}/store", world_size=1, rank=0
    )
    try:
        assert train() not in owners
        assert [len(row["graphs"]) for row in seen()] == [2, 2]
        assert seen()[1]["graphs"][1]["replays"] >= 3
    finally:
        dist.destroy_process_group()


class Parts(torch.nn.Module):
    """Two compiled regions: between them the graph of operations breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Net(), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        between = self.first(x) + x[:, :8]
        torch._dynamo.graph_break()
        return self.second(between).sin()


def test_a_region_that_is_captured_later(seen: Seen) -> None:
    """What one region has saved is not overwritten by the next one, which was captured before."""
    pair = Pair(Parts())
    for _ in range(6):
        pair.both(partial(trained, x=batch()))
        pair.step()

    def to_the_input(function: Any, x: Any) -> Any:
        given = x.clone().requires_grad_()
        return torch.autograd.grad(function(given * 1).square().mean(), given)[0]

    for _ in range(6):
        pair.both(partial(to_the_input, x=batch()))
    later = [row for row in seen() if not row["name"].startswith("backward")]
    assert len(later) == 3
    assert all(set(row["plain"]) == {WARMING} and row["replays"] >= 4 for row in later)


@pytest.mark.parametrize("apart", [False, True])
@replayed.nothing("it makes the results of a graph alone")
def test_a_result_in_the_memory_of_an_argument(apart: bool) -> None:
    """Inductor may write a gradient to where a saved value was. It is not kept alive then."""
    argument = torch.arange(8.0, device=GPU)
    before = layout.use_count(layout.storage_key(argument))
    whole, words = argument.view(2, 4), argument.view(torch.int32)[2:6]
    copied = {0, 1} if apart else ()
    results = borrowed_outputs.BorrowedOutputs(
        [whole, words], copied, (), set(), set(), {3: argument}, tuple, GPU
    )
    del whole, words
    results.count_owners(())
    assert layout.use_count(layout.storage_key(argument)) == before
    other = torch.arange(8.0, device=GPU) + 1
    found = results.take([None, None, None, other])
    assert torch.equal(found[0], other.view(2, 4))
    assert torch.equal(found[1], other.view(torch.int32)[2:6])
    for one in found:
        assert (layout.storage_key(one) == layout.storage_key(other)) is not apart


@pytest.fixture
def all_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of small arguments serve a backward's graph as memory, too."""
    monkeypatch.setattr(passes, "_LARGE", 1)


@pytest.mark.usefixtures("all_inside")
def test_regions_read_each_other_s_results(seen: Seen) -> None:
    pair, addresses = Pair(Parts()), []
    for _ in range(8):
        x = batch()
        pair.both(partial(trained, x=x))
        addresses.append(pair.fast(x).data_ptr())
        pair.both(partial(trained, x=x))
        pair.step()
    assert len(set(addresses[3:])) == 1
    assert all(set(row["plain"]) == {WARMING} for row in seen())


@pytest.mark.usefixtures("all_inside")
def test_results_that_the_program_begins_to_keep(seen: Seen) -> None:
    """While it holds one, or a view, there is no replay. Later it gets copies."""
    pair = Pair(Parts())
    kept: list[Any] = []
    for number in range(14):
        x = batch()
        result = pair.fast(x)
        if number == 7:
            view = result[:, :1].detach()
            kept.append((view, view.clone()))
        if number == 9:
            kept.clear()
            del view
        if number > 9:
            kept.append((result, result.detach().clone()))
        place = result.data_ptr()
        result.square().mean().backward()
        trained(pair.other, x)
        pair.same()
        pair.step()
        assert all(torch.equal(one.detach(), was) for one, was in kept)
        del result
    second = [row for row in seen() if not row["name"].startswith("backward")][1]
    assert second["plain"] == {WARMING: 2, HELD: 1}
    assert place != kept[-2][0].data_ptr()


def test_results_that_the_program_always_keeps(seen: Seen) -> None:
    """The calls before the capture have shown it: it gets copies from the first replay on."""
    pair, kept = Pair(Parts()), []
    for _ in range(8):
        x = batch().requires_grad_()
        result = pair.fast(x)
        (grad,) = torch.autograd.grad(result.square().mean(), x)
        kept += [(one, one.detach().clone()) for one in (result, grad)]
        assert all(torch.equal(one, was) for one, was in kept)
    assert counts(seen()) == [(6, {WARMING: 2})] * 4


def test_a_result_that_is_saved_and_begins_to_be_kept(seen: Seen) -> None:
    """The program gets copies of it. The backward finds it where it was."""
    model = torch.nn.Linear(16, 16).to(GPU)
    fast = torch.compile(lambda x: model(x).exp(), mode=MODE)
    kept = []
    for number in range(14):
        x = batch()
        result = fast(x)
        assert torch.allclose(result, model(x).exp(), rtol=1e-3)
        result.sum().backward()
        torch.testing.assert_close(model.bias.grad, result.sum(0), rtol=1e-3, atol=1e-3)
        model.zero_grad()
        if number > 6:
            kept.append((result, result.detach().clone()))
        del result
        assert all(torch.equal(one, was) for one, was in kept)
    forward, backward = counts(seen())
    assert forward == (11, {WARMING: 2, HELD: 1})
    assert backward == (11, {WARMING: 2, PLAIN_FORWARD: 1})


class Layer(torch.nn.Module):
    """What it saves of its argument is the argument itself."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.linear(x).sin() * x


def test_layers_that_save_each_other_s_results(seen: Seen) -> None:
    """The first one's argument is a copy, as no graph has written it. The code is the same."""
    others = [*capture.CapturePools.of_this_thread().owners.values()]
    layers = [Layer().to(GPU) for _ in range(3)]
    for layer in layers:
        layer.compile(mode=MODE)
    plain = copy.deepcopy(layers)
    for one in plain:
        one._compiled_call_impl = None
    for number in range(16):
        if number == 8:
            before = [row["replays"] for row in seen()]
        x = batch().requires_grad_()
        for each in (layers, plain):
            value = x
            for layer in each:
                value = layer(value)
            value.square().mean().backward()
        grads = [[one.linear.weight.grad for one in each] for each in (layers, plain)]
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)
        for layer in (*layers, *plain):
            layer.zero_grad()
    assert [row["replays"] - was for row, was in zip(seen(), before)] == [8 * 3] * 2
    found = {id(one): one for one in capture.CapturePools.of_this_thread().owners.values()}
    # Each backward has found the forward whose memory it may use.
    donated = [one for one in found.values() if one._lend and one._lend[1] < one.gone < inf]
    assert len([one for one in donated if one not in others]) >= 3


def test_an_argument_of_two_regions_in_turn(seen: Seen) -> None:
    """It is copied once it was elsewhere, and does not move the graph again and again."""

    def caches() -> list[Any]:
        return [one for one in gc.get_objects() if type(one) is graph_cache.GraphCache]

    of_other_tests = caches()
    first = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Sigmoid()).to(GPU)
    models = [first, *(torch.nn.Linear(16, 16).to(GPU) for _ in range(2))]
    *makers, last = [torch.compile(one, mode=MODE) for one in models]
    for number in range(24):
        x = batch()
        both = [make(x) for make in makers]
        if number < 6:
            # They have graphs, whose places the last one then takes for its argument's.
            (both[0] + both[1]).sum().backward()
            del both
            continue
        result = last(both[number // 2 % 2]).sin()
        result.sum().backward()
        wanted = models[2](models[number // 2 % 2](x)).sin()
        torch.testing.assert_close(result, wanted, rtol=1e-3, atol=1e-4)
        del both, result
    assert sum(row["dropped"] for row in seen()) <= 4
    # A backward that other results were in the way of overwrites nothing of its forward's.
    states = [
        state
        for one in caches()
        if one not in of_other_tests
        for state in one.states()
        if isinstance(state, CapturedState)
    ]
    others = [one for one in states if not one.outputs.for_backward and one.donated is None]
    gradients = capture.CapturePools.of_this_thread().gradients
    assert others
    assert all(one.memory is gradients for one in others)


PARTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "expanded": lambda y: (y[:1].expand(4, 16),),
    "a sliding window": lambda y: (y.as_strided((4, 16), (4, 1)),),
    "two that overlap": lambda y: (y[:3], y[1:]),
}


@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_a_result_that_are_elsewhere_later(seen: Seen, parts: str) -> None:
    """They lie in the result of a region at the capture, and then in memory of the program's."""
    make, use = (torch.nn.Linear(16, 16).to(GPU) for _ in range(2))

    def read(*given: Any) -> Any:
        return sum(use(one).sin().sum() for one in given)

    first, last = torch.compile(make, mode=MODE), torch.compile(read, mode=MODE, dynamic=False)
    for number in range(10):
        y = first(torch.randn(4, 16, device=GPU))
        given = PARTS[parts](y if number < 6 else y.detach().clone().requires_grad_() * 1)
        del y
        both = []
        for function, mine in ((read, [one.detach() for one in given]), (last, given)):
            result = function(*mine)
            result.backward()
            both.append((result.detach().clone(), use.weight.grad.clone()))
            use.zero_grad()
        torch.testing.assert_close(*both, rtol=1e-3, atol=1e-3)
        del given, mine, result
    assert seen()[1]["replays"] >= 4


def test_a_gradient_has_no_place_where_saved_values_are_held(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second backward's graph writes its gradient where its forward has saved values.

    As long as the program holds these, that backward runs without its graph, and so does the
    first one: its graph would write there, too.
    """
    monkeypatch.setattr(passes, "_LARGE", 1)

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(16, 24), torch.nn.Linear(24, 24)

        def forward(self, x: Any) -> Any:
            y = self.first(x).sin()
            torch._dynamo.graph_break()
            return self.second(y).sin()

    # With it, torch's own backward writes over what was saved.
    with torch._functorch.config.patch(donated_buffer=False):
        pair = Pair(Both())
        for _ in range(5):
            pair.both(partial(trained, x=batch()))
            pair.step()
        before = [row["replays"] for row in seen()]
        x = batch()
        result = pair.fast(x)
        # What the second forward has made: neither a weight nor what it got from the first one.
        saved = [
            one for one in result.grad_fn.saved_tensors if one.shape == (8, 24) and one.is_leaf
        ]
        were = [one.detach().clone() for one in saved]
        result.square().mean().backward()
        assert len(saved) == 1
        assert torch.equal(saved[0], were[0])
        assert [row["replays"] - was for row, was in zip(seen(), before)] == [1, 1, 0, 0]
        second, first = seen()[2:]
        assert (second["plain"][NEEDED], first["plain"][HELD]) == (1, 1)
        del saved, result
        trained(pair.other, x)
        pair.same()


@pytest.mark.parametrize("beside", [True, False])
def test_results_that_are_kept_for_good(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """There is one more graph, and if there may be none, the graph is captured elsewhere."""
    monkeypatch.setattr(graph_cache, "CALLS_IN_USE", 3)
    monkeypatch.setattr(passes.ForwardPass, "goes_beside", beside)
    pair = Pair()
    for _ in range(3):
        kept = pair.fast(batch())  # And all that was saved for its backward.
    was = kept.detach().clone()
    for _ in range(12):
        pair.both(partial(trained, x=batch()))
        pair.step()
    forward = seen()[0]
    assert (forward["plain"][HELD], forward["dropped"]) == ((1, 0) if beside else (3, 1))
    assert forward["graphs"][1]["replays"] == (11 if beside else 7)
    torch.testing.assert_close(kept.detach(), was)


@pytest.mark.parametrize("of", ["result", "input", "weight"])
def test_the_memory_alone_is_kept(of: str) -> None:
    """Python's object for a memory is no tensor, and its count of references does not count it."""
    model, kept = torch.nn.Linear(16, 16).to(GPU), []
    fast = torch.compile(model, mode=MODE)
    for number in range(12):
        x = batch().requires_grad_()
        result = fast(x)
        result.square().sum().backward()
        one = {"result": result, "input": x.grad, "weight": model.weight.grad}[of]
        if number > 5:
            kept.append((one.untyped_storage(), one.detach().clone()))
        model.zero_grad()
        del x, result, one
    for memory, was in kept:
        now = torch.empty(0, device=GPU).set_(memory, 0, was.shape)
        assert torch.equal(now, was)


class Sum(torch.nn.Module):
    """Its two weights have the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (torch.nn.Parameter(torch.randn(8, 16)) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return ((self.one + self.two) * x).sin()


def test_equal_gradients_are_two_tensors(seen: Seen) -> None:
    """Autograd copies a gradient for the second weight, if both get the same tensor."""
    pair = Pair(Sum())
    for _ in range(7):
        pair.both(partial(trained, x=batch()))
        for model in (pair.model, pair.other):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3, foreach=False)
        pair.same()
        assert pair.model.one.grad.data_ptr() != pair.model.two.grad.data_ptr()
        pair.step()
    assert seen()[1]["replays"] == 5


@pytest.mark.skipif(
    not REAL, reason="the stand-in holds a gradient, and that counts as the program's hold"
)
def test_equal_gradients_of_inputs(seen: Seen) -> None:
    fast = torch.compile(lambda one, two: (one + two).sin(), mode=MODE)
    for _ in range(7):
        one, two = (batch().requires_grad_() for _ in range(2))
        fast(one, two).sum().backward()
        assert one.grad.data_ptr() != two.grad.data_ptr()
        del one, two
    assert seen()[1]["replays"] == 5


def reserved() -> tuple[int, int]:
    """The bytes that torch has for the program, and those for graphs."""
    gc.collect()
    torch.cuda.empty_cache()
    found = [0, 0]
    for one in torch.cuda.memory_snapshot():
        found[tuple(one["segment_pool_id"]) != (0, 0)] += one["total_size"]
    return found[0], found[1]


@needs_gpu
def test_the_first_calls_use_the_memory_of_the_graphs() -> None:
    """So what the program allocates meanwhile does not lie between their values."""
    layers = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(8)]
    pair = Pair(torch.nn.Sequential(*layers))
    before = reserved()
    for number in range(6):
        trained(pair.fast, torch.randn(8192, 1024, device=GPU))
        pair.step()
        if number == 0:
            # They are 512 MiB, and the optimizer's state is 64.
            first = reserved()
            assert first[1] - before[1] > 256 << 20 > first[0] - before[0]
    last = reserved()
    assert last[0] - before[0] < 256 << 20
    assert last[1] - before[1] < first[1] - before[1] + (64 << 20)


@needs_gpu
def test_saved_values_lie_in_one_piece() -> None:
    """What is free in two segments is never one, and a backward needs such room."""
    before = {one["address"] for one in torch.cuda.memory_snapshot()}
    pair = Pair(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(16))))
    for _ in range(6):
        # Each value has 16 MiB.
        trained(pair.fast, torch.randn(4096, 1024, device=GPU))
        pair.step()
    new = [one for one in torch.cuda.memory_snapshot() if one["address"] not in before]
    sizes = [one["total_size"] for one in new if tuple(one["segment_pool_id"]) != (0, 0)]
    assert max(sizes) > 200 << 20


@replayed.nothing("it compares numbers")
def test_what_lies_side_by_side() -> None:
    given = torch.zeros(1 << 20)
    values = [torch.zeros(3 << 18) for _ in range(9)]
    little = torch.zeros(1 << 10)
    # Views of a value, and of an argument.
    views = [values[0][5:], given[5:]]
    result = [*values, *views, little, 5, None]
    assert attempts._size_side_by_side(result, [given, 7]) == 9 * 3 << 20
    # What is large finds a place by itself.
    large = torch.zeros(9 << 20)
    assert attempts._size_side_by_side([*result, large], [given, 7]) == 9 * 3 << 20
    assert attempts._size_side_by_side([large], []) == 0


def test_which_captures_take_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that writes to a buffer, too, which is not compared with a plain call."""
    monkeypatch.setattr(attempts, "_LEAST", 0)
    monkeypatch.setattr(attempts, "_PARTS", 1)
    sizes: list[int] = []
    capture_ = capture.CapturePool.capture

    def note(self: Any, function: Any, enter: Any, memory: Any, size: int = 0) -> Any:
        sizes.append(size)
        return capture_(self, function, enter, memory, size)

    monkeypatch.setattr(capture.CapturePool, "capture", note)
    width = batch().shape[-1]
    # A bias before the norm would have a gradient of noise alone.
    first = torch.nn.Linear(width, width, bias=False)
    layers = [first, torch.nn.BatchNorm1d(width), torch.nn.Tanh()]
    pair = Pair(torch.nn.Sequential(*layers, torch.nn.Linear(width, 2)))
    for _ in range(6):
        pair.both(partial(trained, x=batch()))
        pair.step()
    forward, backward = sizes
    assert forward > 0
    # There is room in what it reads.
    assert backward == 0


@pytest.mark.parametrize(
    "fails", [False, pytest.param(True, marks=replayed.nothing("all captures fail"))]
)
def test_an_attempt_ends_first_calls(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """It makes one itself. What that needs is free for the capture, and what follows is, too."""
    ended: list[int] = []
    monkeypatch.setattr(attempts, "end_first_calls", lambda: ended.append(1))

    def fail(self: Any) -> None:
        raise Refused("no graph")

    if fails:
        monkeypatch.setattr(attempts.CaptureAttempt, "_record_graph", fail)
    pair = Pair()
    for _ in range(6):
        pair.both(partial(trained, x=batch()))
        pair.step()
    # There is a plain call before each graph.
    assert len(ended) == (2 if fails else 4)


def test_calls_without_a_graph_beside_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last batch of another size may never have a graph. The program needs its memory again."""
    pair, before = Pair(dynamic=True), []
    run = capture.CapturePools.run_as_first_call

    def note(self: Any, device: Any, function: Any, user: Any = None) -> Any:
        before.append(user)
        return run(self, device, function, user)

    monkeypatch.setattr(capture.CapturePools, "run_as_first_call", note)

    def train(rows: int) -> None:
        pair.both(partial(trained, x=torch.randn(rows, *batch().shape[1:], device=GPU)))
        pair.step()

    for _ in range(6):
        train(6)
    assert len(before) > 3
    before.clear()
    train(7)
    assert before == []


def test_checks_of_replays_need_no_memory_of_first_calls(
    monkeypatch: pytest.MonkeyPatch, seen: Seen
) -> None:
    """No capture follows, which would give it back."""
    monkeypatch.setattr(soundness, "checks_by_default", lambda: True)
    # There is no time for one in steps that take none.
    monkeypatch.setattr(soundness.budget, "allows_check", lambda *_: True)
    pair, before = Pair(), []
    run = capture.CapturePools.run_as_first_call

    def note(self: Any, device: Any, function: Any, user: Any = None) -> Any:
        before.append(user)
        return run(self, device, function, user)

    def train() -> None:
        pair.both(partial(trained, x=batch()))
        pair.step()

    for _ in range(5):
        train()
    monkeypatch.setattr(capture.CapturePools, "run_as_first_call", note)
    checks = sum(graph["checks"] for row in seen() for graph in row["graphs"])
    for _ in range(10):
        train()
    assert sum(graph["checks"] for row in seen() for graph in row["graphs"]) > checks
    assert before == []


@pytest.mark.parametrize("needs", ["little", "much"])
def test_when_a_backward_is_called_plainly(monkeypatch: pytest.MonkeyPatch, needs: str) -> None:
    """What it adds to the memory of graphs stays there. If that is little, it is called before."""
    monkeypatch.setattr(attempts, "_LITTLE", 10 << 20 if needs == "little" else 0)
    beside: list[int] = []
    run_beside = capture.CapturePool.run_beside_graphs

    def run(self: Any, function: Any, memory: Any) -> Any:
        beside.append(1)
        return run_beside(self, function, memory)

    monkeypatch.setattr(capture.CapturePool, "run_beside_graphs", run)
    pair = Pair()
    for _ in range(6):
        pair.both(partial(trained, x=batch()))
        pair.step()
    assert len(beside) == (needs == "much")


@pytest.mark.parametrize("needs", ["little", "much"])
def test_a_gradient_that_no_call_determines(
    monkeypatch: pytest.MonkeyPatch, seen: Seen, needs: str
) -> None:
    """Further calls of the backward explain it, though the replay has overwritten what it reads."""
    monkeypatch.setattr(attempts, "_LITTLE", 10 << 20 if needs == "little" else 0)
    custom_op: Any = torch.library.custom_op
    numbers, called = itertools.count(), []

    @custom_op("autopatch_tests::steady", mutates_args=())  # type: ignore[untyped-decorator]
    def steady(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @custom_op("autopatch_tests::noisy", mutates_args=())  # type: ignore[untyped-decorator]
    def noisy(grad: torch.Tensor) -> torch.Tensor:
        called.append(1)
        made = 2 * grad
        made[:, 0] += next(numbers) / 100
        return made

    for one in (steady, noisy):
        one.register_fake(torch.empty_like)
    steady.register_autograd(lambda ctx, grad: noisy(grad), setup_context=lambda *_, **__: None)

    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.net = torch.nn.Linear(16, 16), Net()

        def forward(self, x: Any) -> Any:
            return self.net(steady(self.first(x).sin()).cos())

    model = Noisy().to(GPU)
    fast = torch.compile(model, mode=MODE)
    calls_of_steps = []
    for _ in range(7):
        x = batch()
        losses, gradients = [], []
        for function in (fast, model):
            before = len(called)
            losses.append(trained(function, x))
            calls_of_steps.append(len(called) - before)
            gradients.append([one.grad.clone() for one in model.parameters()])
            model.zero_grad()
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-4)
        # Of the first layer, those for its first result vary.
        for (name, _), one, other in zip(model.named_parameters(), *gradients):
            part = slice(name.startswith("first."), None)
            torch.testing.assert_close(one[part], other[part], rtol=1e-3, atol=1e-4)
    for one in (steady, noisy):
        one._lib._destroy()
    forward, backward = seen()
    assert counts([forward, backward]) == [(5, {WARMING: 2})] * 2
    # The one that has captured it, with the plain calls.
    assert max(calls_of_steps) > 3


@needs_gpu
@replayed.nothing("it is about calls before a graph")
def test_the_first_calls_do_not_keep_the_memory_of_graphs(seen: Seen) -> None:
    """There is never a second call of one shape, so there is never a graph."""
    pair = Pair(torch.nn.Linear(1024, 1024), dynamic=True)

    def train(rows: int) -> None:
        trained(pair.fast, torch.randn(rows, 1024, device=GPU))
        pair.step()

    # The first ones have cuBLAS allocate its workspaces, 32 MiB for each stream on an H100.
    for rows in range(4000, 4003):
        train(rows)
    before = reserved()
    for rows in range(4003, 4016):
        train(rows)
    assert not any(row["graphs"] for row in seen())
    assert reserved()[1] <= before[1]


class TestSavedValues:
    """A backward's graph overwrites what its forward has saved: it needs no other memory then."""

    @staticmethod
    def results() -> Any:
        """What the last forward has handed out."""
        found = capture.CapturePools.of_this_thread().owners.values()
        # A backward lets go of what it has written itself, too.
        gone = [one for one in found if one._lend and one._lend[1] < one.gone < inf]
        return max(gone, key=lambda one: one.gone)

    def warm(self, pair: Pair) -> None:
        for _ in range(6):
            pair.both(partial(trained, x=batch()))
            pair.step()

    def test_only_the_capture_owns_them(self) -> None:
        self.warm(Pair())
        results = self.results()
        assert len(results.places) > 3
        if not REAL:
            assert len(stand_in._free[results.memory]) > 3

    @needs_gpu
    def test_the_backward_needs_no_more_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
        needed = []
        for lean in (True, False):
            pair = Pair(
                torch.nn.Sequential(*(torch.nn.Sequential(one, torch.nn.GELU()) for one in layers))
            )
            if not lean:
                monkeypatch.setattr(passes.BackwardPass, "find_donated", lambda *_: None)
            gc.collect()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_reserved()
            for _ in range(6):
                trained(pair.fast, torch.randn(8192, 1024, device=GPU))
                pair.step()
            gc.collect()
            torch.cuda.empty_cache()
            needed.append(torch.cuda.memory_reserved() - before)
            del pair
            torch._dynamo.reset()
        # A gradient of 32 MiB goes from layer to layer.
        assert needed[0] + (32 << 20) <= needed[1]

    def test_nothing_is_put_where_later_results_may_lie(self) -> None:
        """A graph that was captured later may have the memory of what a backward returns."""

        class Used:
            for_backward = False
            gone = inf

            def result_memories(self) -> list[int]:
                return []

            def used_memories(self) -> list[int]:
                return [1]

            def only_shown_in_use(self) -> bool:
                return False

            def used_of_gone(self) -> list[int]:
                return []

            def abandoned_outputs(self) -> Used:
                return self

            def why_held(self) -> str:
                return "in use"

        self.warm(Pair())
        found = capture.CapturePools.of_this_thread().owners.values()
        lent = [(one, one._lend[1]) for one in found if one._lend]
        returned, order = max(lent, key=lambda one: one[1])
        assert returned.gone == order
        leaf = next(one for one in returned.leaves if one is not None)
        argument = borrowed_outputs.AliasedInput(leaf, returned)
        put = argument.put(torch.ones_like(leaf))
        assert put is not None
        assert torch.equal(put, torch.ones_like(leaf))
        returned.memory.lend(int(returned.gone) + 1, Used())
        assert argument.put(torch.zeros_like(leaf)) is None
        returned.memory.lent.clear()

    def test_nothing_is_put_where_earlier_results_may_lie(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What a backward returns may lie in what was donated to it, though it is its own."""
        # As where the program has called other forwards, too, when the backward was captured.
        monkeypatch.setattr(GraphMemory, "awaits_backwards", lambda *_: True)
        pair = Pair()
        self.warm(pair)
        found = capture.CapturePools.of_this_thread().owners.values()
        lent = [(one, one._lend[1]) for one in found if one._lend]
        returned, order = max(lent, key=lambda one: one[1])
        assert returned.gone == inf
        assert self.results().gone == order
        leaf = next(one for one in returned.leaves if one is not None)
        argument = borrowed_outputs.AliasedInput(leaf, returned)
        assert argument.put(torch.ones_like(leaf)) is not None
        saved = pair.fast(batch())
        assert argument.put(torch.zeros_like(leaf)) is None
        del saved
        assert argument.put(torch.zeros_like(leaf)) is not None

    def test_no_argument_overwrites_what_an_earlier_call_has_saved(self) -> None:
        """As in a recurrent net, after a step of one call, where the gradients lie elsewhere."""

        def own_gradient(side: Any, x: Any) -> Any:
            x = x.clone().requires_grad_()
            return torch.autograd.grad(fuzz.loss_of(side.call(x * 1)), x)

        def recurrent(side: Any, x: Any, calls: int) -> None:
            total: Any = 0
            for _ in range(calls):
                head, x = side.call(x)
                total += head.square().mean()
            total.backward()

        def train(side: Any, x: Any) -> None:
            fuzz.loss_of(side.call(x)).backward()

        steps: list[Any]
        steps = [train, train, train, own_gradient, partial(recurrent, calls=2), own_gradient]
        model = fuzz.Model(["break", "pair"]).to(GPU)
        with torch._functorch.config.patch(donated_buffer=False):
            sides = [
                fuzz.Side(copy.deepcopy(model), mode, True, False) for mode in (MODE, "default")
            ]
            for step in [*steps, partial(recurrent, calls=3)]:
                x = batch()
                fuzz.compare(sides, [step(side, x) for side in sides])

    def test_that_the_program_has(self, seen: Seen) -> None:
        pair = Pair()
        self.warm(pair)
        for _ in range(3):
            x = batch()
            loss = pair.fast(x).square().mean()
            node = loss.grad_fn
            while not hasattr(node, "saved_tensors"):
                node = node.next_functions[0][0]
            saved = [one for one in node.saved_tensors if one is not None]
            were = [one.clone() for one in saved]
            loss.backward()
            for one, was in zip(saved, were):
                torch.testing.assert_close(one, was, rtol=0, atol=0)
            trained(pair.other, x)
            pair.same()
            pair.step()
            del saved, one, was, node, loss
        assert seen()[1]["plain"] == {WARMING: 2, NEEDED: 3}

    def test_that_many_backwards_need(self, seen: Seen) -> None:
        """Then the graph is captured again, and overwrites nothing."""
        with torch._functorch.config.patch(donated_buffer=False):
            pair = Pair()
            self.warm(pair)
            for last in (True, False):
                for _ in range(40):
                    x = batch()
                    for function in (pair.fast, pair.other):
                        loss = function(x).square().mean()
                        loss.backward(retain_graph=True)
                        if last:
                            loss.backward()
                    pair.same()
                    pair.step()
                assert seen()[1]["dropped"] == (not last)
        backward = seen()[1]
        assert backward["plain"][NEEDED] == 40 + graph_cache.CALLS_IN_USE
        assert backward["dropped"] == 1
        assert len(backward["graphs"]) == 2

    @pytest.mark.parametrize("known", [True, False])
    def test_of_another_signature(self, seen: Seen, known: bool) -> None:
        """A graph that was captured when they were free must not run while they are in use."""
        pair = Pair(dynamic=True)
        for rows in (8, 6) if known else (8,):
            for _ in range(6):
                pair.both(partial(trained, x=batch(rows)))
                pair.step()
        for _ in range(6):
            given = batch(8), batch(6)
            for function in (pair.fast, pair.other):
                losses = [function(x).square().mean() for x in given]
                for loss in losses:
                    loss.backward()
            pair.same()
            pair.step()
        # The one that was captured first is captured anew, in memory of its own.
        assert seen()[0]["dropped"] == known

    @pytest.mark.parametrize("late", ["to_none", "to_zero", "never"])
    def test_gradients_that_live_over_the_forward(self, seen: Seen, late: str) -> None:
        pair = Pair()
        for _ in range(20):
            x = batch()
            losses = [function(x).square().mean() for function in (pair.fast, pair.other)]
            for loss, optimizer in zip(losses, pair.optimizers):
                if late != "never":
                    optimizer.zero_grad(set_to_none=late == "to_none")
                loss.backward()
                optimizer.step()
            pair.same()
        backward = seen()[1]
        assert backward["plain"] == {WARMING: 2}
        # Gradients that the program keeps for good are moved once.
        assert backward["dropped"] == (late == "to_none")

    @pytest.mark.parametrize("fails", [1, 2])
    def test_a_capture_that_fails(
        self, seen: Seen, monkeypatch: pytest.MonkeyPatch, fails: int
    ) -> None:
        """The call has its result all the same, though a replay has overwritten what it read.

        Then the graph is captured in other memory.
        """
        monkeypatch.setattr(soundness, "checks_by_default", lambda: False)
        pair = Pair()
        real = verification.ResultVerification.conclude
        failing: list[int] = []
        compared: list[int] = []

        def conclude(*args: Any) -> None:
            # It keeps no result: what is in use can't be written to.
            compared.append(len(compared))
            # The first one is the forward's.
            if 1 < len(compared) <= 1 + fails:
                failing.append(len(compared))
                raise Refused("the test said so")
            real(*args)

        for number in range(8):
            if number == 2:
                monkeypatch.setattr(verification.ResultVerification, "conclude", conclude)
            pair.both(partial(trained, x=batch()))
            pair.step()
        assert len(failing) == fails
        backward = seen()[1]
        assert [row["reason"] for row in backward["refused"]] == ["the test said so"] * (fails > 1)
        assert len(backward["graphs"]) == (fails == 1)

    def test_a_capture_that_fails_before_a_replay(
        self, seen: Seen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It puts nothing back: what it has let go of may be another thread's then."""
        pair, calls = Pair(), []
        check, restore = attempts.CaptureAttempt._check_result, host_backup.HostBackup.restore

        def fail(self: Any, result: Any) -> None:
            if not self._donated or "fails" in calls:
                check(self, result)
                return
            calls.append("fails")
            raise CaptureBusy("the test said so")

        def note(self: Any) -> None:
            calls.append("restores")
            restore(self)

        monkeypatch.setattr(attempts.CaptureAttempt, "_check_result", fail)
        monkeypatch.setattr(host_backup.HostBackup, "restore", note)
        for _ in range(7):
            pair.both(partial(trained, x=batch()))
            pair.step()
        # Of the forward's plain call and the backward's, and the same of the next try.
        at = calls.index("fails")
        assert calls[:at].count("restores") == 2
        assert calls[at + 1 :].count("restores") < 2
        assert seen()[1]["replays"] > 2


class Counting(torch.autograd.Function):
    """Its backward counts its calls in a tensor that the forward was given."""

    @staticmethod
    def forward(ctx: Any, x: Any, count: Any) -> Any:
        ctx.save_for_backward(x.sin(), count)
        return x.exp() + count.detach()[0] * 0

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        sine, count = ctx.saved_tensors
        count.add_(1)
        return grad * sine.cos(), None


@pytest.mark.parametrize("made", ["by the program", "by another region"])
def test_a_backward_that_changes_what_its_forward_was_given(seen: Seen, made: str) -> None:
    """The forward's graph would save a copy of it, and change that."""
    layer = torch.nn.Linear(8, 8).to(GPU)
    first = torch.compile(lambda x: (layer(x).tanh(), x.detach() * 2), mode=MODE)
    second = torch.compile(lambda x, count: Counting.apply(x, count).square(), mode=MODE)
    own = torch.zeros(4, 8, device=GPU)
    for number in range(8):
        x = torch.randn(4, 8, device=GPU)
        hidden, doubled = first(x)
        count, before = (doubled, 2 * x) if made == "by another region" else (own, number)
        second(hidden, count).sum().backward()
        torch.testing.assert_close(count - before, torch.ones_like(count))
        del hidden, doubled, count
    refused = [row for row in seen() if training.WRITES in row["plain"]]
    assert len(refused) == 2


def test_what_was_given_and_is_saved_is_not_backed_up(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No compiled backward overwrites it: only its forward's own values."""
    real = host_backup.HostBackup.restore
    sizes: list[int] = []

    def restore(self: Any) -> None:
        sizes.extend(one.nbytes for one in self._kept.values())
        real(self)

    def plain(x: Any) -> Any:
        return x.sin() * x

    monkeypatch.setattr(host_backup.HostBackup, "restore", restore)
    pair = Pair(torch.nn.Sequential(Net(), torch.nn.Linear(8, 37)))
    other = torch.compile(plain, mode=MODE)
    for _ in range(6):
        x = batch()
        loss = trained(lambda x: other(pair.fast(x)), x)
        torch.testing.assert_close(loss, trained(lambda x: plain(pair.other(x)), x))
        pair.same()
        pair.step()
    assert sum(row["replays"] for row in seen()) > 12
    # The other function's argument, 8 rows of 37, is the model's result.
    assert sizes
    assert 8 * 37 * 4 not in sizes


class TestHostBackup:
    @replayed.nothing("it copies tensors alone")
    def test_it_restores(self) -> None:
        whole = torch.arange(12.0, device=GPU)
        parts = [whole[2:8].view(2, 3), whole[4:], torch.ones(3, dtype=torch.int64, device=GPU)]
        were = [one.clone() for one in parts]
        leaves = [*parts, 5, torch.zeros(2, device=GPU)]
        kept = host_backup.HostBackup(leaves, [2, 0, 1])
        for one in (whole, parts[2]):
            one.fill_(7)
        again = kept.copy_leaves()
        for one, was, part in zip(again, were, parts):
            assert torch.equal(one, was)
            assert layout.storage_key(one) != layout.storage_key(part)
        # Those that shared their memory share the new one.
        assert layout.storage_key(again[0]) == layout.storage_key(again[1])
        assert again[3] == 5
        kept.restore()
        for part, was in zip(parts, were):
            assert torch.equal(part, was)

    @pytest.mark.parametrize(("ranks", "fits"), [("", True), ("2", True), ("3", False)])
    @replayed.nothing("it asks for room alone")
    def test_ranks_share_the_room(
        self, monkeypatch: pytest.MonkeyPatch, ranks: str, fits: bool
    ) -> None:
        monkeypatch.setattr(host_backup, "_free_host_bytes", lambda: 4000)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        one = torch.zeros(1000, dtype=torch.uint8, device=GPU)
        assert host_backup.fits_on_host([one, one[5:]]) is fits

    @replayed.nothing("it asks for room alone")
    def test_a_container_has_a_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = host_backup._free_host_bytes()
        assert found > 1 << 20
        for name, text in (("max", "5000000"), ("used", "4000000"), ("none", "max")):
            (tmp_path / name).write_text(text + "\n")
        used = str(tmp_path / "used")
        monkeypatch.setattr(host_backup, "_GROUPS", ((str(tmp_path / "none"), used),))
        assert abs(host_backup._free_host_bytes() - found) < 1 << 32
        monkeypatch.setattr(host_backup, "_GROUPS", ((str(tmp_path / "max"), used),))
        assert host_backup._free_host_bytes() == 1000000

    def test_without_room_nothing_is_verified(
        self, seen: Seen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host_backup, "_free_host_bytes", lambda: 0)
        pair = Pair()
        for _ in range(6):
            pair.both(partial(trained, x=batch()))
            pair.step()
        forward, backward = seen()
        assert (forward["replays"], backward["replays"]) == (4, 4)
        assert forward["graphs"][0]["verified"]
        assert not backward["graphs"][0]["verified"]


class TestFirstBackwards:
    """Those before the forward has a graph."""

    @pytest.mark.skipif(REAL, reason="it replaces a part of the stand-in")
    @replayed.nothing("it is about calls before a graph")
    def test_free_what_they_have_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        saved: list[StorageWeakRef] = []
        freed: list[int] = []
        call = training.CompiledBackward.__call__

        def called(self: Any, inputs: list[Any]) -> Any:
            saved[:] = [StorageWeakRef(one.untyped_storage()) for one in inputs]
            result = call(self, inputs)
            saved.clear()
            return result

        def run(self: Any, function: Callable[[], Any], memory: Any, user: Any) -> Any:
            result = function()
            if saved:
                freed.append(sum(one.expired() for one in saved))
            return result

        monkeypatch.setattr(training.CompiledBackward, "__call__", called)
        monkeypatch.setattr(stand_in.StandIn, "run_as_first_call", run)
        pair = Pair()
        for _ in range(2):
            trained(pair.fast, batch())
            pair.step()
        # The second one is observed.
        assert len(freed) == 2
        assert min(freed) >= 3

    @replayed.nothing("it is about calls before a graph")
    def test_have_no_graph_if_the_forward_has_none(
        self, seen: Seen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> Any:
            raise RuntimeError("no capture works")

        monkeypatch.setattr(capture.CapturePool, "capture", refuse)
        pair = Pair()
        for _ in range(6):
            pair.both(partial(trained, x=batch()))
            pair.step()
        assert [row["graphs"] for row in seen()] == [[], []]


class Attending(torch.nn.Module):
    """Attention with dropout, for which a backward has to know what its forward has drawn."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.dropout = dropout
        self.qkv = torch.nn.Linear(64, 192)
        self.out = torch.nn.Linear(64, 8)

    def forward(self, x: Any) -> Any:
        q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.out(y.transpose(1, 2).flatten(2))


def test_saved_values_that_share_their_memory(seen: Seen) -> None:
    """What attention saves are three parts of one result, each a tensor of its own."""
    pair = Pair(Attending(dropout=0.0))
    for _ in range(7):
        pair.both(partial(trained, x=torch.randn(2, 32, 64, device=GPU)))
        pair.step()
    assert counts(seen()) == [(5, {WARMING: 2})] * 2


class TestNumbersOnTheHost:
    """Attention gives the seed of its dropout on the host, and on the device in a capture."""

    @staticmethod
    def steps(model: Any, make: Callable[[], Any]) -> None:
        def twice(function: Any, x: Any) -> Any:
            loss = function(x).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
            return loss.detach()

        def two(function: Any, x: Any, y: Any) -> Any:
            # The second forward is a plain call, and so is its backward.
            losses = [function(one).square().mean() for one in (x, y)]
            for loss in losses:
                loss.backward()
            return torch.stack(losses).detach()

        # Else torch forbids a second backward.
        with torch._functorch.config.patch(donated_buffer=False):
            pair = Pair(model)
            for _ in range(6):
                pair.both(partial(trained, x=make()))
                pair.step()
            for _ in range(3):
                # The first of two backwards finds that saved values are still needed.
                pair.both(partial(twice, x=make()))
                pair.both(partial(two, x=make(), y=make()))
                pair.step()

    @needs_gpu
    def test_attention(self, seen: Seen) -> None:
        self.steps(Attending(), lambda: torch.randn(2, 32, 64, device=GPU))
        forward, backward = seen()
        assert not forward["refused"]
        assert not backward["refused"]
        # All but two, and the second one of two forwards.
        assert forward["replays"] == forward["calls"] - 2 - 1
        assert backward["replays"] >= 4 + 3 + 3
        assert forward["graphs"][0]["verified"]

    @needs_gpu
    def test_a_backward_that_comes_later(self) -> None:
        """When it is first called, its forward has a graph."""
        pair = Pair(Attending())
        x = torch.randn(2, 32, 64, device=GPU)
        for _ in range(4):
            pair.both(lambda function: function(x).detach())
        for _ in range(5):
            pair.both(partial(trained, x=x))
            pair.step()

    @pytest.fixture
    def drawing(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[torch.nn.Module]]:
        """A module with such a number. On a CPU, "meta" is taken for the host."""
        capturing = []
        capture_ = stand_in.StandIn.capture

        def captured(self: Any, function: Any, *args: Any) -> Any:
            def within(leaves: list[Any]) -> Any:
                capturing.append(True)
                try:
                    return function(leaves)
                finally:
                    capturing.pop()

            return capture_(self, within, *args)

        custom_op: Any = torch.library.custom_op

        @custom_op("autopatch_tests::draw", mutates_args=())  # type: ignore[untyped-decorator]
        def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            where = "cpu" if capturing else "meta"
            return 2 * x, torch.zeros((), dtype=torch.int64, device=where)

        @custom_op("autopatch_tests::drawn", mutates_args=())  # type: ignore[untyped-decorator]
        def drawn(grad: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
            # Torch's kernel would read an address of the device, and the process would die.
            assert capturing
            return 2 * grad

        # Torch calls it for a number on "meta", too.
        def elsewhere(grad: Any, seed: Any) -> Any:
            assert not capturing
            return 2 * grad

        drawn.register_fake(elsewhere)
        draw.register_fake(lambda x: (torch.empty_like(x), x.new_empty((), dtype=torch.int64)))
        draw.register_autograd(
            lambda ctx, grad, _: drawn(grad, *ctx.saved_tensors),
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output[1]),
        )
        monkeypatch.setattr(stand_in.StandIn, "capture", captured)
        # It has no content that a replay could be compared with.
        monkeypatch.setattr(host_backup, "fits_on_host", lambda *_: False)

        class Drawing(torch.nn.Module):
            def __init__(self, shows: bool = False) -> None:
                super().__init__()
                self.net, self.shows = Net(), shows

            def forward(self, x: Any) -> Any:
                y, seed = draw(self.net(x))
                return (y, seed) if self.shows else y.sin()

        yield Drawing
        for one in (draw, drawn):
            one._lib._destroy()

    @pytest.mark.skipif(REAL, reason="it replaces a part of the stand-in")
    def test_any_such_number(self, drawing: Any, seen: Seen) -> None:
        self.steps(drawing(), batch)
        forward, backward = seen()
        assert not forward["refused"]
        assert not backward["refused"]
        assert forward["replays"] == forward["calls"] - 2 - 1
        assert backward["replays"] >= 4 + 3 + 3

    def checkpoints(self, model: Any, make: Callable[[], Any], seen: Seen) -> None:
        def saved(function: Any, x: Any) -> Any:
            return trained(lambda x: checkpoint(function, x, use_reentrant=False), x)

        pair = Pair(model)
        for step in (trained, saved, trained, saved):
            for _ in range(4):
                pair.both(partial(step, x=make()))
                pair.step()
        forward, backward = seen()
        assert forward["plain"] == {WARMING: 2, passes.HOOKED: 16}
        assert not backward["refused"]
        # The call that is captured would be the recomputation of the one that is observed.
        torch._dynamo.reset()
        pair = Pair(copy.deepcopy(model))
        for step in (trained, saved, saved, trained):
            pair.both(partial(step, x=make()))
            pair.step()
        forward, backward = seen()[2:]
        assert forward["plain"] == {WARMING: 2, passes.HOOKED: 3}
        assert (forward["replays"], backward["refused"]) == (1, [])

    has_hooks = pytest.mark.skipif(
        borrowed_outputs.TOP_HOOKS is None,
        reason="this torch does not tell whether there are hooks",
    )

    @needs_gpu
    @has_hooks
    def test_checkpoints_of_attention(self, seen: Seen) -> None:
        self.checkpoints(Attending(), lambda: torch.randn(2, 32, 64, device=GPU), seen)

    @has_hooks
    @pytest.mark.skipif(REAL, reason="it replaces a part of the stand-in")
    def test_checkpoints(self, drawing: Any, seen: Seen) -> None:
        self.checkpoints(drawing(), batch, seen)

    @pytest.mark.skipif(REAL, reason="it replaces a part of the stand-in")
    @replayed.nothing("it is about a refusal")
    def test_the_program_gets_none_that_has_moved(self, drawing: Any, seen: Seen) -> None:
        fast = torch.compile(drawing(shows=True), mode=MODE)
        for _ in range(5):
            y, seed = fast(batch())
            assert seed.device.type == "meta"
            y.sum().backward()
        reason = "a number of the result is not on the device, except in a capture"
        assert [one["reason"] for one in seen()[0]["refused"]] == [reason]


def test_two_regions_save_the_same_argument(seen: Seen) -> None:
    """Each backward finds its own forward, by its weights."""
    one, two = (torch.nn.Linear(16, 8).to(GPU) for _ in range(2))
    functions = [lambda x: one(x).sin(), lambda x: two(x).cos()]
    fast = [torch.compile(function, mode=MODE) for function in functions]
    for _ in range(6):
        x = batch()
        got = []
        for pair in (fast, functions):
            one.zero_grad()
            two.zero_grad()
            sum(function(x).sum() for function in pair).backward()
            got.append([one.weight.grad, two.weight.grad])
        torch.testing.assert_close(*got)
    assert [row["plain"] for row in seen()] == [{WARMING: 2}] * 4


def test_views_of_gradients(seen: Seen) -> None:
    """A gradient and its view stay one, also when the next gradient is added."""
    pair = Pair()
    for _ in range(6):
        pair.both(partial(trained, x=batch()))
        pair.step()
    pair.both(partial(trained, x=batch()))
    views = [one.grad.view(-1) for one in pair.model.parameters()]
    pair.both(partial(trained, x=batch()))
    for one, view in zip(pair.model.parameters(), views):
        torch.testing.assert_close(one.grad.view(-1), view, rtol=0, atol=0)
    assert [row["plain"] for row in seen()] == [
        {WARMING: 2, HELD: 1},
        {WARMING: 2, PLAIN_FORWARD: 1},
    ]


@pytest.mark.usefixtures("all_inside")
def test_views_of_results(seen: Seen) -> None:
    weight = torch.nn.Parameter(torch.randn(16, device=GPU))
    fast = torch.compile(lambda x: x * 2 + weight, mode=MODE)
    for _ in range(4):
        fast(batch()).sum().backward()
    result = fast(batch())
    view = result.detach()
    fast(batch())
    view.zero_()
    assert not result.any()
    assert seen()[0]["plain"][HELD] == 1


def test_gradients_that_autograd_has_saved(seen: Seen) -> None:
    """They may be dlpack's as well, so they are not moved, and nothing overwrites them."""
    pair = Pair()
    for _ in range(6):
        pair.both(partial(trained, x=batch()))
        pair.step()

    def learned_rate(function: Any) -> Any:
        rate = torch.ones((), device=GPU, requires_grad=True)
        trained(function, x)
        model = pair.model if function is pair.fast else pair.other
        outer = (rate * model.two.weight.grad).square().sum()
        torch.autograd.grad(function(2 * x).square().mean(), list(model.parameters()))
        outer.backward()
        return rate.grad

    for _ in range(3):
        x = batch()
        pair.both(learned_rate)
        pair.step()
    assert counts(seen()) == [
        (9, {WARMING: 2, HELD: 1}),
        (9, {WARMING: 2, PLAIN_FORWARD: 1}),
    ]


@pytest.mark.usefixtures("all_inside")
def test_memory_that_the_program_frees(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrowed_outputs, "_SMALL", 1 << 20)
    pair = Pair(torch.nn.Linear(16, 8))
    for number in range(9):
        x = batch()
        result = pair.fast(x)
        result.square().mean().backward()
        trained(pair.other, x)
        pair.same()
        if number == 5:
            result.untyped_storage().resize_(0)
            # Of a large one this is an error, as with Inductor's own graphs.
            pair.model.weight.grad.untyped_storage().resize_(0)
            pair.model.weight.grad = pair.other.weight.grad = None
        del result
        pair.step()
    forward, backward = seen()
    assert (forward["plain"], forward["dropped"]) == ({WARMING: 2}, 1)
    assert backward["plain"] == {WARMING: 2}


@pytest.mark.usefixtures("all_inside")
def test_an_argument_that_is_put_where_a_region_writes(seen: Seen) -> None:
    """Nothing overwrites it before its backward: neither that region nor an earlier graph."""
    torch.manual_seed(0)
    first, second = (torch.nn.Linear(16, 16).to(GPU) for _ in range(2))

    def waved(x: Any) -> Any:
        # It saves something of its own. A region that saves an argument alone has its backward
        # without a graph.
        return second(x).sin()

    fast = [torch.compile(one, mode=MODE, dynamic=True) for one in (first, waved)]
    for rows in (4, 6):
        for _ in range(8):
            fast[1](fast[0](batch(rows))).square().sum().backward()

    def replays() -> int:
        rows = [row for row in seen() if row["name"].startswith("backward of waved")]
        return sum(row["replays"] for row in rows)

    for rows in (4, 6):
        fast[0](batch(4))  # It looks what of later graphs is in use.
        x, before, grads = batch(rows), replays(), []
        for call, other in ((fast[1], fast[0]), (waved, first)):
            second.zero_grad()
            loss = call(x.clone().requires_grad_() * 1).square().sum()
            other(batch(rows))
            loss.backward()
            grads.append(second.weight.grad.clone())
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)
        assert replays() == before + 1


@pytest.mark.usefixtures("all_inside")
def test_a_gradient_that_becomes_an_input_s(seen: Seen) -> None:
    """The input's ``.grad`` is the gradient itself, and the next one is added to it."""
    pair = Pair()
    x = batch().requires_grad_()
    for _ in range(9):
        both = []
        for function in (pair.fast, pair.other):
            trained(function, x)
            trained(function, x)
            both.append(x.grad)
            x.grad = None
        torch.testing.assert_close(*both)
        pair.same()
        pair.step()
    forward, backward = seen()
    # From then on it is a copy.
    assert forward["plain"][HELD] == backward["plain"][PLAIN_FORWARD] == 1
    assert backward["replays"] > 11


def test_graphs_of_a_model_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its gradients lie in memory that others use, too.
    monkeypatch.setattr(passes.BackwardPass, "find_donated", lambda *_: None)
    pools = capture.CapturePools.of_this_thread()
    # Other tests may have left something.
    lent, owners = set(pools.gradients.lent), set(pools.owners)
    pair = Pair()
    for _ in range(5):
        pair.both(partial(trained, x=batch()))
    assert set(pools.gradients.lent) - lent
    del pair
    torch._dynamo.reset()
    gc.collect()
    assert set(pools.gradients.lent) <= lent
    assert set(pools.owners) <= owners


@pytest.mark.parametrize("seed", [4, 129])
def test_random_programs(seed: int) -> None:
    found = fuzz.one(seed)
    assert "wrong" not in found
    assert found["replays"] > 0


@replayed.nothing("it is about a refusal")
def test_inference_alone(seen: Seen) -> None:
    """``graphs`` leaves a training step as it is."""
    pair = Pair(torch.nn.Linear(16, 8))
    pair.fast = torch.compile(pair.model, mode="max-autotune")
    for _ in range(4):
        x = batch()
        pair.both(partial(trained, x=x))
        pair.step()
    (row,) = seen()
    assert (row["replays"], len(row["refused"])) == (0, 1)
    assert "gradients are needed" in row["refused"][0]["reason"]


@replayed.nothing("it is about a refusal")
def test_a_forward_that_nothing_is_known_of(monkeypatch: pytest.MonkeyPatch, seen: Seen) -> None:
    """Where torch has no such place, the region runs as it is, and the report says so."""
    monkeypatch.setattr(training, "_MODULE", "torch._inductor.not_there")
    pair = Pair()
    for _ in range(3):
        x = batch()
        pair.both(partial(trained, x=x))
        pair.step()
    (row,) = seen()
    ((reason, count),) = row["plain"].items()
    assert (row["replays"], count) == (0, 3)
    assert "no place at which" in reason


@pytest.mark.parametrize(
    "name", [name for name in trials.NAMES if "training" in trials.load_trial(name).ABOUT]
)
def test_trials_of_prove(name: str, seen: Seen) -> None:
    """What ``prove`` trains is trained in graphs, and right."""
    trial = trials.load_trial(name)
    for module in getattr(trial, "NEEDS", ()):
        pytest.importorskip(module)
    sides = []
    for compiled in (False, True):
        torch.manual_seed(0)
        sides.append(trial.make_program(bench.TrialBench(torch, GPU.type, MODE, compiled)))
    eager, call = sides
    for number in range(4 * max(4, getattr(trial, "TURN", 1))):
        expected = [one.clone() for one in eager(number)]
        assert bench.difference_to_eager(torch, expected, call(number)) <= 1, number
    forward, backward = (
        [row for row in seen() if row["name"].startswith("backward") == back]
        for back in (False, True)
    )
    assert sum(row["replays"] for row in forward) >= 8
    assert sum(row["replays"] for row in backward) >= 4
