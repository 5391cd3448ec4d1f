# mypy: allow-subclassing-any
"""The forwards of a step save in one memory, and nothing of it is wrong or needed for longer.

python -m pytest tests/graphs
"""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import replayed
from torch.multiprocessing.reductions import StorageWeakRef

from rocm_autopatch import startup
from rocm_autopatch.graphs import (
    attempts,
    borrowed_outputs,
    buffers,
    capture,
    graph_cache,
    host_backup,
    layout,
    passes,
    record,
)
from rocm_autopatch.graphs.memory import GraphMemory
from rocm_autopatch.graphs.states import CapturedState

pytestmark = [
    pytest.mark.skipif(
        startup.release(torch.__version__) < (2, 6), reason="torch has training graphs from 2.6 on"
    ),
    pytest.mark.filterwarnings("default"),
]
REAL = torch.cuda.is_available()
GPU = torch.device("cuda", torch.cuda.current_device()) if REAL else torch.device("cpu")
replaying, in_modes = replayed.replaying, replayed.in_modes
ONES = torch.ones(8, 16, device=GPU)
WARMING = "the first calls of a signature run without a graph"


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backward may have the memory of large results. Here most of them are small."""
    monkeypatch.setattr(borrowed_outputs, "_SMALL", 0)


class Layer(torch.nn.Module):
    """Layers of different widths have code of their own."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.into, self.out = torch.nn.Linear(16, wide), torch.nn.Linear(wide, 16)

    def forward(self, x: Any) -> Any:
        return x + self.out(self.into(x).sin()).tanh()


class Squashed(torch.nn.Linear):
    """Its own backward and the next layer read its result.

    Torch up to 2.13 does not compile a module of torch.nn itself with ``Module.compile``.
    """

    def __init__(self, _: int) -> None:
        super().__init__(16, 16)

    def forward(self, x: Any) -> Any:
        return super().forward(x).tanh()


class Layers:
    """Compiled layers, and equal ones in eager mode."""

    def __init__(
        self, count: int = 4, same: bool = False, make: Callable[[int], Any] = Layer
    ) -> None:
        self.plain = [make(20 if same else 20 + one).to(GPU) for one in range(count)]
        self.fast = copy.deepcopy(self.plain)
        for one in self.fast:
            one.compile(mode="reduce-overhead")

    def check(self, run: Callable[[list[Any]], Any]) -> None:
        """Call *run* with the layers of each kind: the results and all gradients are the same."""
        results = [run(each) for each in (self.fast, self.plain)]
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
        for one, other in zip(self.fast, self.plain):
            for (name, weight), wanted in zip(one.named_parameters(), other.parameters()):
                torch.testing.assert_close(weight.grad, wanted.grad, rtol=1e-3, atol=1e-4, msg=name)

    def end_step(self) -> None:
        for one in (*self.fast, *self.plain):
            one.zero_grad()


def batch(rows: int = 8) -> Any:
    return torch.randn(rows, 16, device=GPU)


def through(layers: list[Any], x: Any) -> Any:
    for one in layers:
        x = one(x)
    return x


def trained(layers: list[Any], x: Any) -> Any:
    loss = through(layers, x).square().mean()
    loss.backward()
    return loss.detach()


def captured() -> list[Any]:
    """The states with a graph, of all caches of this test."""
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) is graph_cache.GraphCache]
    # Another test may have left some.
    rows = [*map(id, record._rows)]
    states = [state for one in found if id(one.row) in rows for state in one.states()]
    return [one for one in states if isinstance(one, CapturedState)]


def counts() -> tuple[int, int]:
    """Replays, and plain calls that are none of the first ones."""
    rows = [record.finished_row(row) for row in record._rows]
    plain = [row["plain"] for row in rows if row["plain"]]
    others = [number for one in plain for why, number in one.items() if why != WARMING]
    return sum(row["replays"] for row in rows), sum(others)


