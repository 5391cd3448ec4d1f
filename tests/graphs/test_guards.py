# mypy: allow-subclassing-any
"""What a result of ``graphed`` depends on besides its arguments, and what a promise does not cover.

Each program of PROGRAMS is called beside its own twin without graphs, through all its changes. With
``guards="all"`` each result has to be the twin's. With ``guards="none"`` only those of PROMISED may
differ: they are listed in docs/graphs.md.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import recorder  # noqa: E402
import replayed  # noqa: E402
import stand_in  # noqa: E402

from rocm_autopatch import startup  # noqa: E402
from rocm_autopatch.graphs import (  # noqa: E402
    Bucket,
    Refused,
    capture,
    graph_cache,
    graphed,
    guards,
    mode,
    settings,
)

REAL = torch.cuda.is_available()
GPU = torch.device("cuda", torch.cuda.current_device()) if REAL else torch.device("cpu")
RELEASE = startup.release(torch.__version__)
replaying = replayed.replaying
WAYS = ("all", "none")


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[None]:
    if not REAL:
        recorder.install()
    yield
    if not REAL:
        stand_in.install()


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def linear(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 4).to(GPU)


def x_of(number: int) -> Any:
    return torch.arange(8.0, device=GPU).view(2, 4) / 8 + number


def leaves_of(result: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(result))


def same(one: Any, other: Any) -> bool:
    pairs = zip(leaves_of(one), leaves_of(other))
    return all(alike(a, b) if torch.is_tensor(a) else a == b for a, b in pairs)


def alike(one: Any, other: Any) -> bool:
    return bool(one.dtype == other.dtype and torch.allclose(one, other))


# Programs: each makes a function, and what changes between its calls.

Made = tuple[Callable[..., Any], list[Callable[[], Any]]]
PROGRAMS: dict[str, Callable[[], Made]] = {}
# Those whose changes the promise covers.
PROMISED: set[str] = set()


def program(promised: bool) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def add(make: Callable[[], Made]) -> Callable[[], Made]:
        PROGRAMS[make.__name__] = make
        if promised:
            PROMISED.add(make.__name__)
        return make

    return add


class Engine:
    """A plain object with a model."""

    def __init__(self) -> None:
        self.model: Any = torch.nn.Sequential(linear(), torch.nn.Dropout(0.5)).eval()
        self.shift: Any = None
        self.factor: Any = 2

    def step(self, x: Any) -> Any:
        shift = 0 if self.shift is None else self.shift
        return self.model(x) * self.factor + shift

    __call__ = step


@program(promised=False)
def flags_of_a_model_in_an_object() -> Made:
    engine = Engine()
    engine.model[1].p = 1.0
    return engine.step, [engine.model.train, engine.model.eval]


@program(promised=False)
def weights_of_a_model_in_an_object() -> Made:
    engine = Engine()
    first = engine.model[0]

    def load() -> None:
        state = {name: value * 2 for name, value in engine.model.state_dict().items()}
        engine.model.load_state_dict(state, assign=True)

    return engine, [
        lambda: setattr(first.weight, "data", first.weight.data * 3),
        load,
        lambda: first.weight.mul_(2),
    ]


@program(promised=False)
def weights_of_attention() -> Made:
    """Its kernel allocates by operations, and writes by none."""
    project = linear()

    def function(x: Any) -> Any:
        heads = project(x).view(1, 2, 2, 2)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)

    return function, [lambda: project.weight.mul_(2)]


@program(promised=True)
def another_model_in_an_object() -> Made:
    engine = Engine()
    return engine.step, [lambda: setattr(engine, "model", linear(7))]


@program(promised=True)
def an_attribute_that_becomes_a_tensor() -> Made:
    engine = Engine()
    held: list[Any] = []

    def table(value: float) -> Callable[[], Any]:
        def change() -> None:
            # The old one lives on, as memory that somebody else uses would.
            held.append(engine.shift)
            engine.shift = torch.full((2000,), value, device=GPU)[:4]

        return change

    return engine.step, [table(1.0), table(2.0), lambda: setattr(engine, "shift", None)]


@program(promised=True)
def plain_attributes() -> Made:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor: Any = 1
            self.kinds: Any = [2]
            self.dtype: Any = torch.float32
            self.note = ""
            self.best = float("nan")

        def forward(self, x: Any) -> Any:
            best = 0 if self.best != self.best else self.best
            more = getattr(self, "more", 1)
            return (x * self.factor * self.kinds[0] * more).to(self.dtype) + best

    model = Model()
    values: dict[str, Any] = {"kinds": [3], "dtype": torch.float16, "more": 5, "best": 1.0}
    changes: list[Any] = [lambda n=n, v=v: setattr(model, n, v) for n, v in values.items()]
    changes.append(lambda: delattr(model, "note"))
    changes.append(lambda: model.kinds.__setitem__(0, 7))
    changes += [lambda v=v: setattr(model, "factor", v) for v in (2, 2.0, True, 3)]
    return model, changes


@program(promised=False)
def a_deleted_attribute() -> Made:
    model = torch.nn.Sequential(linear(), torch.nn.Dropout(1.0)).eval()
    model.note = "x"
    return model, [lambda: delattr(model, "note"), model.train, model.eval]


@program(promised=True)
def hooks() -> Made:
    model = torch.nn.Sequential(linear(), torch.nn.ReLU())
    return model, [
        lambda: model.register_forward_hook(lambda _, args, out: out * 2),
        lambda: model[0].register_forward_pre_hook(lambda _, args: (args[0] + 1,)),
    ]


@program(promised=True)
def methods_and_classes() -> Made:
    class First(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    class Second(First):
        def forward(self, x: Any) -> Any:
            return x * 3

    model, inner = torch.nn.Sequential(First(), First()), First()
    model.append(inner)
    return model, [
        lambda: setattr(model[0], "forward", lambda x: x + 1),
        lambda: setattr(inner, "__class__", Second),
    ]


@program(promised=True)
def another_layout_at_the_same_address() -> Made:
    model = linear()
    return model, [lambda: setattr(model.weight, "data", model.weight.data.t())]


@program(promised=False)
def submodules() -> Made:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.extra = linear(), torch.nn.ModuleList()
            self.register_buffer("shift", None)

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for one in self.extra:
                x = one(x)
            return x if self.shift is None else x + self.shift

    model = Model()
    return model, [
        lambda: model.extra.append(linear(3)),
        lambda: setattr(model, "shift", torch.ones(4, device=GPU)),
        lambda: setattr(model, "first", torch.nn.Sequential(model.first, linear(4))),
    ]


@program(promised=False)
def parameters_of_one_element() -> Made:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0, device=GPU))
            self.register_buffer("shift", torch.tensor(3, device=GPU))

        def forward(self, x: Any) -> Any:
            return x * self.scale + self.shift

    model = Model()

    def replace() -> None:
        # Equal, and changed in place later.
        model.scale = torch.nn.Parameter(torch.tensor(2.0, device=GPU))
        model.shift = torch.tensor(3, device=GPU)

    return model, [replace, lambda: (model.scale.fill_(5), model.shift.fill_(7))]


@program(promised=True)
def closures() -> Made:
    number, weight, model = 1.0, torch.ones(4, device=GPU), linear()
    table = {"w": torch.ones(4, device=GPU)}

    def function(x: Any) -> Any:
        return model(x) * number + weight * table["w"]

    def rebind(what: str) -> Callable[[], None]:
        def change() -> None:
            nonlocal number, weight, model
            if what == "number":
                number = 3.0
            elif what == "weight":
                weight = torch.full((4,), 7.0, device=GPU)
            elif what == "model":
                model = linear(9)
            else:
                table["w"] = torch.full((4,), 9.0, device=GPU)

        return change

    return function, [rebind(one) for one in ("number", "weight", "model", "table")]


@program(promised=True)
def globals_and_defaults() -> Made:
    names: dict[str, Any] = {"factor": 2.0, "model": linear(), "w": torch.ones(4, device=GPU)}
    exec("def f(x, by=1.0): return model(x) * factor * by + w", names)
    function = names["f"]
    new = {"factor": 3.0, "model": linear(8), "w": torch.full((4,), 5.0, device=GPU)}
    changes: list[Any] = [lambda n=n, v=v: names.__setitem__(n, v) for n, v in new.items()]
    return function, [*changes, lambda: setattr(function, "__defaults__", (4.0,))]


@program(promised=True)
def counters() -> Made:
    number = 0

    class State:
        count = 0

    def function(x: Any) -> Any:
        nonlocal number
        number += 1
        State.count += 1
        return x * number + State.count

    return function, [lambda: None] * 3


@program(promised=False)
def generators_of_the_host() -> Made:
    own = torch.Generator().manual_seed(1)
    numpy = pytest.importorskip("numpy")
    numpy.random.seed(0)
    chance = random.Random(0)
    # Both twins draw from generators in the same states.
    state = numpy.random.RandomState(3)

    def function(x: Any) -> Any:
        drawn = torch.rand(4, generator=own).to(GPU)
        return x * drawn + float(state.rand()) * 0 + chance.random() * 0

    return function, [lambda: None] * 3


# They replay little or nothing.
UNFIT = ("counters", "generators_of_the_host")


def replay_something() -> None:
    """For tests of which some replay nothing, and should not."""
    function = graphed(lambda x: x + 1)
    for number in range(4):
        function(x_of(number))


def reasons(function: Any) -> str:
    row = function.row
    return " | ".join([*row["plain"], *(one["reason"] for one in row["refused"])])


def runs(
    make: Callable[[], Made], calls: int = 4, **options: Any
) -> tuple[list[tuple[Any, Any]], Any]:
    """The results of a program's calls, each with its twin's."""
    torch.manual_seed(0)
    mine, changes = make()
    torch.manual_seed(0)
    twin, others = make()
    function = graphed(mine, **options)
    found = []
    number = 0
    for change, other in zip([lambda: None, *changes], [lambda: None, *others]):
        change(), other()
        for _ in range(calls):
            number += 1
            found.append((function(x_of(number)), twin(x_of(number))))
    return found, function


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("verify", [False, True])
def test_guards_see_it(name: str, verify: bool) -> None:
    found, function = runs(PROGRAMS[name], verify=verify)
    wrong = [number for number, (got, wanted) in enumerate(found) if not same(got, wanted)]
    assert not wrong
    if name not in UNFIT:
        assert function.row["replays"] >= len(found) // 4
    replay_something()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_promise_covers_only_its_table(name: str) -> None:
    found, _ = runs(PROGRAMS[name], guards="none")
    replay_something()
    wrong = [number for number, (got, wanted) in enumerate(found) if not same(got, wanted)]
    # Otherwise this program would show nothing in the test above.
    assert bool(wrong) == (name in PROMISED)


# Arguments


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("where", "replays"), [((5, 6), 4), ((2,), 5)])
def test_an_argument_in_the_memory_of_a_buffer_that_is_changed(
    way: str, where: tuple[int, ...], replays: int
) -> None:
    """In replays, or where the capture would be."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.ones(4, device=GPU))

        def forward(self, x: Any) -> Any:
            self.count.add_(1)
            return x + self.count

    model, twin = Model(), Model()
    function = graphed(model, guards=way)
    for number in range(8):
        shared = number in where
        mine = model.count[:] if shared else torch.zeros(4, device=GPU)
        other = twin.count[:] if shared else torch.zeros(4, device=GPU)
        assert torch.equal(function(mine), twin(other))
    assert "lies in the memory of a weight or buffer" in reasons(function)
    assert function.row["replays"] == replays


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("inference", [False, True])
def test_an_argument_that_is_changed_under_a_bucket(way: str, inference: bool) -> None:
    bucket = Bucket("batch", sizes=(4, 8), inputs={"x": 0})
    function = graphed(lambda x: x.add_(1) * 2, buckets=[bucket], guards=way)
    with torch.inference_mode(inference):
        for size in (3, 3, 4, 2, 3, 6):
            x = torch.ones(size, device=GPU)
            assert torch.equal(function(x), torch.full((size,), 4.0, device=GPU))
            assert torch.equal(x, torch.full((size,), 2.0, device=GPU))
    assert function.row["replays"] >= 3


