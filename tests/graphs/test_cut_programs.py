# mypy: allow-subclassing-any
"""Programs that a cut could make another of: grad modes, views, writes, hooks and strides.

Each call is compared with eager mode: results, gradients, arguments, and the grad mode after it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch
else:
    torch = pytest.importorskip("torch", reason="no torch here: tests/test_graphs.py has one")

import replayed
import test_partition
from test_partition import GPU, has_tag, in_mode, same, trains

from rocm_autopatch.graphs import graphed, record

begin, our_graphs = test_partition.begin, test_partition.our_graphs
STATE: dict[str, Any] = {"factor": 1.0, "error": None}
LIBRARY = torch.library.Library("cut_programs", "DEF")
pytestmark = [has_tag, trains]


def _scaled(x: Any) -> Any:
    if STATE["error"]:
        raise STATE["error"]
    return x * STATE["factor"]


LIBRARY.define("scaled(Tensor x) -> Tensor", tags=test_partition.TAGS)
LIBRARY.impl("scaled", _scaled, test_partition.KEY)
torch.library.register_fake("cut_programs::scaled", torch.empty_like)
scaled: Any = torch.ops.cut_programs.scaled
torch.library.register_autograd("cut_programs::scaled", lambda _, given: scaled(given))


def smooth(x: Any) -> Any:
    """What pays for a graph."""
    return x.sin().cos() * 2 + x.exp().tanh()


class Net(torch.nn.Module):
    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        self.program = program
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, *given: Any) -> Any:
        return self.program(self, *given)


# Programs


def a_view_in_no_grad(net: Any, x: Any) -> Any:
    with torch.no_grad():
        view = net.one.weight.t()
    y = scaled(smooth(net.one(x)))
    return smooth(net.two(y)) + y @ view


def a_view_of_a_view_in_no_grad(net: Any, x: Any) -> Any:
    with torch.no_grad():
        view = net.one.weight.t()
    row = view[0]
    y = scaled(smooth(net.one(x)))
    return smooth(net.two(y)) + y * row


def a_cut_in_no_grad(net: Any, x: Any) -> Any:
    with torch.no_grad():
        y = smooth(scaled(smooth(net.one(x))))
    return smooth(net.two(y))


def no_grad_behind_the_cut(net: Any, x: Any) -> Any:
    with torch.no_grad():
        return smooth(scaled(x + 1))


def two_cuts(net: Any, x: Any) -> Any:
    with torch.no_grad():
        y = smooth(scaled(smooth(net.one(x))))
    y = y + net.two(y).sin()
    return smooth(scaled(y))


def no_grad_for_good(net: Any, x: Any) -> Any:
    view = net.one.weight.t()
    y = scaled(smooth(net.one(x)))
    torch.set_grad_enabled(False)
    return y, smooth(net.two(y)), view


def gradients_inside(net: Any, x: Any) -> Any:
    with torch.enable_grad():
        return smooth(net.two(scaled(smooth(net.one(x)))))


def a_history_for_an_argument(net: Any, x: Any, out: Any) -> Any:
    out.copy_(net.one(x))
    y = scaled(smooth(x))
    return (out * 2 + 1) * 3 - y


def a_write_after_a_view(net: Any, x: Any, cache: Any) -> Any:
    view = cache.unfold(0, 2, 2)
    y = scaled(smooth(net.one(x)))
    cache.add_(1)
    return smooth(net.two(y)) + cache + view.sum()


def a_write_by_a_view(net: Any, x: Any, cache: Any) -> Any:
    flat, row = cache.ravel(), torch.as_strided(cache, (8,), (8,))
    y = scaled(smooth(net.one(x)))
    flat.mul_(2)
    return smooth(net.two(y)) + cache + row


def a_write_to_what_crosses(net: Any, x: Any) -> Any:
    y = net.one(x).sin().cos() * 2
    z = scaled(y)
    y.add_(1)
    return smooth(net.two(z)) + y


PROGRAMS = (
    *(a_view_in_no_grad, a_view_of_a_view_in_no_grad, a_cut_in_no_grad, no_grad_behind_the_cut),
    *(two_cuts, no_grad_for_good, gradients_inside, a_history_for_an_argument),
    *(a_write_after_a_view, a_write_by_a_view, a_write_to_what_crosses),
)


def call(run: Callable[..., Any], weights: list[Any], given: list[Any]) -> list[Any]:
    """All that a call and its backward leave behind."""
    found = run(*given)
    mode = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    found = [found] if isinstance(found, torch.Tensor) else [*found]
    losses = [one.square().mean() for one in found if one.requires_grad]
    if losses:
        sum(losses[1:], losses[0]).backward()
    gradients = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    needed = [one.requires_grad for one in found]
    return [[one.detach() for one in (*found, *given)], gradients, needed, mode]


@replayed.nothing("some programs are not cut")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("wrap", [in_mode, graphed], ids=["mode", "graphed"])
@pytest.mark.parametrize("training", [True, False], ids=["gradients", "none"])
def test_is_eager_modes(program: Any, training: bool, wrap: Any) -> None:
    net = Net(program).to(GPU)
    other = copy.deepcopy(net)
    fast = wrap(net)
    arguments = program.__code__.co_argcount - 1
    for number in range(7):
        STATE["factor"] = 1.0 + number
        given = [torch.randn(8, 8, device=GPU) for _ in range(arguments)]
        results = []
        for run, weights in ((fast, net), (other, other)):
            with torch.set_grad_enabled(training):
                copies = [one.clone() for one in given]
                results.append(call(run, [*weights.parameters()], copies))
        mine, wanted = results
        assert mine[2:] == wanted[2:], number
        assert [one is None for one in mine[1]] == [one is None for one in wanted[1]]
        for one, plain in zip(mine[0] + mine[1], wanted[0] + wanted[1]):
            if one is not None:
                same(one, plain)


@replayed.nothing("it needs gradients where no graph has them")
def test_gradients_inside_of_no_grad() -> None:
    def inside(net: Any, x: Any) -> Any:
        with torch.enable_grad():
            return smooth(net.one(x))

    net = Net(inside).to(GPU)
    fast = in_mode(net)
    for _ in range(5):
        with torch.no_grad():
            assert fast(torch.randn(8, 8, device=GPU)).requires_grad


def test_an_error_of_the_program_leaves_the_grad_mode() -> None:
    fast = in_mode(Net(a_cut_in_no_grad).to(GPU))
    STATE["error"] = ValueError("no room")
    try:
        with pytest.raises(ValueError, match="no room"):
            fast(torch.randn(8, 8, device=GPU))
    finally:
        STATE["error"] = None
    assert torch.is_grad_enabled()


def between(net: Any, x: Any) -> Any:
    return smooth(net.two(scaled(smooth(net.one(x)))))


def test_hooks_for_what_autograd_saves_get_no_fakes() -> None:
    fast = in_mode(Net(between).to(GPU))
    packed = []

    def pack(tensor: Any) -> Any:
        packed.append(type(tensor))
        return tensor

    for _ in range(4):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            fast(torch.randn(8, 8, device=GPU, requires_grad=True)).sum().backward()
    assert packed
    assert {*packed} <= {torch.Tensor, torch.nn.Parameter}


def test_a_checkpoint_around_what_is_compiled() -> None:
    net = Net(between).to(GPU)
    other, fast = copy.deepcopy(net), in_mode(net)
    for _ in range(4):
        x = torch.randn(8, 8, device=GPU)
        torch.utils.checkpoint.checkpoint(fast, x, use_reentrant=False).sum().backward()
        other(x).sum().backward()
        for weight, plain in zip(net.parameters(), other.parameters()):
            same(weight.grad, plain.grad)
            weight.grad = plain.grad = None
    assert any(row["cuts"] for row in record.render_rows())


@replayed.nothing("it is not cut")
def test_what_can_not_be_cut_says_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    in_mode(Net(a_write_to_what_crosses).to(GPU))(torch.randn(8, 8, device=GPU))
    said = [line for line in capfd.readouterr().err.splitlines() if "Warning" not in line]
    assert len(said) <= 1
    assert all("is not cut into parts: " in line for line in said)


def roll(_: Any, x: Any) -> Any:
    rolled = x.roll(1, 1)
    return smooth(rolled + scaled(smooth(x)))


def select(_: Any, x: Any) -> Any:
    chosen = smooth(x.index_select(1, torch.arange(2, device=x.device)))
    return smooth(chosen + scaled(chosen))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("program", [roll, select])
def test_strides_that_a_compile_chooses(program: Any, mode: Any) -> None:
    """They need not be those of the operations: channels last here."""
    net = Net(program).to(GPU)
    fast = in_mode(net)
    for number in range(6):
        STATE["factor"] = 1.0 + number
        x = torch.randn(2, 4, 4, 4, device=GPU).contiguous(memory_format=torch.channels_last)
        with mode():
            same(fast(x), net(x))


@replayed.nothing("some programs are not cut")
@pytest.mark.parametrize("program", [a_write_after_a_view, a_write_by_a_view])
def test_writes_in_inference_mode(program: Any) -> None:
    """Dynamo's examples count writes there, too."""
    net = Net(program).to(GPU)
    fast = in_mode(net)
    for number in range(6):
        STATE["factor"] = 1.0 + number
        given = [torch.randn(8, 8, device=GPU) for _ in range(2)]
        copies = [one.clone() for one in given]
        with torch.inference_mode():
            same(fast(*given), net(*copies))
        same(given, copies)


def test_numbers_and_their_real_view() -> None:
    """Two results of different types that share their memory share it after a replay."""

    def both(x: Any) -> Any:
        found = torch.complex(x.sin(), x.cos())
        return found, torch.view_as_real(found)

    fast = graphed(both)
    for _ in range(5):
        with torch.no_grad():
            found, real = fast(torch.randn(8, device=GPU))
        real.zero_()
        assert not found.any()