class TestOneMemory:
    def test_forwards_and_backwards_of_a_step(self) -> None:
        """All of them are in one memory, and each backward has what its forward has saved."""
        layers = Layers()
        for _ in range(6):
            layers.check(partial(trained, x=batch()))
            layers.end_step()
        states = captured()
        assert len(states) == 8
        assert len({id(one.memory) for one in states}) == 1
        assert sum(one.donated is not None for one in states) == 4
        assert counts() == (4 * 8, 0)

    def test_a_result_that_is_held_over_the_backward(self) -> None:
        """It is not what backwards overwrite, so they are captured at once, and overwrite that."""
        layers, held = Layers(), []

        def step(each: list[Any], x: Any) -> Any:
            held.append(through(each, x))
            held[-1].square().mean().backward()
            return held[-1].detach().clone()

        for _ in range(6):
            layers.check(partial(step, x=batch()))
            layers.end_step()
            held.clear()
        assert sum(one.donated is not None for one in captured()) == 4
        assert counts() == (4 * 8, 0)

    def test_another_batch(self) -> None:
        """Graphs of another shape are in the memory of the first ones."""
        layers = Layers(3)
        for number in range(12):
            layers.check(partial(trained, x=batch(8 if number % 2 else 12)))
            layers.end_step()
        states = captured()
        assert len(states) == 12
        assert len({id(one.memory) for one in states}) == 1
        assert counts()[1] == 0

    def test_gradients_add_up(self) -> None:
        layers = Layers(3)
        for number in range(15):
            layers.check(partial(trained, x=batch()))
            if number % 3 == 2:
                layers.end_step()
        before = counts()
        for number in range(6):
            layers.check(partial(trained, x=batch()))
            if number % 3 == 2:
                layers.end_step()
        assert counts()[0] - before[0] == 6 * 6

    def test_layers_that_share_their_code(self) -> None:
        layers = Layers(5, same=True)
        for _ in range(7):
            layers.check(partial(trained, x=batch()))
            layers.end_step()
        states = captured()
        assert len({id(one.memory) for one in states}) == 1
        assert sum(one.donated is not None for one in states) == 5
        before = counts()
        layers.check(partial(trained, x=batch()))
        assert counts()[0] - before[0] == 10

    @replayed.nothing("it is about calls before a graph")
    def test_all_first_calls_lie_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also those of a backward whose forward is not known: another one was called since."""
        inside: list[str] = []
        run = capture.CapturePools.run_as_first_call

        def count(self: Any, device: Any, function: Any, user: Any = None) -> Any:
            inside.append(str(user))
            return run(self, device, function, user)

        monkeypatch.setattr(capture.CapturePools, "run_as_first_call", count)
        layers = Layers(5, same=True)
        layers.check(partial(trained, x=batch()))
        rows = [row["plain"] for row in record.render_rows()]
        assert any("its forward ran without a graph" in plain for plain in rows)
        assert len(inside) == 10

    def test_each_result_is_asked_for_once_in_a_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each backward asks for what the one before has read, and the first replay for others."""
        layers, asked = Layers(6), []
        for _ in range(6):
            layers.check(partial(trained, x=batch()))
            layers.end_step()
        used_memories = borrowed_outputs.BorrowedOutputs.used_memories

        def count(self: borrowed_outputs.BorrowedOutputs) -> list[int]:
            asked.append(self)
            return used_memories(self)

        monkeypatch.setattr(borrowed_outputs.BorrowedOutputs, "used_memories", count)
        layers.check(partial(trained, x=batch()))
        assert len(asked) == len(set(map(id, asked))) == 12

    def test_what_a_backward_has_read_is_not_asked_for_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The backward itself has asked: nobody else had it, and it is overwritten."""
        layers, asked = Layers(4), Counter[int]()
        for _ in range(6):
            layers.check(partial(trained, x=batch()))
            layers.end_step()
        use_count = layout.use_count

        def count(memory: int) -> int:
            asked[memory] += 1
            return use_count(memory)

        monkeypatch.setattr(borrowed_outputs, "use_count", count)
        layers.check(partial(trained, x=batch()))
        read = [set(one.donated._expected) for one in captured() if one.donated is not None]
        assert {asked[memory] for memories in read for memory in memories} == {1}


def test_an_argument_lies_where_a_backward_has_read() -> None:
    """It is put there, and saved there, until its own backward: so that is in use again."""
    layers = Layers(2, make=Squashed)
    for _ in range(6):
        x = batch().requires_grad_()
        layers.check(partial(trained, x=x))
        layers.end_step()
    # Its gradient is a graph's result, and may lie there.
    del x
    before = counts()
    first, second = (batch().requires_grad_() for _ in range(2))

    def run_apart(each: list[Any]) -> Any:
        waiting = each[1](first).square().mean()
        loss = trained(each[:1], second)
        waiting.backward()
        return loss

    layers.check(run_apart)
    # The second layer's are replays. The first one's would overwrite what the second has saved.
    assert (counts()[0] - before[0], counts()[1] - before[1]) == (2, 2)


def saved_by(result: Any, weights: Any) -> list[Any]:
    """What compiled functions have saved for a result, without weights, each with what has it."""
    found, nodes, known = [], [result.grad_fn], {id(one) for one in weights}
    while nodes:
        node = nodes.pop()
        if "CompiledFunction" in node.name():
            pairs = zip(node.saved_tensors, node._raw_saved_tensors)
            found += [pair for pair in pairs if id(pair[0]) not in known]
        nodes += [one for one, _ in node.next_functions if one is not None]
    return found


@pytest.mark.skipif(
    borrowed_outputs.TOP_HOOKS is None, reason="this torch does not tell whether there are hooks"
)
class TestSavedValues:
    """A forward saves the same tensors in each step, if nobody else has one, and others if not."""

    def step(
        self,
        layers: Layers,
        touch: Callable[[Any, Any], Any] = lambda one, has: None,
        pack: Callable[[Any], Any] | None = None,
    ) -> list[weakref.ref[Any]]:
        """Make a step. Returns what layers have saved, but arguments. *pack* is for a hook."""
        x = batch()
        weights = [weight for one in layers.fast for weight in one.parameters()]
        seen: list[weakref.ref[Any]] = []
        hooks = torch.autograd.graph.saved_tensors_hooks

        def packed(one: Any) -> Any:
            assert pack is not None
            return one if one is x or any(one is weight for weight in weights) else pack(one)

        def run(each: list[Any]) -> Any:
            if each is not layers.fast:
                return trained(each, x)
            with hooks(packed, lambda one: one) if pack else nullcontext():
                result = through(each, x)
            for one, has in [] if pack else saved_by(result, [*weights, x]):
                seen.append(weakref.ref(one))
                touch(one, has)
                del one, has
            loss = result.square().mean()
            loss.backward()
            return loss.detach()

        layers.check(run)
        layers.end_step()
        return seen

    def ready(self) -> Layers:
        layers = Layers(2)
        for _ in range(5):
            self.step(layers)
        return layers

    def check_replays(self, layers: Layers) -> None:
        replays, plain = counts()
        for _ in range(2):
            self.step(layers)
        assert (counts()[0] - replays, counts()[1] - plain) == (2 * 4, 0)

    def test_they_are_the_same(self) -> None:
        layers = self.ready()
        first, second = (self.step(layers) for _ in range(2))
        same = [one() is other() for one, other in zip(first, second) if one() is not None]
        # A layer's result is no such value.
        assert len(same) >= 4
        assert all(same)
        assert counts()[1] == 0

    def test_one_that_is_kept(self) -> None:
        """It is not overwritten. Once nobody keeps it, there are replays again."""
        layers, kept = self.ready(), list[Any]()
        self.step(layers, lambda one, has: kept.append(one))
        before = [one.clone() for one in kept]
        plain = counts()[1]
        # No backward overwrites them, and no forward.
        assert plain == 2
        self.step(layers)
        torch.testing.assert_close(kept, before, rtol=0, atol=0)
        assert counts()[1] == plain + 4
        kept.clear()
        for _ in range(2):
            self.step(layers)
        self.check_replays(layers)

    def test_hooks_get_others(self) -> None:
        """They may know a tensor again, and move it when it would be gone, by a weak reference."""
        layers, known, seen = self.ready(), weakref.WeakValueDictionary[int, Any](), list[bool]()

        def pack(one: Any) -> Any:
            seen.append(hasattr(one, "seen"))
            one.seen = True
            known[len(known)] = one
            return one

        for _ in range(4):
            self.step(layers, pack=pack)
            for one in [*known.values()]:
                one.data = one.data.clone()
        assert len(seen) >= 4 * 4
        assert not any(seen)
        assert counts()[1] == 0
        self.check_replays(layers)

    def test_other_tensors_at_the_same_places(self) -> None:
        """A checkpoint saves others, and so do hooks. That may change from step to step."""
        layers = self.ready()

        def detached(one: Any, when: int) -> Any:
            return one.detach() if when == 2 or one.shape[-1] == 20 else one

        for number in (0, 1, 2, 0, 2, 1, 0):
            self.step(layers, pack=partial(detached, when=number) if number else None)
        assert counts()[1] == 0

    def test_copies_in_the_step_of_the_capture(self) -> None:
        """The call that a graph is compared with may write to them, as to all that was saved."""
        layers = Layers(1)
        for number in range(6):
            x, given = batch(), [0]

            def unpack(one: Any, number: int, given: list[int]) -> Any:
                given[0] += 1
                return one.clone() if number == 2 and given[0] > 2 else one

            def run(each: list[Any], x: Any, unpack: Any) -> Any:
                with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpack):
                    result = through(each, x)
                loss = result.square().mean()
                loss.backward()
                return loss.detach()

            layers.check(partial(run, x=x, unpack=partial(unpack, number=number, given=given)))
            layers.end_step()
        assert counts()[0] > 0

    @pytest.mark.parametrize("steps", [1, 4])
    @pytest.mark.parametrize("detached", [False, True])
    def test_one_gets_other_memory(self, steps: int, detached: bool) -> None:
        """The next steps save others, in replays. If each step moves them, forwards are replays."""
        layers = self.ready()

        def moved(one: Any, has: Any) -> None:
            there = one.detach()
            one.data = one.data.clone()
            if detached:
                # The backward finds this one where it belongs.
                has.register_hooks(lambda _: there, lambda one: one)

        for _ in range(steps):
            self.step(layers, moved)
        dropped = sum(record.finished_row(row)["dropped"] for row in record._rows)
        assert dropped <= 2 * 2
        for _ in range(4):
            self.step(layers)
        self.check_replays(layers)

    def test_all_of_a_region_get_other_memory(self) -> None:
        """The backward before has read all that it saves, so nobody could have moved it then."""
        weight = torch.nn.Parameter(torch.randn(16, 16, device=GPU))

        def run(x: Any) -> Any:
            return ((x * 2).tanh() @ weight).sin()

        fast = torch.compile(run, mode="reduce-overhead")
        for number in range(12):
            x, found = batch(), []
            for function in (fast, run):
                result = function(x)
                for one, _ in saved_by(result, [weight]) if number == 7 else ():
                    one.data = one.data.clone()
                    del one, _
                result.square().mean().backward()
                found.append((result.detach(), weight.grad))
                weight.grad = None
                del result
            torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
            del found
        # Without a graph is the backward after the move.
        assert counts() == (2 * 10 - 1, 1)

    def test_what_an_argument_gets(self) -> None:
        """It has a history, which would keep all that is saved."""
        weight = torch.nn.Parameter(torch.randn(16, 16, device=GPU))

        def run(x: Any) -> Any:
            made = (x * 2).tanh() @ weight
            x.copy_(made)
            return made

        fast = torch.compile(run, mode="reduce-overhead")
        for number in range(10):
            x, found = batch().requires_grad_(), []
            for function in (fast, run):
                given = x * 1
                loss = (function(given).mul_(2) + given).square().mean()
                # The last ones have no backward.
                wanted = torch.autograd.grad(loss, (x, weight)) if number < 6 else ()
                found.append((loss.detach(), *wanted))
                del given, loss
            torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
        assert counts() == (4 + 4 + 4, 0)


class TestEmptyResults:
    """A result without an element has memory that anything may have."""

    @pytest.mark.parametrize("resizes", [False, True])
    def test_an_empty_result(self, resizes: bool) -> None:
        weight = torch.nn.Parameter(torch.randn(16, 16, device=GPU))

        def run(x: Any) -> Any:
            return (x @ weight).tanh(), x[:0] * weight[:1]

        fast = torch.compile(run, mode="reduce-overhead")
        for _ in range(12):
            x = batch()
            found = []
            for function in (fast, run):
                result, empty = function(x)
                if resizes:
                    empty.untyped_storage().resize_(64)
                result.sum().backward()
                found.append(weight.grad)
                weight.grad = None
            torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
        assert counts() == (2 * 10, 0)


class TestSharedCode:
    """Layers that share their code are called in turn, and each call is expected after another."""

    def test_an_expected_layer_has_no_graph_any_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(passes, "_LIMIT", 2)
        layers = Layers(2, same=True)
        for one in layers.fast:
            one.compile(mode="reduce-overhead", dynamic=True)

        def train(*numbers: int, rows: int = 8) -> None:
            x = batch(rows).requires_grad_()
            layers.check(lambda each: trained([each[number] for number in numbers], x))
            layers.end_step()

        for _ in range(6):
            train(1, 0)
        # The first one's graph goes, and is still expected after the second one.
        for rows in (8, 8, 4, 4, 4, 4):
            train(1, rows=rows)
        assert sum(record.finished_row(row)["dropped"] for row in record._rows) >= 2
        before, known = counts(), graph_cache.GraphCache._is_known
        # A call whose signature is not known would look for it for ever.
        looks = iter(range(100))
        monkeypatch.setattr(
            graph_cache.GraphCache, "_is_known", lambda *args: [next(looks), known(*args)][1]
        )
        for _ in range(4):
            train(1, 0)
        assert counts()[0] > before[0]


class TestSteps:
    """Which forwards are those of one step."""

    def test_a_layer_that_comes_later(self) -> None:
        """Its forward is captured in another step, and may be called anywhere in a later one."""
        layers = Layers()
        for _ in range(5):
            x = batch()
            for each in (layers.fast, layers.plain):
                trained(each[:3], x)
            layers.end_step()
        for _ in range(5):
            layers.check(partial(trained, x=batch()))
            layers.end_step()
        before = counts()

        def turned(each: list[Any], x: Any) -> Any:
            return trained([each[3], *each[:3]], x)

        memories = {id(one.memory) for one in captured()}
        assert len(memories) == 2
        for number in range(8):
            x = batch()
            layers.check(partial(turned, x=x))
            layers.end_step()
            before = counts() if number == 4 else before
        assert counts()[0] - before[0] == 3 * 8

    @replayed.nothing("it has no graphs")
    def test_when_a_step_is_over(self) -> None:
        class Forward:
            pass

        pools = capture.CapturePools()
        first = pools.training_memory()
        pools.end_step()
        assert pools.training_memory() is first, "nothing was captured there"
        one, two = Forward(), Forward()
        assert pools.add_forward(first, one)
        assert pools.add_forward(first, two)
        pools.end_step(GraphMemory())
        assert pools.training_memory() is first
        assert not pools.add_forward(GraphMemory(), Forward())
        del two
        second = pools.training_memory()
        assert second is not first, "a graph of it is gone"
        assert not pools.add_forward(first, one)
        assert pools.add_forward(second, one)
        pools.end_step(second)
        third = pools.training_memory()
        assert third is not second, "a forward is called again"
        assert pools.add_forward(third, one)
        pools.end_step()
        assert pools.training_memory() is not third, "a backward was captured"

    def test_a_backward_is_captured(self) -> None:
        """Before any forward is called again, the next capture belongs to another step."""
        layers = Layers(2)
        for _ in range(3):
            layers.check(partial(trained, x=batch()))
            layers.end_step()
        (memory,) = {one.memory for one in captured()}
        assert capture.CapturePools.of_this_thread().training_memory() is not memory

    def test_forwards_without_a_backward(self) -> None:
        """The next step begins when one of them is called again."""
        layers = Layers(3)
        for _ in range(5):
            for each in (layers.fast, layers.plain):
                through(each[:2], batch())
        for _ in range(5):
            for each in (layers.fast, layers.plain):
                trained(each[2:], ONES)
            layers.end_step()
        states = captured()
        assert len(states) == 4
        assert len({id(one.memory) for one in states}) == 2


class TestOrders:
    """Programs that do not call in the order in which their graphs were captured."""

    @pytest.mark.parametrize("period", [2, 3, 5])
    def test_orders_in_turn(self, period: int) -> None:
        layers = Layers(3)

        def step(each: list[Any], x: Any, turned: bool) -> Any:
            return trained(each[::-1] if turned else each, x)

        for number in range(20 * period + 20):
            x, turned = batch().requires_grad_(), number > 5 and number % period == 0
            layers.check(partial(step, x=x, turned=turned))
            layers.end_step()
        # Its gradient is a graph's result.
        del x
        before = counts()
        for number in range(2 * period):
            layers.check(partial(step, x=batch().requires_grad_(), turned=number % period == 0))
            layers.end_step()
        assert counts()[0] - before[0] == 2 * period * 6

    def test_a_model_that_is_called_while_another_one_waits(self) -> None:
        layers = Layers(4)

        def step(each: list[Any], x: Any, nested: bool) -> Any:
            if nested:
                waiting = through(each[2:], x)
                loss = trained(each[:2], x)
                waiting.square().mean().backward()
                return loss
            return trained(each[:2], x) + trained(each[2:], x)

        for number in range(16):
            layers.check(
                partial(step, x=batch().requires_grad_(), nested=number > 5 and number % 2 == 0)
            )
            layers.end_step()
        before = counts()
        for number in range(8):
            layers.check(partial(step, x=batch().requires_grad_(), nested=number % 2 == 0))
            layers.end_step()
        assert counts()[0] - before[0] == 8 * 8

    def test_one_or_two_batches_before_the_backwards(self) -> None:
        layers = Layers(2)

        def step(each: list[Any], xs: list[Any]) -> Any:
            losses = [through(each, x).square().mean() for x in xs]
            for loss in losses:
                loss.backward()
            return torch.stack(losses).detach()

        for number in range(20):
            layers.check(partial(step, xs=[batch() for _ in range(1 + number % 2)]))
            layers.end_step()
        before = counts()
        for number in range(8):
            layers.check(partial(step, xs=[batch() for _ in range(1 + number % 2)]))
            layers.end_step()
        assert counts()[0] - before[0] == 12 * 4

    def test_an_order_that_comes_once(self) -> None:
        """It costs plain calls, and no graph."""
        layers = Layers(3)

        def step(each: list[Any], x: Any, turned: bool) -> Any:
            return trained(each[::-1] if turned else each, x)

        for number in range(40):
            layers.check(partial(step, x=batch().requires_grad_(), turned=number == 20))
            layers.end_step()
        rows = [record.finished_row(row) for row in record._rows]
        assert sum(row["dropped"] for row in rows) == 0
        assert len({id(one.memory) for one in captured()}) == 1


def test_backwards_of_two_functions_with_the_same_argument() -> None:
    """Each is that of the forward with which it was compiled, also if both have saved the same."""
    weight = torch.randn(16, 16, device=GPU, requires_grad=True)
    fast = torch.compile(lambda x, w: (x @ w).sin(), mode="reduce-overhead")
    other = torch.compile(lambda x, w: (x @ w).cos() * 2, mode="reduce-overhead")
    for _ in range(8):
        x = batch().requires_grad_()
        one, two = fast(x, weight), other(x, weight)
        grads = torch.autograd.grad((one * two).sum(), (x, weight))
        made = (x @ weight).sin() * (x @ weight).cos() * 2
        torch.testing.assert_close(
            grads, torch.autograd.grad(made.sum(), (x, weight)), rtol=1e-3, atol=1e-3
        )
        del one, two, made, grads
    assert counts() == (6 * 4, 0)


def test_a_result_that_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backward writes to it, so it is not kept on the host for the plain call."""
    kept: list[set[int]] = []
    place = 0

    def backup(leaves: list[Any], indices: set[int]) -> Any:
        kept.append({leaves[index].data_ptr() for index in indices})
        return host_backup.HostBackup(leaves, indices)

    monkeypatch.setattr(attempts, "HostBackup", backup)
    weight = torch.randn(16, 16, device=GPU, requires_grad=True)
    fast = torch.compile(lambda x, w: (x @ w).sigmoid().sin(), mode="reduce-overhead")
    other = torch.compile(lambda x, w: (x @ w).sigmoid(), mode="reduce-overhead")
    for _ in range(6):
        x = batch()
        saved, shown = fast(x, weight), other(x, weight)
        place = shown.data_ptr()
        (grad,) = torch.autograd.grad((saved * shown).sum(), weight)
        made = (x @ weight).sigmoid()
        (wanted,) = torch.autograd.grad((made.sin() * made).sum(), weight)
        torch.testing.assert_close(grad, wanted, rtol=1e-3, atol=1e-3)
        del saved, shown, made, grad, wanted
    assert counts() == (4 * 4, 0)
    # They have saved copies of their argument, too, and one of them a value for its backward alone.
    assert sorted(map(len, filter(None, kept))) == [1, 2]
    assert place not in set().union(*kept)


