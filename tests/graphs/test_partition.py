# mypy: allow-subclassing-any
"""What is compiled is cut around what no graph may contain, and the rest becomes graphs.

    python -m pytest tests/graphs

Without a GPU, the stand-in has the CPU in its place, and a tensor "on the host" is one of a fake.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import replayed
import stand_in

from rocm_autopatch import startup
from rocm_autopatch.graphs import capture, captured_ops, graphed, partition, record, soundness

replaying = replayed.replaying
REAL = torch.cuda.is_available()
GPU = torch.device("cuda", torch.cuda.current_device()) if REAL else torch.device("cpu")
KEY = "CUDA" if REAL else "CPU"
WARMING = "the first calls of a signature run without a graph"
has_tag = pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="no such tag")
trains = pytest.mark.skipif(
    startup.release(torch.__version__) < (2, 6), reason="torch has training graphs from 2.6 on"
)
STATE = {"factor": 1.0}
LIBRARY = torch.library.Library("partition", "DEF")
TAGS = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()


def define(name: str, kernel: Callable[..., Any], tags: Any = ()) -> None:
    LIBRARY.define(f"{name}(Tensor x) -> Tensor", tags=tags)
    LIBRARY.impl(name, kernel, KEY)
    torch.library.register_fake(f"partition::{name}", torch.empty_like)


define("scaled", lambda x: x * STATE["factor"], TAGS)
# Nobody says of it that it executes such an op.
define("hidden", lambda x: torch.ops.partition.scaled(x))


class Scale(torch.autograd.Function):
    """Multiplies by a number that Python holds, in the forward and in the backward."""

    @staticmethod
    def forward(context: Any, x: Any, op: str) -> Any:
        context.op = op
        return getattr(torch.ops.partition, op)(x)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return getattr(torch.ops.partition, context.op)(gradients[0]), None


class Net(torch.nn.Module):
    """Layers, an op that no graph may contain, and more layers. It returns views of arguments."""

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        view = x.view(2, -1, 8).transpose(0, 1)
        half, other = self.one.weight.chunk(2)
        y = self.norm(self.one(x).relu()).sin() * 2
        with torch.autocast(GPU.type, enabled=False):
            y = Scale.apply(y, self.op)
            z = self.two(y) + x
        return torch.nn.functional.gelu(z).cos() + y, view * 2 + (y @ half.t()).sum(), other, view


@pytest.fixture(autouse=True)
def begin(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    STATE["factor"] = 1.0
    monkeypatch.setattr(soundness, "distrusted", [])
    monkeypatch.setattr(soundness, "budget", soundness.CheckBudget())
    monkeypatch.setattr(captured_ops, "_verdicts", {})
    monkeypatch.setattr(partition, "_cut", weakref.WeakKeyDictionary())
    monkeypatch.setattr(record, "_rows", [])


@pytest.fixture(scope="module", autouse=True)
def our_graphs() -> None:
    if not REAL:
        stand_in.install()
    stand_in.graphs_in_modes()


def same(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def compare_calls(model: Any, wrap: Callable[[Any], Any], training: bool, calls: int = 8) -> Any:
    """Each result and gradient is eager mode's, although what Python holds changes."""
    other = copy.deepcopy(model)
    fast = wrap(model)
    for number in range(calls):
        STATE["factor"] = 1.0 + number
        x = torch.randn(4, 8, device=GPU)
        with torch.set_grad_enabled(training):
            mine, wanted = fast(x), other(x)
        same(mine, wanted)
        if training:
            for results in (mine, wanted):
                sum(one.square().mean() for one in results[:3]).backward()
            for weight, plain in zip(model.parameters(), other.parameters()):
                same(weight.grad, plain.grad)
                weight.grad = plain.grad = None
    return fast


def in_mode(model: Any) -> Any:
    return torch.compile(model, mode="reduce-overhead")


