# mypy: allow-subclassing-any
"""A training step goes on replaying, whatever of it the program keeps, and from whenever on.

python -m pytest tests/graphs
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import replayed

from rocm_autopatch import startup
from rocm_autopatch.graphs import (
    borrowed_outputs,
    buffers,
    capture,
    graph_cache,
    passes,
    record,
)

pytestmark = pytest.mark.skipif(
    startup.release(torch.__version__) < (2, 6), reason="torch has training graphs from 2.6 on"
)
REAL = torch.cuda.is_available()
GPU = torch.device("cuda", torch.cuda.current_device()) if REAL else torch.device("cpu")
replaying, in_modes = replayed.replaying, replayed.in_modes
STEPS = 20


def batch(rows: int = 8) -> Any:
    return torch.randn(rows, 16, device=GPU)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.linear(x).tanh()


def layers(count: int = 1) -> list[Any]:
    """Layers that are compiled, and share their code."""
    made = [Layer().to(GPU) for _ in range(count)]
    for one in made:
        one.compile(mode="reduce-overhead")
    return made


def replays() -> int:
    return sum(row["replays"] for row in record.render_rows())


def replays_at_last(step: Callable[[int], None]) -> int:
    """How often the second half of so many steps replayed."""
    for number in range(STEPS):
        step(number)
    before = replays()
    for number in range(STEPS, 2 * STEPS):
        step(number)
    return replays() - before


def handed_out() -> list[borrowed_outputs.BorrowedOutputs]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is borrowed_outputs.BorrowedOutputs]


@pytest.mark.parametrize("of", ["input", "weight"])
@pytest.mark.parametrize("where", ["memory of its own", "the forward's memory", "the backward's"])
def test_a_gradient_that_is_kept_for_good(
    monkeypatch: pytest.MonkeyPatch, of: str, where: str
) -> None:
    if where == "the forward's memory":
        monkeypatch.setattr(borrowed_outputs, "_SMALL", 0)
    if where == "the backward's":
        monkeypatch.setattr(passes.BackwardPass, "find_donated", lambda *_: None)
    (layer,) = layers()
    kept = []

    def step(number: int) -> None:
        x = batch().requires_grad_()
        layer(x).square().sum().backward()
        if number > 8 and number % 3 == 0:
            one = x.grad if of == "input" else layer.linear.weight.grad
            kept.append((one, one.clone()))
        layer.zero_grad()

    assert replays_at_last(step) == 2 * STEPS
    assert all(torch.equal(*both) for both in kept)


@pytest.mark.parametrize("count", [2, 5])
def test_a_gradient_between_regions_that_a_hook_keeps(count: int) -> None:
    stack, kept = layers(count), []

    def step(number: int) -> None:
        x = batch()
        for one, layer in enumerate(stack):
            x = layer(x)
            if number == 9 and one == 0:
                x.register_hook(lambda grad: kept.append((grad, grad.clone())))
        x.square().sum().backward()
        for layer in stack:
            layer.zero_grad()

    assert replays_at_last(step) == 2 * count * STEPS
    assert all(torch.equal(*both) for both in kept)


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (torch.nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Any) -> Any:
        return self.one(x).tanh() * 2, self.two(x).sin() + 1


def test_different_results_begin_to_be_kept() -> None:
    """What one graph has shown holds for all later ones, and those that are gone keep nothing."""
    model, kept = Two().to(GPU), []
    before = len(handed_out())
    model.compile(mode="reduce-overhead")

    def step(number: int) -> None:
        first, second = model(batch())
        (first.square().sum() + second.square().sum()).backward()
        if number == 6:
            kept.append((first.detach(), first.detach().clone()))
        if number > 6 and number % 3 == 0:
            kept.append((second.detach(), second.detach().clone()))
        model.zero_grad()

    assert replays_at_last(step) == 2 * STEPS
    assert all(torch.equal(*both) for both in kept)
    # Two of graphs that are gone, one of which somebody has, and those of the last ones.
    assert len(handed_out()) - before <= 4


def test_a_loss_that_is_kept_keeps_no_saved_value() -> None:
    layer = Layer().to(GPU)
    compiled = torch.compile(lambda x: layer(x).square().mean(), mode="reduce-overhead")
    kept: list[Any] = []

    def step(number: int) -> None:
        loss = compiled(batch(512))
        loss.backward()
        if number == 9:
            kept.append(loss.detach())
        layer.zero_grad()

    def saved() -> int:
        found = [leaf for one in handed_out() for leaf in one.leaves]
        return sum(leaf.nbytes for leaf in found if isinstance(leaf, torch.Tensor))

    for number in range(9):
        step(number)
    before = saved()
    assert replays_at_last(step) == 2 * STEPS
    assert saved() <= before + 64


@pytest.mark.parametrize("of", ["result", "input"])
def test_results_that_are_resized_in_each_step(of: str) -> None:
    (layer,) = layers()

    def step(number: int) -> None:
        x = batch().requires_grad_()
        result = layer(x)
        result.square().sum().backward()
        one = result.detach() if of == "result" else x.grad
        one.untyped_storage().resize_(0)
        layer.zero_grad()

    assert replays_at_last(step) == 2 * STEPS


def test_saved_values_that_are_resized_in_each_step() -> None:
    """As hooks do that offload them. No graph could copy them, so none is captured each time."""
    layer = Layer().to(GPU)
    compiled = torch.compile(lambda x: layer(x).sin(), mode="reduce-overhead")
    saved: list[Any] = []

    def packed(one: Any) -> Any:
        if not isinstance(one, torch.nn.Parameter):
            saved.append(one)
        return one.clone()

    def step(number: int) -> None:
        with torch.autograd.graph.saved_tensors_hooks(packed, lambda one: one):
            result = compiled(batch())
        for one in saved:
            if one.data_ptr() != result.data_ptr():
                one.untyped_storage().resize_(0)
        saved.clear()
        result.sum().backward()
        layer.zero_grad()

    for number in range(2 * STEPS):
        step(number)
    assert sum(row["dropped"] for row in record.render_rows()) <= 4


def test_a_result_that_is_resized_before_its_backward() -> None:
    """Where the backward is captured then, the next forward would write to what is freed."""
    weight = torch.nn.Parameter(torch.randn(16, 16, device=GPU))

    def run(x: Any) -> Any:
        return (x @ weight).tanh(), x * 3

    compiled = torch.compile(run, mode="reduce-overhead")
    for _ in range(8):
        x, found = batch(), []
        for function in (compiled, run):
            result, other = function(x)
            found.append(other.clone())
            other.untyped_storage().resize_(0)
            result.square().sum().backward()
            found.append(weight.grad)
            weight.grad = None
            del result, other
        torch.testing.assert_close(found[:2], found[2:], rtol=1e-3, atol=1e-4)
        del found
    rows = record.render_rows()
    assert sum(row["replays"] for row in rows) >= 8, rows


def test_the_memory_alone_of_a_saved_value_is_kept() -> None:
    """By hooks, over another forward."""
    (layer,), other = layers(), Layer().to(GPU)
    other.load_state_dict(layer.state_dict())

    def packed(one: Any) -> Any:
        where = one.size(), one.stride(), one.storage_offset(), one.dtype
        return one.untyped_storage(), *where

    def unpacked(all_: Any) -> Any:
        memory, size, stride, offset, dtype = all_
        return torch.empty(0, dtype=dtype, device=GPU).set_(memory, offset, size, stride)

    for _ in range(STEPS):
        both = [batch(), batch()]
        for model in (layer, other):
            with torch.autograd.graph.saved_tensors_hooks(packed, unpacked):
                results = [model(x) for x in both]
            for result in results:
                result.sum().backward()
            del results, result
        torch.testing.assert_close(layer.linear.weight.grad, other.linear.weight.grad)
        layer.zero_grad()
        other.zero_grad()


def test_layers_that_are_called_later_than_others() -> None:
    """What is given to the backward of the others is in use when theirs are captured."""
    stack = layers(5)

    def step(number: int) -> None:
        x = batch().requires_grad_()
        for layer in stack[: 3 if number < 8 else 5]:
            x = layer(x)
        x.square().mean().backward()
        for layer in stack:
            layer.zero_grad()

    assert replays_at_last(step) == 2 * 5 * STEPS


def test_another_thread_lets_go_of_it_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was in use is not any more when it is asked what to do: the call is a replay."""
    (layer,) = layers()
    for _ in range(5):
        layer(batch()).square().sum().backward()
    found, said = graph_cache.GraphCache._find_obstacle, [buffers.SAVED]

    def obstacle(self: Any, *args: Any) -> Any:
        return said.pop() if said else found(self, *args)

    monkeypatch.setattr(graph_cache.GraphCache, "_find_obstacle", obstacle)
    before = replays()
    layer(batch()).square().sum().backward()
    assert (replays() - before, said) == (2, [])


@pytest.mark.parametrize("small", [1 << 20, 0])
def test_another_stream_reads_a_result(monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    """Also where its memory is the backward's afterwards, as that of a large one is."""
    if not REAL:
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None, raising=False)
    monkeypatch.setattr(borrowed_outputs, "_SMALL", small)
    (layer,) = layers()
    for _ in range(6):
        layer(batch()).square().sum().backward()
    result = layer(batch())
    pool: Any = capture.CapturePools.of_this_thread().of(GPU)
    stream = torch.cuda.Stream() if REAL else object()
    result.record_stream(stream)
    assert stream in ([*pool._readers.values()] if REAL else pool.readers)