@pytest.mark.parametrize("kind", ["copied to a result", "a part of a result"])
def test_a_hook_that_gives_a_result(kind: str) -> None:
    """A backward may write to it, because the hook gives it for a value that is saved alone."""
    copies = kind == "copied to a result"
    weights = [torch.randn(16, 16, device=GPU, requires_grad=True) for _ in range(2)]

    def both(x: Any, w: Any, v: Any) -> Any:
        value = x @ w
        return value.sin(), x @ v if copies else torch.cat([value, x @ v])

    fast = torch.compile(both, mode="reduce-overhead")
    others: list[Any] = []

    def unpack(one: Any) -> Any:
        if not others or one.shape != ONES.shape or one.data_ptr() == x.data_ptr():
            return one
        return others[0].copy_(one) if copies else others[0][:8]

    for number in range(8):
        x, grads = batch(), []
        for function in (fast, both):
            others.clear()
            with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpack):
                result, other = function(x, *weights)
            if number >= 2 and function is fast:
                others.append(other.detach())
            loss = result.square().mean() + other.sum() * 0.1
            grads.append(torch.autograd.grad(loss, weights))
            del result, other, loss
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)
    assert counts()[0] > 0


@pytest.mark.parametrize("since", [0, 2])
def test_a_hook_that_gives_a_saved_result(since: int) -> None:
    """Two saved values are in the memory of one then, and a backward may write to one of them."""
    weight = torch.randn(16, 16, device=GPU, requires_grad=True)

    def both(x: Any, w: Any) -> Any:
        value = x @ w
        return value.sigmoid(), value.sin()

    functions = [torch.compile(both, mode=mode) for mode in ("reduce-overhead", "default")]
    given: list[Any] = []

    def unpack(one: Any) -> Any:
        is_other = one.shape == ONES.shape and one.data_ptr() != x.data_ptr()
        if not given or not is_other or one.data_ptr() == given[0].data_ptr():
            return one
        return given[0].copy_(one)

    for number in range(8):
        x, grads = batch(), []
        for function in functions:
            given.clear()
            with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpack):
                result, other = function(x, weight)
            if number >= since:
                given.append(result.detach())
            loss = result.square().mean() + other.square().sum()
            grads.append(torch.autograd.grad(loss, weight)[0])
            del result, other, loss
        torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)