@has_tag
@trains
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("op", ["scaled", "hidden"])
def test_both_sides_of_an_op_are_graphs(op: str, training: bool) -> None:
    compare_calls(Net(op).to(GPU), in_mode, training, 12)
    rows = [row for row in record.render_rows() if ", part " in row["name"]]
    # Of what only an observed call has shown, there was one region before.
    before = 2 if op == "hidden" else 0
    assert [row["plain"] for row in rows] == [{WARMING: 2}] * (4 if training else 2)
    assert [row["replays"] for row in rows] == [10 - before] * len(rows)
    assert all(f"partition.{op}" in " ".join(row["cuts"]) for row in rows)


@has_tag
def test_a_graphed_function() -> None:
    fast = compare_calls(Net("scaled").to(GPU), graphed, False)
    assert len({graph["signature"] for graph in fast.row["graphs"]}) == 2
    assert "partition.scaled" in " ".join(fast.row["cuts"])


@has_tag
@replayed.nothing("before and behind the op there is too little for a graph")
def test_small_parts_are_none() -> None:
    for op in ("scaled", "hidden"):
        fast = graphed(lambda x, op=op: getattr(torch.ops.partition, op)(x.sin()).cos())
        for number in range(5):
            STATE["factor"] = 1.0 + number
            x = torch.randn(4, device=GPU)
            with torch.no_grad():
                same(fast(x), x.sin().mul(STATE["factor"]).cos())
        assert "must not be captured" in " ".join(fast.row["plain"])


@has_tag
@replayed.nothing("there is one region, and it executes the op")
def test_a_cut_that_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The program runs as before, and one line says why."""

    def fails(*_: object) -> None:
        raise KeyError("no part")

    monkeypatch.setattr(partition, "compile_parts", fails)
    monkeypatch.setenv("ROCM_AUTOPATCH_LOG", "debug")
    compare_calls(Net("scaled").to(GPU), in_mode, False)
    assert "is not cut into parts: KeyError" in capfd.readouterr().err


@has_tag
@trains
@pytest.mark.parametrize("form", ["method", "operator", "function"])
def test_a_write_before_an_op_is_made_once(form: str) -> None:
    """Its result is the argument's memory, as that of a view is."""

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(8))
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            y = self.linear(x).sin().cos() * 2
            if form == "method":
                seen = self.seen.add_(1).view(8)
            elif form == "operator":
                seen = self.seen
                seen += 1
            else:
                seen = torch.relu_(self.seen.add_(1))
            y = torch.ops.partition.scaled(y + y.exp())
            return (y.sin() + seen).cos() * 2 + seen

    model = Counter().to(GPU)
    compare_calls(model, in_mode, False)
    assert model.seen.tolist() == [8.0] * 8


def test_a_region_without_a_tensor() -> None:
    fast = in_mode(lambda n: torch.arange(8, device=GPU) * 2 + torch.ones(8, device=GPU).cumsum(0))
    with torch.no_grad():
        for _ in range(5):
            same(fast(3), torch.arange(8, device=GPU) * 2 + torch.arange(1.0, 9, device=GPU))
    (row,) = record.render_rows()
    assert row["plain"] == {WARMING: 2}


@trains
def test_layers_that_share_their_code() -> None:
    """What the first layer saves is in use when the second one is called."""
    layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3)).to(GPU)
    other = copy.deepcopy(layers)

    def layer(one: Any, x: Any) -> Any:
        return torch.nn.functional.gelu(one(x)).sin()

    fast = in_mode(layer)
    for _ in range(12):
        x = torch.randn(4, 8, device=GPU)
        for ones, function in ((layers, fast), (other, layer)):
            y = x
            for one in ones:
                y = function(one, y)
            y.square().mean().backward()
        for weight, plain in zip(layers.parameters(), other.parameters()):
            same(weight.grad, plain.grad)
            weight.grad = plain.grad = None
    rows = [row for row in record.render_rows() if not row["name"].startswith("backward")]
    replays, calls = (sum(row[name] for row in rows) for name in ("replays", "calls"))
    assert replays >= calls - 4 * len(rows)