def test_arguments_that_only_guards_know() -> None:
    numpy = pytest.importorskip("numpy")

    def function(x: Any, how: Any) -> Any:
        if isinstance(how, (set, frozenset)):
            return x * len(how)
        return x[how] if isinstance(how, slice) else x * float(how.sum())

    wrapped = graphed(function)
    for how in ({1, 2}, {1}, slice(0, 1), slice(0, 2), numpy.ones(2), numpy.ones(3)):
        for number in range(3):
            x = x_of(number)
            assert torch.equal(wrapped(x, how), function(x, how))
    assert wrapped.row["replays"] > 3


@replayed.nothing("the node's context differs in each call")
def test_a_registered_type_whose_text_is_cut() -> None:
    numpy = pytest.importorskip("numpy")

    class Node:
        def __init__(self, tensor: Any, table: Any) -> None:
            self.tensor, self.table = tensor, table

    torch.utils._pytree.register_pytree_node(
        Node,
        lambda node: ([node.tensor], node.table),
        lambda one, table: Node(next(iter(one)), table),
    )
    for way in WAYS:
        wrapped = graphed(lambda node: node.tensor * float(node.table[1500]), guards=way)
        for value in (1, 1, 1, 1, 7):
            table = numpy.zeros(3000)
            table[1500] = value
            x = x_of(1)
            assert torch.equal(wrapped(Node(x, table)), x * value)