def test_a_result_whose_memory_is_saved_is_changed_in_place() -> None:
    """It is no view, as without graphs: autograd lets nobody change a view of a function's."""
    weights = [torch.randn(16, 16, device=GPU, requires_grad=True) for _ in range(2)]

    def both(x: Any, w: Any, v: Any) -> Any:
        # What is saved of it is its transpose.
        value = torch.nn.functional.dropout((x @ w).sigmoid(), 0.3)
        return value, (value @ v).sigmoid()

    fast, plain = (torch.compile(both, mode=mode) for mode in ("reduce-overhead", "default"))
    for number in range(9):
        x, found = batch(), []
        for function in (fast, plain):
            torch.manual_seed(number)
            results = function(x, *weights)
            views = [one._is_view() for one in results]
            if number % 3 == 2:
                with torch.no_grad():
                    results[0].mul_(1)
            loss = sum(one.square().mean() for one in results)
            found.append((views, torch.autograd.grad(loss, weights)))
            del results, loss
        torch.testing.assert_close(*[grads for _, grads in found], rtol=1e-3, atol=1e-3)
        assert found[0][0] == found[1][0] == [False, False]
    assert counts()[0] > 0


def test_kept_results_of_one_memory_without_gradients() -> None:
    """They are no views, as without graphs: one made in no_grad() gets no gradient in place."""
    weight = torch.randn(16, 16, device=GPU, requires_grad=True)

    def three(x: Any) -> Any:
        value = (x @ weight).sigmoid()
        return value, value.view(-1), value.sin() @ weight

    fast, plain = (torch.compile(three, mode=mode) for mode in ("reduce-overhead", "default"))
    kept = []
    for number in range(8):
        x, found = batch(), []
        for function in (fast, plain):
            with torch.no_grad():
                results = function(x)
            found.append([one._is_view() for one in results])
            if number >= 2:
                results[0].add_(weight.sum())
            kept.append(results)
        assert found[0] == found[1]
        for one, other in zip(*kept[-2:]):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    assert counts()[0] > 0