@trains
def test_one_layer_that_is_called_twice() -> None:
    layer = torch.nn.Linear(8, 8).to(GPU)
    other = copy.deepcopy(layer)
    fast = in_mode(layer)
    for _ in range(12):
        x = torch.randn(4, 8, device=GPU)
        for function in (fast, other):
            function(function(x).sin()).square().mean().backward()
        same(layer.weight.grad, other.weight.grad)
        layer.weight.grad = other.weight.grad = None
    forwards = [row for row in record.render_rows() if not row["name"].startswith("backward")]
    assert sum(row["replays"] for row in forwards) >= sum(row["calls"] for row in forwards) - 5


@trains
def test_gradients_that_begin_to_be_kept_where_torch_writes_over_what_was_saved() -> None:
    """Torch's own backward writes over what was saved, so its first replay is the only one."""
    model = torch.nn.Sequential(
        torch.nn.Linear(32, 32), torch.nn.SiLU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)
    ).to(GPU)
    other = copy.deepcopy(model)
    fast = in_mode(model)
    kept = None
    for number in range(10):
        x = torch.randn(16, 32, device=GPU)
        for function in (fast, other):
            (function(x) - x).square().mean().backward()
        for weight, plain in zip(model.parameters(), other.parameters()):
            same(weight.grad, plain.grad)
            kept = weight.grad if number > 3 else None
            weight.grad = plain.grad = None
    assert kept is not None
    assert [row["dropped"] for row in record.render_rows()] == [0, 1]


# What is known before a call


def traced(function: Callable[..., Any], *args: Any) -> tuple[Any, list[Any]]:
    """What Dynamo records of a function, and its example inputs."""
    found: list[Any] = []
    make_module: Any = torch.fx.GraphModule

    def backend(model: Any, inputs: Any) -> Any:
        # From torch 2.15 on, an error takes all nodes out of the graph itself.
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(model.graph, {}))
        found.append((make_module(model, graph), inputs))
        raise RuntimeError("nothing is to be called")

    with torch.no_grad(), pytest.raises(RuntimeError, match="nothing is to be called"):
        torch.compile(function, backend=backend, fullgraph=True)(*args)
    ((model, inputs),) = found
    return model, [*inputs]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> str:
    """The GPU's device here is "meta", so that the CPU is the host."""
    monkeypatch.setattr(capture.CapturePool, "kind", "meta")
    return "meta"


def objections(function: Callable[..., Any], *args: Any) -> list[str]:
    model, _ = traced(function, *args)
    return [why for node in model.graph.nodes if (why := partition.find_objection(node))]


@replayed.nothing("nothing is compiled")
def test_tensors_on_the_host(host: str) -> None:
    x, number = torch.ones(4, device=host), torch.tensor(2.0)
    assert objections(lambda x: x * 2 + torch.tensor(3.0), x) == []
    assert len(objections(lambda x: x + torch.arange(4).to(host), x)) == 2
    assert objections(lambda x: x.to("cpu"), x)
    # Its value may differ from call to call.
    assert objections(lambda x, y: x * y, x, number)
    model, inputs = traced(lambda x, y: x * y, x, number)
    device = torch.device(host)
    assert partition.find_numbers(model, inputs, device) == [1]
    moved, wrap = partition.move_numbers(model, inputs, [1], device)
    assert [one.device.type for one in moved] == [host, host]
    assert not [node for node in model.graph.nodes if partition.find_objection(node)]
    assert wrap(lambda x, y: (x.device.type, y.device.type))(x, number) == (host, host)


@replayed.nothing("nothing is compiled")
@pytest.mark.parametrize("why", ["written", "needs a gradient", "made on the host"])
def test_numbers_that_stay_on_the_host(host: str, why: str) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "written": lambda x, y: x * y.add_(1),
        "needs a gradient": lambda x, y: x * y,
        "made on the host": lambda x, y: x * (y + 1),
    }
    x, number = torch.ones(4, device=host), torch.tensor(2.0)
    model, inputs = traced(functions[why], x, number)
    if why == "needs a gradient":
        inputs[1] = torch.tensor(2.0, requires_grad=True)
    assert partition.find_numbers(model, inputs, torch.device(host)) == []