# Results


class Result:
    """A result whose text shows no content."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __repr__(self) -> str:
        return "Result()"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["object", "set", "array"])
def test_results_are_never_the_same_object(way: str, kind: str) -> None:
    numpy = pytest.importorskip("numpy")
    makers: dict[str, Callable[[Any], Any]] = {
        "object": Result,
        "set": lambda _: {1, 2},
        "array": lambda _: numpy.arange(5000),
    }
    more = makers[kind]
    function = graphed(lambda x: (x * 2, more(x * 3)), guards=way)
    kept = [function(x_of(number)) for number in range(6)]
    for number, (double, other) in enumerate(kept):
        assert torch.equal(double, x_of(number) * 2)
        if kind == "object":
            assert torch.equal(other.tensor, x_of(number) * 3)
    assert len({id(other) for _, other in kept}) == 6
    if way == "none":
        assert "would return the same one" in reasons(function)
    replay_something()


@pytest.mark.parametrize("way", WAYS)
def test_generators_and_coroutines(way: str) -> None:
    import asyncio

    def generator(x: Any) -> Any:
        yield x * 2

    async def coroutine(x: Any) -> Any:
        return x * 2

    lazy, later = graphed(generator, guards=way), graphed(coroutine, guards=way)
    for number in range(5):
        x = x_of(number)
        assert torch.equal(next(lazy(x)), x * 2)
        assert torch.equal(asyncio.run(later(x)), x * 2)
    assert "does its work after the call" in reasons(lazy)
    replay_something()


@pytest.mark.skipif(REAL, reason="it looks at the stand-in that keeps no results")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", [0, 2])
def test_aliased_results_where_modes_take_turns(way: str, first: int) -> None:
    stand_in.install()
    try:
        model = linear()
        function = graphed(model, outputs="alias", guards=way)
        held = []
        for number in range(16):
            turn = torch.inference_mode if (number + first) % 4 < 2 else torch.no_grad
            with turn():
                x = x_of(number)
                held.append((function(x), model(x)))
        assert all(torch.equal(*pair) for pair in held)
        assert function.row["replays"] >= 8
    finally:
        recorder.install()


# Settings of torch


def test_settings_that_decide_which_kernel_runs() -> None:
    function = graphed(lambda x: x @ x)
    x = torch.randn(4, 4, device=GPU)
    was = settings.current_settings()
    flags: list[tuple[Any, str]] = [
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "benchmark"),
        (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    ]
    for owner, name in flags:
        kept = getattr(owner, name)
        setattr(owner, name, not kept)
        try:
            assert settings.current_settings() != was, name
        finally:
            setattr(owner, name, kept)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert settings.current_settings() != was
    assert settings.current_settings() == was
    for _ in range(4):
        function(x)
    assert function.row["replays"] == 2


@pytest.mark.skipif(RELEASE < (2, 9), reason="it came with torch 2.9")
def test_a_precision_that_has_no_old_name() -> None:
    precision = torch.backends.cuda.matmul
    was = precision.fp32_precision
    functions = [graphed(linear(), guards=way) for way in WAYS]
    try:
        for value in ("tf32", "ieee"):
            precision.fp32_precision = value
            for function in functions:
                for number in range(4):
                    assert torch.equal(function(x_of(number)), linear()(x_of(number)))
    finally:
        precision.fp32_precision = was
    assert [len(function.row["graphs"]) for function in functions] == [2, 2]


@pytest.mark.parametrize("way", WAYS)
def test_a_default_device(way: str) -> None:
    function = graphed(lambda x: x + torch.ones(4), guards=way)
    for where in (GPU, torch.device("meta"), GPU):
        for number in range(4):
            with where:
                x = x_of(number)
                if where.type != "meta":
                    assert torch.equal(function(x), x + 1)
    assert function.row["replays"] == 6


@pytest.mark.parametrize("way", WAYS)
def test_a_trace(way: str) -> None:
    model = linear()
    function = graphed(model, guards=way)
    for number in range(4):
        function(x_of(number))

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return function(x)

    traced = torch.jit.trace(Outer(), (x_of(1),))
    for number in range(3):
        assert torch.allclose(traced(x_of(number)), model(x_of(number)))
    assert "torch.jit traces this call" in reasons(function)


# Errors


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_the_program_is_raised_once(way: str) -> None:
    calls = []

    def function(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("mine")
        return x * 2

    wrapped = graphed(function, guards=way, verify=False)
    got = []
    for number in range(6):
        try:
            assert torch.equal(wrapped(x_of(number)), x_of(number) * 2)
            got.append("result")
        except KeyError:
            got.append("error")
    assert got == ["result", "result", "error", "result", "result", "result"]
    replay_something()


@replayed.nothing("Dynamo fails")
def test_what_dynamo_cannot_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise NotImplementedError("no such node")

    monkeypatch.setattr(mode, "compile_regions", broken)
    done = []

    def function(x: Any) -> Any:
        done.append(1)
        return x * 2

    wrapped, strict = graphed(function), graphed(lambda x: x * 2, fallback=False)
    for number in range(5):
        assert torch.equal(wrapped(x_of(number)), x_of(number) * 2)
        assert len(done) == number + 1
    assert "Dynamo can't compile it: " in reasons(wrapped)
    strict(x_of(0))
    with pytest.raises(Refused, match="no such node"):
        strict(x_of(1))


@replayed.nothing("the program asks for an error")
def test_a_break_where_the_program_forbids_it() -> None:
    @torch.compile(fullgraph=True, backend="eager")  # type: ignore[untyped-decorator]
    def function(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x * 2

    with pytest.raises(torch._dynamo.exc.Unsupported):
        graphed(function)(x_of(1))


def test_what_is_compiled_anew_too_often() -> None:
    model = linear()
    model.factor = 0

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 0

        def forward(self, x: Any) -> Any:
            return x * self.factor

    scaled = Scaled()
    function = graphed(scaled)
    for number in range(40):
        scaled.factor = number
        assert torch.equal(function(x_of(1)), x_of(1) * number)
    assert guards.NOTHING in function.row["plain"]
    assert function.row["calls"] == 40
    replay_something()


@pytest.mark.skipif(RELEASE < (2, 8), reason="it came with torch 2.8")
def test_a_filter_of_guards() -> None:
    factor = [2.0]
    names: dict[str, Any] = {"factor": 2.0}
    exec("def f(x): return x * factor", names)

    def without_globals(entries: Any) -> list[bool]:
        return [not one.is_global for one in entries]

    functions = [graphed(names["f"], guard_filter_fn=one) for one in (None, without_globals)]
    for function in functions:
        for number in range(4):
            function(x_of(number))
    names["factor"] = 5.0
    got = [function(x_of(1)) / x_of(1) for function in functions]
    assert [round(one.mean().item()) for one in got] == [5, 2]
    assert factor == [2.0]


def test_a_function_that_breaks() -> None:
    """Its parts are graphs, and what is between them runs in each call."""
    told: list[int] = []

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def tell() -> None:
        told.append(len(told))

    def function(x: Any) -> Any:
        y = x.sin() * 2
        tell()
        return y.cos() + 1

    wrapped = graphed(function)
    for number in range(6):
        x = x_of(number)
        assert torch.allclose(wrapped(x), (x.sin() * 2).cos() + 1)
    assert len(told) == 6
    assert len(wrapped.row["graphs"]) == 2


@pytest.mark.parametrize("form", ["module", "function", "in place", "mode"])
def test_what_the_program_has_compiled(form: str) -> None:
    stand_in.graphs_in_modes()
    seen: list[int] = []

    def backend(model: Any, inputs: Any) -> Any:
        seen.append(len(inputs))
        return model.forward

    model = linear()
    plain, options = copy.deepcopy(model), {"backend": backend, "dynamic": False}
    if form == "mode":
        options = {"mode": "max-autotune", "dynamic": False}
    compiled = model
    if form == "in place":
        model.compile(**options)
    else:
        compiled = torch.compile(model.forward if form == "function" else model, **options)
    function = graphed(compiled)
    for number in range(5):
        assert torch.allclose(function(x_of(number)), plain(x_of(number)))
    assert function.row["replays"] == 3
    assert len(function.row["graphs"]) == 1
    assert form == "mode" or len(seen) == 1


# Wrapped models


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_a_model_with_a_wrapped_forward(way: str) -> None:
    model = torch.nn.Sequential(linear(), linear(2))
    model[0].forward = graphed(model[0].forward, guards=way)
    plain = torch.nn.Sequential(linear(), linear(2))
    for number in range(4):
        assert torch.allclose(model(x_of(number)), plain(x_of(number)))
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(stream, weights_only=False),
    ]
    for one in copies:
        one[0].weight.mul_(2)
        other = copy.deepcopy(plain)
        other[0].weight.mul_(2)
        for number in range(4):
            assert torch.allclose(one(x_of(number)), other(x_of(number)))
        assert one[0].forward.row["replays"] == 2
    assert torch.allclose(model(x_of(1)), plain(x_of(1)))


@pytest.mark.parametrize("way", WAYS)
def test_attributes_are_set_on_the_model(way: str) -> None:
    model = linear()
    model.factor = 2
    function = graphed(model, guards=way)
    for number in range(4):
        function(x_of(number))
    function.factor = 5
    assert (model.factor, function.factor) == (5, 5)
    function.weight = torch.nn.Parameter(torch.zeros(4, 4, device=GPU))
    assert torch.equal(function(x_of(3)), model(x_of(3)))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_stays_alive(way: str) -> None:
    if not REAL:
        # The other one keeps what it has recorded.
        stand_in.install()
    try:
        model = linear()
        function = graphed(model, guards=way)
        for number in range(4):
            function(x_of(number))
        weights = weakref.ref(model.weight), weakref.ref(model)
        assert function.row["replays"] == 2
        before = sum(type(one) is graph_cache.GraphCache for one in gc.get_objects())
        del model, function
        gc.collect()
        assert [one() for one in weights] == [None, None]
        assert sum(type(one) is graph_cache.GraphCache for one in gc.get_objects()) < before
    finally:
        if not REAL:
            recorder.install()


@pytest.mark.parametrize("way", WAYS)
def test_memory_does_not_grow_with_values(way: str) -> None:
    import tracemalloc

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for number in range(8):
                setattr(self, f"value_{number}", float(number))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(60))
            self.time = 0.0

        def forward(self, x: Any) -> Any:
            return x * self.time

    model = Model()
    function, x = graphed(model, guards=way), x_of(1)
    for number in range(40):
        model.time = float(number)
        function(x)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(200):
        model.time = 1000.0 + number
        function(x)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 200 << 10
    replay_something()


def test_the_least_recent_signature_makes_room() -> None:
    function = graphed(lambda x: x + 1, limit=2)
    for size in (1, 2, 3):
        for _ in range(4):
            function(torch.ones(size, device=GPU))
    assert function.row["dropped"] == 1
    assert len(function._graphs.signatures) == 2
    function.clear()
    for _ in range(4):
        function(torch.ones(3, device=GPU))
    assert len(function.row["graphs"]) == 4


def test_without_numpy() -> None:
    """Torch does not require it."""
    import os
    import subprocess
    import sys
    from pathlib import Path

    here = Path(__file__).parent
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "import torch, stand_in; stand_in.install()\n"
        "from rocm_autopatch.graphs import capture, graphed\n"
        "pool = object.__new__(capture.CapturePool.__mro__[1])\n"
        "state = pool.elsewhere(); assert state == pool.elsewhere()\n"
        "torch.rand(1); assert state != pool.elsewhere()\n"
        "function = graphed(torch.nn.Linear(4, 4))\n"
        "with torch.no_grad():\n"
        "    for _ in range(4): function(torch.ones(2, 4))\n"
        "print(function.row['replays'])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["2"], done.stderr
    replay_something()


@pytest.mark.parametrize("at", range(1, 10))
def test_the_function_clears_its_graphs(at: int) -> None:
    """At any call: a plain one, one that is observed, captured or checked."""
    calls = 0

    def function(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            wrapped.clear()
        return x * 2

    wrapped = graphed(function, guards="none", warmup=1, verify=at % 2 == 0, check=True)
    for _ in range(12):
        assert wrapped(torch.ones(4, device=GPU)).tolist() == [2] * 4
    assert wrapped.row["replays"] > 0
    known = wrapped._graphs._current[1]
    # What is captured is known, and so it can be dropped.
    wrapped.clear()
    assert (known._recent, known.signatures) == ((None, None), {})


@pytest.mark.parametrize("refused", [False, True])
def test_the_function_calls_itself(refused: bool) -> None:
    inner, calls = False, 0

    def function(x: Any) -> Any:
        nonlocal inner, calls
        calls += 1
        if inner:
            return x * 2, calls // 5 if refused else 0
        inner = True
        try:
            return wrapped(x)
        finally:
            inner = False

    wrapped = graphed(function, guards="none", warmup=2, verify=True)
    for _ in range(6):
        assert wrapped(torch.ones(4, device=GPU))[0].tolist() == [2] * 4
    assert [one["reason"] for one in wrapped.row["refused"]] == [
        "the result has a constant that differs from call to call"
    ] * refused
    assert (wrapped.row["replays"] > 0) == (not refused)
    replay_something()


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, torch.OutOfMemoryError])
@replayed.nothing("its captures fail")
def test_a_failed_capture_keeps_nothing(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = False
    real = capture.CapturePool.capture

    def captured(self: Any, *args: Any) -> Any:
        nonlocal fails
        fails = True
        try:
            return real(self, *args)
        finally:
            fails = False

    def function(x: Any) -> Any:
        if fails:
            raise kind("in the capture")
        return x * 2

    monkeypatch.setattr(capture.CapturePool, "capture", captured)
    wrapped, x = graphed(function, guards="none", warmup=1, verify=True), torch.ones(4, device=GPU)
    wrapped(x)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            wrapped(x)
        gone = weakref.ref(x), weakref.ref(wrapped)
        del x, wrapped
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()