def test_a_backward_of_what_has_no_graphs() -> None:
    """It has saved what a function with graphs has saved, and is compiled in another mode."""
    weight = torch.randn(16, 16, device=GPU, requires_grad=True)
    fast = torch.compile(lambda x, w: (x @ w).sin(), mode="reduce-overhead")
    plain = torch.compile(lambda x, w: (x @ w).cos() * 2)
    for _ in range(8):
        x = batch().requires_grad_()
        one, two = fast(x, weight), plain(x, weight)
        grads = torch.autograd.grad((one * two).sum(), (x, weight))
        made = (x @ weight).sin() * (x @ weight).cos() * 2
        wanted = torch.autograd.grad(made.sum(), (x, weight))
        torch.testing.assert_close(grads, wanted, rtol=1e-3, atol=1e-3)
        del one, two, made, grads
    assert counts() == (6 * 2, 0)


def test_a_model_that_is_gone_keeps_nothing_but_what_is_held() -> None:
    """Another one has its graphs in the same memory, and would keep what was saved last."""
    layers = Layers(2)

    def both(each: list[Any]) -> Any:
        loss = sum(one(ONES).square().mean() for one in each)
        loss.backward()
        return loss.detach()

    for _ in range(4):
        layers.check(both)
        layers.end_step()
    (one,) = {id(state.memory): state.memory for state in captured()}.values()
    held = through(layers.fast[:1], batch()).detach()
    mine = min((state for state in captured() if state.outputs.for_backward), key=_order)
    saved = [
        StorageWeakRef(leaf.untyped_storage())
        for leaf in mine.outputs.leaves
        if leaf is not None and leaf.untyped_storage()._cdata != held.untyped_storage()._cdata
    ]
    del mine, layers.fast[0], layers.plain[0]
    torch._dynamo.reset()
    gc.collect()
    assert saved
    assert all(reference.expired() for reference in saved)
    assert sum(len(results.used_memories()) for results in one.lent.values()) == 1
    assert bool((held == held).all())


