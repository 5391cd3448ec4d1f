# mypy: allow-subclassing-any
"""Results that a program does not keep are handed out without a copy, and none is overwritten."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import replayed  # noqa: E402
import stand_in  # noqa: E402

from rocm_autopatch.graphs import graphed, record  # noqa: E402

REAL = torch.cuda.is_available()
GPU = torch.device("cuda", torch.cuda.current_device()) if REAL else torch.device("cpu")
replaying = replayed.replaying


@pytest.fixture(scope="module", autouse=True)
def device() -> None:
    if not REAL:
        stand_in.install()


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def x_of(number: int) -> Any:
    return torch.full((2, 4), float(number), device=GPU)


def place(result: Any) -> int:
    address: int = result.data_ptr()
    return address


def call_and_drop(function: Callable[[Any], Any], numbers: range, wanted: Any) -> set[int]:
    """Call with each number and keep nothing; where the results were."""
    places = set()
    for number in numbers:
        result = function(x_of(number))
        assert torch.equal(result, wanted(x_of(number)))
        places.add(place(result))
        del result
    return places


def double(x: Any) -> Any:
    return x * 2


def test_what_nobody_keeps_is_not_copied() -> None:
    function = graphed(double)
    call_and_drop(function, range(3), double)
    assert len(call_and_drop(function, range(3, 9), double)) == 1
    assert (function.row["replays"], function.row["dropped"]) == (7, 0)


@pytest.mark.parametrize("guards", ["all", "none"])
def test_what_is_kept_from_the_beginning_is_copied(guards: str) -> None:
    function = graphed(double, guards=guards)
    kept = [function(x_of(number)) for number in range(8)]
    assert all(torch.equal(one, x_of(number) * 2) for number, one in enumerate(kept))
    # The calls before the capture have shown it.
    assert (function.row["replays"], function.row["dropped"]) == (6, 0)


def _itself(result: Any) -> Any:
    return result


def _view(result: Any) -> Any:
    return result[1:]


def _by_python(result: Any) -> Any:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(result))[1:]


def _by_autograd(result: Any) -> Any:
    with torch.enable_grad():
        weight = torch.ones(4, device=GPU, requires_grad=True)
        return result * weight


class _MemoryAlone:
    """The memory of a result, of which Python's own object alone is kept."""

    requires_grad = False

    def __init__(self, result: Any) -> None:
        self._memory, self._like = result.untyped_storage(), torch.empty_like(result)

    def detach(self) -> Any:
        return self._like.set_(self._memory, 0, self._like.size(), self._like.stride())

    def data_ptr(self) -> int:
        return place(self._memory)


@pytest.mark.parametrize("keep", [_itself, _view, _by_python, _by_autograd, _MemoryAlone])
def test_what_is_kept_later_stays(keep: Callable[[Any], Any]) -> None:
    function = graphed(double)
    call_and_drop(function, range(6), double)
    kept = [keep(function(x_of(number))) for number in range(6, 12)]
    for number, one in enumerate(kept, 6):
        assert torch.equal(one.detach(), keep(x_of(number) * 2).detach())
        if one.requires_grad:
            with torch.enable_grad():
                weight = one.grad_fn.next_functions[1][0].variable
                (gradient,) = torch.autograd.grad(one.sum(), weight)
            assert torch.equal(gradient, x_of(number).sum(0) * 2)
    # One capture more, and no call without a graph.
    assert (function.row["replays"], function.row["dropped"]) == (10, 1)
    places = {place(function(x_of(number))) for number in range(3)}
    assert not places.intersection(map(place, kept))


def test_a_result_that_is_the_next_argument() -> None:
    function = graphed(lambda x: x * 2 + 1)
    x, wanted = x_of(1), x_of(1)
    for _ in range(9):
        x, wanted = function(x), wanted * 2 + 1
        assert torch.equal(x, wanted)
    assert function.row["replays"] == 7


def _in_the_mode(function: Any) -> Any:
    """Compiled functions of a thread share the memory of their graphs."""
    if not REAL:
        stand_in.graphs_in_modes()
    return torch.compile(function, mode="reduce-overhead", dynamic=False)


def _sums() -> tuple[int, int]:
    rows = record.render_rows()
    return sum(row["replays"] for row in rows), sum(row["dropped"] for row in rows)


