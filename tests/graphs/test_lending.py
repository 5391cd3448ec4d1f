# mypy: allow-subclassing-any
"""Results that a program does not keep are handed out without a copy, and none is overwritten."""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import replayed  # noqa: E402
import stand_in  # noqa: E402

from rocm_autopatch.graphs import calls, graph_cache, graphed, readers, record  # noqa: E402

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
    places, others = set(), []
    for number in numbers:
        result = function(x_of(number))
        assert torch.equal(result, wanted(x_of(number)))
        places.add(place(result))
        del result
        # What a copy has left would be the next one's place.
        others += [x_of(number) for _ in range(8)]
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


@pytest.mark.parametrize("ours", [True, False])
def test_what_is_kept_of_the_first_call_alone_is_not_copied(ours: bool) -> None:
    """What Dynamo leaves of a call that compiles may hold its result until a collection."""
    function = graphed(double, guards="none") if ours else _in_the_mode(double)
    first = function(x_of(0))
    call_and_drop(function, range(1, 2), double)
    assert torch.equal(first, x_of(0))
    del first
    assert len(call_and_drop(function, range(2, 9), double)) == 1


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
    # Torch 2.14 returns the argument itself for "x + 0".
    functions = [_in_the_mode(lambda x, n=number: x + n) for number in range(1, 5)]
    dropped_until = []
    for turn in range(16):
        order = functions if turn % 2 else functions[::-1]
        kept = [(one, one(x_of(turn))) for one in order]
        for one, result in kept:
            assert torch.equal(result, x_of(turn) + functions.index(one) + 1)
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


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function whose one graph lends its results. On the CPU, nobody can tell of readers."""
    if not REAL:
        monkeypatch.setattr(torch.Tensor, "record_stream", _accept_all, raising=False)
        monkeypatch.setattr(torch.UntypedStorage, "_share_cuda_", _accept_all)
    function = graphed(double, guards="none")
    call_and_drop(function, range(6), double)
    assert lends(function)
    return function


def _accept_all(*_: object, **__: object) -> None:
    pass


def _streams_waited_for(function: Any) -> list[Any]:
    (signature,) = function._graphs.signatures.values()
    pool = signature.state.observed.pool
    return [*pool._readers.values()] if REAL else pool.readers


def _stream() -> Any:
    return torch.cuda.Stream() if REAL else object()


def test_another_stream_that_reads(lent: Any) -> None:
    result, streams = lent(x_of(1)), [_stream(), _stream()]
    x_of(1).record_stream(streams[0])
    assert streams[0] not in _streams_waited_for(lent)
    result.record_stream(streams[0])
    result[1:].record_stream(s=streams[1])
    assert [_streams_waited_for(lent).count(one) for one in streams] == [1, 1]


def test_a_stream_that_reads_what_a_dropped_graph_has_made(lent: Any) -> None:
    result, stream = lent(x_of(1)), _stream()
    call_and_drop(lent, range(3), double)
    assert lent.row["dropped"] == 1
    result.record_stream(stream)
    assert stream in _streams_waited_for(lent)


def test_a_stream_of_any_kind_that_reads(lent: Any) -> None:
    if not REAL:
        pytest.skip("the CPU has no streams")
    number = torch.cuda.current_device()
    stream = torch.Stream(device=f"cuda:{number}")
    lent(x_of(1)).record_stream(stream)
    assert stream.stream_id in [one.stream_id for one in _streams_waited_for(lent)]


def test_a_stream_that_the_program_may_destroy(lent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = lent(x_of(1))
    before = place(result)
    if REAL:
        stream = torch.cuda.ExternalStream(torch.cuda.Stream().cuda_stream)
    else:
        monkeypatch.setattr(torch.cuda, "ExternalStream", object)
        stream = object()
    result.record_stream(stream)
    del result
    assert stream not in _streams_waited_for(lent)
    assert before not in call_and_drop(lent, range(6), double)


def test_what_is_not_ours_sees_nothing_of_it(lent: Any) -> None:
    seen = []

    class Own(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> None:
            seen.append(function.__name__)

    with contextlib.suppress(AttributeError):  # A function has none.
        torch.Tensor.record_stream(torch.ones(2).as_subclass(Own), _stream())
    assert set(seen) <= {"record_stream"}
    with contextlib.suppress(NotImplementedError, RuntimeError):
        torch.ones(2, 2, device=GPU).to_sparse().record_stream(_stream())
    for wrong in ((), (_stream(), _stream(), 3)):
        if REAL:
            with pytest.raises(TypeError, match="record_stream"):
                lent(x_of(1)).record_stream(*wrong)


def test_a_stream_that_reads_what_is_no_result_any_more(lent: Any) -> None:
    class Lender:
        """As a forward's results that a backward's graph has got."""

        def __init__(self, lent: list[int]) -> None:
            self.lent = lent

        def result_memories(self) -> list[int]:
            return self.lent

    (signature,) = lent._graphs.signatures.values()
    other, stream = x_of(2), _stream()
    lender = Lender([other.untyped_storage()._cdata])
    readers.watch_readers(lender, signature.state.observed.pool)
    lender.lent = []
    other.record_stream(stream)
    assert stream not in _streams_waited_for(lent)


def test_a_pickle_of_the_method(lent: Any) -> None:
    assert pickle.loads(pickle.dumps(torch.Tensor.record_stream)) is torch.Tensor.record_stream
    share = torch.UntypedStorage._share_cuda_
    assert pickle.loads(pickle.dumps(share)) is share


def test_another_process_that_reads(lent: Any) -> None:
    result = lent(x_of(1))
    before = place(result)
    result.untyped_storage()._share_cuda_()
    del result
    # This memory is never written again.
    assert before not in call_and_drop(lent, range(6), double)
    assert lent.row["dropped"] == 1


# The promise does not look into it.
_constants: dict[str, Any] = {}


@replayed.nothing("torch has no place for them in a graph")
@pytest.mark.parametrize(
    "make", ["to_sparse", "to_sparse_csr", "to_sparse_csc", "to_mkldnn"], ids=str
)
@pytest.mark.parametrize("where", ["result", "inside", "constant", "elsewhere"])
def test_tensors_without_a_memory(make: str, where: str) -> None:
    if REAL and make == "to_mkldnn":
        pytest.skip("it is the CPU's")
    constant = getattr(torch.eye(3, device=GPU), make)()
    functions: dict[str, Callable[[Any], Any]] = {
        "result": lambda x: getattr(x, make)(),
        "inside": lambda x: getattr(x, make)().to_dense() + 1,
        "constant": lambda x: x + constant.to_dense(),
        "elsewhere": lambda x: x + _constants[make].to_dense(),
    }
    _constants[make] = constant
    function = functions[where]

    wrapped = graphed(function, guards="none")
    for number in range(4):
        x = torch.eye(3, device=GPU) * number
        assert torch.equal(wrapped(x).to_dense(), function(x).to_dense())
    (why,) = [one for one in wrapped.row["plain"] if one != graph_cache.WARMING]
    assert any(one in why for one in ("torch._mkldnn", "torch.sparse", "_to_dense"))


def _nested(x: Any) -> Any:
    return torch.nested.nested_tensor([x, x[:2]])


@replayed.nothing("torch has no place for them in a graph")
@pytest.mark.parametrize("guards", ["all", "none"])
@pytest.mark.parametrize("where", ["result", "inside", "constant", "elsewhere", "argument"])
def test_nested_tensors(where: str, guards: str, monkeypatch: pytest.MonkeyPatch) -> None:
    constant = _nested(torch.eye(3, device=GPU))
    # The stand-in can't compare one that is left over.
    monkeypatch.setitem(_constants, "nested", constant)
    functions: dict[str, Callable[[Any], Any]] = {
        "result": _nested,
        "inside": lambda x: torch.nested.to_padded_tensor(_nested(x), 0.0),
        "constant": lambda x: torch.nested.to_padded_tensor(constant, 0.0) + x[0],
        "elsewhere": lambda x: torch.nested.to_padded_tensor(_constants["nested"], 0.0) + x[0],
        "argument": lambda x: torch.nested.to_padded_tensor(x, 0.0),
    }
    function = functions[where]
    wrapped = graphed(function, guards=guards)
    for number in range(5):
        x = torch.eye(3, device=GPU) * number
        x = _nested(x) if where == "argument" else x
        found, wanted = wrapped(x), function(x)
        if where == "result":
            found, wanted = (torch.nested.to_padded_tensor(one, 0.0) for one in (found, wanted))
        assert torch.equal(found, wanted)


@pytest.mark.skipif(REAL, reason="oneDNN is the CPU's")
@replayed.nothing("its weight has no address")
def test_a_weight_of_another_library() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.eye(3).to_mkldnn())

        def forward(self, x: Any) -> Any:
            return x + self.weight.to_dense()

    wrapped = graphed(Model())
    for number in range(5):
        assert torch.equal(wrapped(torch.eye(3) * number), torch.eye(3) * (number + 1))


@pytest.mark.parametrize("shapes", [2, 33])
def test_results_that_are_kept_after_many_drops(shapes: int) -> None:
    function = graphed(double, limit=1 if shapes == 2 else 16, guards="none")
    for number in range(shapes):
        for _ in range(5):
            function(torch.ones(number + 1, device=GPU))
    before = function.row["replays"], function.row["dropped"]
    kept = [function(torch.ones(shapes, device=GPU)) for _ in range(20)]
    assert all(torch.equal(one, kept[0]) for one in kept)
    assert function.row["replays"] - before[0] == 20
    assert function.row["dropped"] - before[1] == 1


def test_new_shapes_of_which_some_results_are_kept() -> None:
    function, kept = graphed(double, limit=64, guards="none"), []
    for number in range(600):
        size = 1 + number // 40 * 2 + number % 8
        kept.append((function(torch.full((size,), float(number), device=GPU)), number))
        kept = kept[-5:]
        assert all(not (result - 2 * value).any() for result, value in kept)
    # Once a graph has to copy, those that are captured later copy from the beginning.
    assert function.row["dropped"] <= 30


def test_layers_that_share_their_code() -> None:
    class Layer(torch.nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((4,), number / 16, device=GPU))

        def forward(self, x: Any) -> Any:
            return torch.cos(x * self.weight)

    layers = [_in_the_mode(Layer(number)) for number in range(12)]
    for turn in range(8):
        x = wanted = x_of(turn)
        for number, layer in enumerate(layers):
            x, wanted = layer(x), torch.cos(wanted * (number / 16))
        assert torch.allclose(x, wanted)
    # The first ones are captured after the others. It takes one more graph, and not one for each.
    assert _sums()[1] <= 2


def test_a_dropped_graph_keeps_what_is_used_and_nothing_else(lent: Any) -> None:
    function = graphed(lambda x: (x * 2, x + 1), guards="none")
    for number in range(6):
        function(x_of(number))
    (signature,) = function._graphs.signatures.values()
    outputs = [weakref.ref(one) for one in signature.state.outputs.leaves]
    kept = function(x_of(3))[0]
    function(x_of(4))
    assert function.row["dropped"] == 1
    assert [one() for one in outputs] == [None, None]
    assert torch.equal(kept, x_of(3) * 2)


def test_threads_that_find_the_same_result_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    function = graphed(double, guards="none")
    call_and_drop(function, range(6), double)
    kept, found, each = function(x_of(7)), threading.Barrier(2), threading.local()
    make_call = calls.GraphedCall

    def wait_once(*given: Any) -> Any:
        if not hasattr(each, "waited"):
            each.waited = found.wait(60)
        return make_call(*given)

    monkeypatch.setattr(graph_cache, "GraphedCall", wait_once)
    results: list[Any] = []

    def call(number: int) -> None:
        with torch.no_grad():
            results.append((number, function(x_of(number))))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(torch.equal(result, x_of(number) * 2) for number, result in results)
    assert torch.equal(kept, x_of(7) * 2)
    assert (len(results), function.row["dropped"]) == (2, 1)
    assert function.row["plain"] == {graph_cache.WARMING: 2}