def test_a_model_that_goes_while_another_one_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection comes when results are lent, and nobody has them yet. They are not forgotten."""
    layers = Layers(2)
    # With it goes the code that Dynamo has compiled.
    layers.fast[1] = torch.fx.symbolic_trace(layers.plain[1])
    layers.fast[1].compile(mode="reduce-overhead")

    def both(each: list[Any], xs: list[Any]) -> Any:
        # The results of one are in use at the call of the next one, which may be the same.
        results = [one(x) for one, x in zip(each, xs)]
        loss = torch.stack([one.square().mean() for one in results]).sum()
        loss.backward()
        return loss.detach()

    for _ in range(5):
        layers.check(partial(both, xs=[batch(), batch()]))
        layers.end_step()
    assert len({id(one.memory) for one in captured()}) == 1
    del layers.fast[1], layers.plain[1]
    gc.collect()
    gc.disable()
    take = borrowed_outputs.BorrowedOutputs.take
    caches: list[list[Any]] = []

    def take_after_a_collection(self: Any, leaves: Any) -> Any:
        if not caches:
            gc.collect()
            caches.append([one for one in gc.get_objects() if type(one) is graph_cache.GraphCache])
        return take(self, leaves)

    monkeypatch.setattr(borrowed_outputs.BorrowedOutputs, "take", take_after_a_collection)
    try:
        layers.check(lambda each: both([each[0], each[0]], [ONES, 2 * ONES]))
    finally:
        gc.enable()
    if sum(bool(one.states()) for one in caches[0]) != 2:
        pytest.skip("this torch keeps the code of the model that is gone")


def test_a_collection_while_results_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may find the graph gone, and what looks at the results goes on."""
    layers = Layers(2)
    for _ in range(4):
        layers.check(partial(trained, x=batch()))
        layers.end_step()
    held = through(layers.fast, batch()).detach()
    (outputs,) = (one.outputs for one in captured() if one.outputs.used_memories())
    assert len(outputs.used_memories()) < len(outputs.result_memories())
    count, calls = layout.use_count, []

    def counting(memory: int) -> int:
        calls.append(memory)
        if len(calls) == 2:
            outputs.abandoned_outputs()
        return count(memory)

    monkeypatch.setattr(borrowed_outputs, "use_count", counting)
    assert outputs.why_held() == buffers.SAVED
    assert outputs.result_memories() == outputs.used_memories()
    assert held is not None