def test_two_functions_that_pass_their_results_to_each_other() -> None:
    functions = [_in_the_mode(lambda x: x * 2), _in_the_mode(lambda x: x - 3)]
    x, wanted = x_of(1), x_of(1)
    for number in range(24):
        x = functions[number % 2](x)
        wanted = wanted * 2 if number % 2 == 0 else wanted - 3
        assert torch.equal(x, wanted)
    # Each changes once at most.
    replays, dropped = _sums()
    assert replays == 20
    assert 0 < dropped <= 2


def test_results_of_one_graph_over_the_replays_of_others() -> None:
    functions = [_in_the_mode(lambda x, n=number: x + n) for number in range(4)]
    dropped_until = []
    for turn in range(16):
        order = functions if turn % 2 else functions[::-1]
        kept = [(one, one(x_of(turn))) for one in order]
        for one, result in kept:
            assert torch.equal(result, x_of(turn) + functions.index(one))
        del kept, one, result
        dropped_until.append(_sums()[1])
    assert _sums()[0] == 56
    # Then each of them has changed, and nothing is captured any more.
    assert 0 < dropped_until[7] == dropped_until[15]


def test_a_caller_that_changes_the_result() -> None:
    function = graphed(lambda x: (x * 2, x + 1))
    for number in range(8):
        first, second = function(x_of(number))
        assert torch.equal(first, x_of(number) * 2)
        assert torch.equal(second, x_of(number) + 1)
        first.zero_()
        second.add_(7)
        assert (first._version, second._version) == (1, 1)
        del first, second
    assert function.row["dropped"] == 0


def test_a_caller_that_frees_the_memory() -> None:
    function = graphed(double)
    for number in range(9):
        result = function(x_of(number))
        assert torch.equal(result, x_of(number) * 2)
        result.untyped_storage().resize_(0)
        del result
    assert (function.row["replays"], function.row["dropped"]) == (7, 1)


@pytest.mark.parametrize(
    "make",
    [graphed, functools.partial(graphed, guards="none"), _in_the_mode],
    ids=["all", "none", "mode"],
)
def test_inference_mode(make: Callable[[Any], Any]) -> None:
    function = make(double)
    for number in range(16):
        inference = number % 4 < 2
        with torch.inference_mode(inference):
            result = function(x_of(number))
            assert result.is_inference() == inference
            assert torch.equal(result, x_of(number) * 2)
            del result


def test_results_that_share_memory() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return y, y[1:], y.t()

    wrapped = graphed(function)
    for number in range(8):
        y, part, turned = wrapped(x_of(number))
        part.zero_()
        assert torch.equal(y[0], x_of(number)[0] * 2)
        assert not y[1].any()
        assert torch.equal(turned, y.t())
        del y, part, turned
    assert wrapped.row["replays"] == 6


def lends(function: Any) -> bool:
    """Whether the one graph of a function hands out its own memory."""
    (signature,) = function._graphs.signatures.values()
    outputs = signature.state.outputs
    return place(outputs.leaves[0]) == place(outputs.take([]))


def test_collectives_that_come_later() -> None:
    if torch.distributed.is_initialized():
        pytest.skip("this process has a process group")
    function = graphed(double, guards="none")
    call_and_drop(function, range(6), double)
    assert lends(function)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        call_and_drop(function, range(3), double)
        assert not lends(function)
    finally:
        torch.distributed.destroy_process_group()


def test_another_stream_that_reads() -> None:
    function = graphed(double, guards="none")
    call_and_drop(function, range(6), double)
    result = function(x_of(1))
    stream = torch.cuda.Stream() if REAL else object()
    for tensor in (x_of(1), result):
        # The CPU has no streams.
        with contextlib.suppress(NotImplementedError, TypeError, RuntimeError):
            tensor.record_stream(stream)
    (signature,) = function._graphs.signatures.values()
    pool = signature.state.observed.pool
    found = [*pool._readers.values()] if REAL else pool.readers
    assert found.count(stream) == 1


def test_another_process_that_reads() -> None:
    function = graphed(double, guards="none")
    call_and_drop(function, range(6), double)
    result = function(x_of(1))
    before = place(result)
    with contextlib.suppress(NotImplementedError, TypeError, RuntimeError):
        result.untyped_storage()._share_cuda_()
    del result
    # This memory is never written again.
    assert before not in call_and_drop(function, range(6), double)
    assert function.row["dropped"] == 1