def _order(state: Any) -> int:
    return int(state.order)


class Results:
    """Results of a graph: which memories are in use, and which of them others may overwrite."""

    def __init__(self) -> None:
        self.gone: float = inf
        self.for_backward = True
        self.used: set[int] = set()
        self.let_go: set[int] = set()

    def used_memories(self) -> list[int]:
        return [*self.used]

    def used_of_gone(self) -> list[int]:
        return [*(self.used & self.let_go)]

    def result_memories(self) -> list[int]:
        return [1, 2]

    def only_shown_in_use(self) -> bool:
        return True

    def abandoned_outputs(self) -> Results:
        return self

    def why_held(self) -> str | None:
        return buffers.SAVED if self.used else None


@replayed.nothing("it has no graphs")
def test_what_is_in_the_way() -> None:
    """The same as if all results were asked at each replay."""
    chosen = random.Random(3)
    held = free = 0
    for _ in range(300):
        memory, results = GraphMemory(), dict[int, Results]()
        for _ in range(60):
            action, number = chosen.randrange(6), chosen.choice([*results, -1])
            one = results.get(number)
            if action == 0:
                results[memory.order()] = Results()
            elif action == 4:
                memory.sweep()
            elif one is None:
                continue
            elif action == 1 and one.gone == inf:
                # A backward is captured, and may overwrite some of what a forward has saved.
                one.let_go, one.gone = {1}, memory.order()
                memory.note_overwritten(number, one)
                results[memory.last_order] = Results()
            elif action == 2:
                one.used = {1, 2}
                memory.lend(number, one)
            elif action == 3:
                one.used.discard(chosen.choice([1, 2]))
            elif action == 5:
                order, but = number + chosen.randrange(2), chosen.choice([None, *results.values()])
                # What is owned can't be in the memory of later graphs.
                asks_later = but is None or but.gone < inf
                wanted = any(
                    other.used_memories() if at >= order else other.used_of_gone()
                    for at, other in results.items()
                    if other is not but and (asks_later if at >= order else other.gone < order)
                )
                assert bool(memory.busy(order, but)) == wanted
                held, free = held + wanted, free + (not wanted)
    assert min(held, free) > 500
